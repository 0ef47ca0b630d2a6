"""Draws of a trace of large-model jobs: real arrivals, and jobs that a seed gives them.

- ``helios``: the 438 arrivals of a day of Helios' Venus, with Arena's jobs in an order that the seed shuffles.
- ``pai``: the 125 arrivals of Alibaba's PAI three times end to end, each of Arena's jobs three times, shuffled.
- ``itp``: 400 submissions in a row of Microsoft ITP's clusters 03 and 04, from where the seed says, each training what
  its GPU-hours say (``arena_traces.mapping``) and asking for a GPU type that is drawn as well. Jobs above 640 GPU-hours
  are left out and counted: the tables know no group of more than 16 GPUs, so that such a job alone would outlast the
  replay.
- ``itp-others``: the same of clusters 01, 02, 05 and 08, on which nothing was tuned. (Of the others in hand 09 has jobs
  of one GPU only, and 10 fewer than 400.)

Jobs of Arena's traces run a fifth of their iterations, as in its artifact, and have no deadlines. No job states a
duration: what a trace offers is then the GPU time of its steps on what the jobs ask for, as ``arena replay --load``
has it.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from arena.domain.job import JobId
from arena.domain.trace import TraceJob
from arena.units import HOUR_S
from arena_traces.mapping import default_mapping, uniform_number, with_workloads
from arena_traces.reading import read_trace
from arena_traces.trace import Trace
from arena_traces.trace import order as order_of
from experiments.arena_traces.run import ITERATIONS_DIVISOR, measured
from experiments.arena_traces.tables import GPUS_PER_NODE, Tables

ITP_JOBS = 400
ITP_GPU_HOURS_MAX = 640.0
PAI_COPIES = 3
GPU_TYPES = tuple(sorted(GPUS_PER_NODE))


class Arrivals(StrEnum):
    """Whose arrivals."""

    ITP = "itp"
    ITP_OTHERS = "itp-others"
    HELIOS = "helios"
    PAI = "pai"


FILES: Mapping[Arrivals, tuple[str, ...]] = {
    Arrivals.ITP: (
        "traces/microsoft_itp_2021/raw/cluster03.csv.gz",
        "traces/microsoft_itp_2021/raw/cluster04.csv.gz",
    ),
    Arrivals.ITP_OTHERS: tuple(
        f"traces/microsoft_itp_2021/raw/cluster{number}.csv.gz" for number in ("01", "02", "05", "08")
    ),
    Arrivals.HELIOS: ("data/arena/traces/simulate_trace_venus.csv",),
    Arrivals.PAI: ("data/arena/traces/simulate_trace_pai.csv",),
}
"""Below the folder of the data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """What a seed made.

    Args:
        jobs: In the order of their submission; none states a duration.
        sha256: Of the files, by name.
        notes: What was done, for people.
    """

    jobs: tuple[TraceJob, ...]
    sha256: Mapping[str, str]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrivalSource:
    """Traces that were read, from which seeds draw.

    Args:
        tables: Jobs of Arena's traces ask for what was measured.
    """

    arrivals: Arrivals
    traces: tuple[Trace, ...]
    tables: Tables

    @classmethod
    def read(cls, arrivals: Arrivals, folder: Path, tables: Tables) -> ArrivalSource:
        """Read the files.

        Raises:
            UserError: One of them cannot be read.
        """
        traces = tuple(read_trace(folder / name) for name in FILES[arrivals])
        return cls(arrivals=arrivals, traces=traces, tables=tables)

    def drawn(self, seed: int) -> Drawn:
        """Return the jobs of a seed; the same on every machine."""
        if self.arrivals in (Arrivals.ITP, Arrivals.ITP_OTHERS):
            return self._window(seed)
        copies = PAI_COPIES if self.arrivals is Arrivals.PAI else 1
        plain = self.as_it_is()
        jobs = shuffled(repeated(plain.jobs, copies), seed)
        return replace(plain, jobs=jobs, notes=(f"{len(jobs)} jobs, {copies} x the trace, shuffled by seed {seed}",))

    def as_it_is(self) -> Drawn:
        """Return the jobs of one of Arena's traces where the trace has them."""
        [trace] = self.traces
        jobs = (measured(job, self.tables) for job in trace.jobs)
        fifth = (
            replace(job, step_count=max((job.step_count or 0) // ITERATIONS_DIVISOR, 1), deadline_s=None)
            for job in jobs
        )
        return Drawn(jobs=tuple(fifth), sha256=self._digests(), notes=("the trace as it is, without deadlines",))

    def _window(self, seed: int) -> Drawn:
        number = uniform_number(seed, 0, purpose="window") * sum(len(one.jobs) - ITP_JOBS for one in self.traces)
        at, trace = int(number), self.traces[0]
        for trace in self.traces:
            if at < len(trace.jobs) - ITP_JOBS:
                break
            at -= len(trace.jobs) - ITP_JOBS
        part = trace.jobs[at : at + ITP_JOBS]
        kept = tuple(job for job in part if _gpu_hours(job) <= ITP_GPU_HOURS_MAX)
        accounting = replace(trace.accounting, job_count=len(kept), left_out_count=0, row_count=len(kept))
        accounting = replace(accounting, dropped_lines={}, repaired_lines={})
        mapped = with_workloads(replace(trace, jobs=kept, accounting=accounting), default_mapping(), seed=seed)
        jobs = tuple(self._typed(replace(job, duration_s=None), seed) for job in mapped.jobs)
        name = Path(trace.source.file).name
        notes = (
            f"jobs {at} to {at + ITP_JOBS} of {name}, {len(part) - len(kept)} above {ITP_GPU_HOURS_MAX:g} GPU-h out",
        )
        return Drawn(jobs=jobs, sha256=self._digests(), notes=notes)

    def _typed(self, job: TraceJob, seed: int) -> TraceJob:
        number = uniform_number(seed, job.row, purpose="type")
        return measured(replace(job, gpu_type=GPU_TYPES[int(number * len(GPU_TYPES))]), self.tables)

    def _digests(self) -> dict[str, str]:
        return {Path(one.source.file).name: one.source.sha256 for one in self.traces}


def _gpu_hours(job: TraceJob) -> float:
    return (job.duration_s or 0.0) * job.gpu_count / HOUR_S


def repeated(jobs: tuple[TraceJob, ...], copies: int) -> tuple[TraceJob, ...]:
    """Return jobs several times end to end, a mean gap between two copies; ids and rows stay unique."""
    if copies == 1:
        return jobs
    span_s = jobs[-1].submitted_at_s - jobs[0].submitted_at_s
    period_s = span_s * len(jobs) / (len(jobs) - 1)
    rows = max(job.row for job in jobs)
    return tuple(
        replace(
            job,
            job_id=JobId(f"{job.job_id}-{copy}"),
            row=job.row + copy * rows,
            submitted_at_s=job.submitted_at_s + copy * period_s,
        )
        for copy in range(copies)
        for job in jobs
    )


def shuffled(jobs: tuple[TraceJob, ...], seed: int) -> tuple[TraceJob, ...]:
    """Return the same arrivals with the jobs in another order."""
    order = list(range(len(jobs)))
    random.Random(seed).shuffle(order)
    moved = (
        replace(jobs[index], submitted_at_s=arrival.submitted_at_s) for index, arrival in zip(order, jobs, strict=True)
    )
    return tuple(sorted(moved, key=order_of))
