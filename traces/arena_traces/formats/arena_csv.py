"""The tables that the simulator of Arena's artifact replays (EuroSys'26).

``submission_time`` and ``deadline`` are instants of one clock, in seconds; ``num_iteration`` and ``batch_size``
(samples an iteration) say what is to be done, ``model_name`` is ``family__size``, ``num_gpu`` and ``gpu_type`` are what
the user asked for. The artifact's simulator works off a fifth of the iterations; this reader does not divide. Arrivals
are those of real clusters, all else was drawn at random. Pure: no I/O, no clock.
"""

from __future__ import annotations

from arena.domain.job import JobId, WorkloadSpec
from arena.domain.trace import TraceJob
from arena_traces.defects import Defect
from arena_traces.formats.base import FlawError, Parsed
from arena_traces.formats.cells import TIME_S_MAX, Cells, gpu_count_of, job_id_of, shown, submission_of
from arena_traces.formats.table import TableFormat


def _job(cells: Cells) -> Parsed:
    job_id = job_id_of(cells, "job_id")
    submitted_at_s = submission_of(cells, "submission_time")
    gpu_count, repairs = gpu_count_of(cells, "num_gpu")
    job = TraceJob(
        job_id=JobId(job_id),
        row=cells.line,
        submitted_at_s=submitted_at_s,
        gpu_count=gpu_count,
        step_count=_step_count(cells),
        workload=_workload(cells),
        gpu_type=cells.text("gpu_type"),
        deadline_s=_deadline_s(cells, submitted_at_s),
        project=cells.text("project") or "",
    )
    return Parsed(job=job, repairs=repairs)


def _step_count(cells: Cells) -> int:
    count = cells.whole("num_iteration")
    if count is None:
        raise FlawError(Defect.NO_WORK, "num_iteration is empty")
    if count == 0:
        raise FlawError(Defect.NO_TIME, "num_iteration is 0")
    return count


def _workload(cells: Cells) -> WorkloadSpec:
    name, batch = cells.text("model_name"), cells.whole("batch_size")
    if name is None or batch is None:
        raise FlawError(Defect.NO_WORK, f"{'model_name' if name is None else 'batch_size'} is empty")
    if batch == 0:
        raise FlawError(Defect.NO_TIME, "batch_size is 0")
    family, _, size = name.partition("__")
    if not family or not size:
        what = f"model_name must be family__size, found {shown(name)}"
        raise FlawError(Defect.BAD_MODEL_NAME, what, fix="write it like bert__1.3B")
    return WorkloadSpec(name=name, global_batch=batch)


def _deadline_s(cells: Cells, submitted_at_s: float) -> float | None:
    deadline_at_s = cells.number("deadline", TIME_S_MAX)
    if deadline_at_s is None:
        return None
    if deadline_at_s <= submitted_at_s:
        what = f"deadline ({deadline_at_s:g}) is not after submission_time ({submitted_at_s:g})"
        raise FlawError(Defect.NEGATIVE, what)
    return deadline_at_s - submitted_at_s


ARENA_CSV = TableFormat(
    name="arena-csv",
    title="Arena's artifact, EuroSys'26",
    columns=(
        *("job_id", "submission_time", "num_iteration", "model_name"),
        *("deadline", "batch_size", "num_gpu", "gpu_type"),
    ),
    job=_job,
    optional=("project",),
)
