"""From a trace's GPU-hours to jobs that train large models: by declared cut points, and a draw for each row.

What is kept of the trace: arrivals, GPU time, and the count of GPUs as what the user asked for. The work follows from
the GPU time: as many steps as fit into it on a reference GPU, so that a faster plan shortens the job. A draw depends on
the seed and the job's row alone, never on the order or the number of the jobs. Pure: no I/O, no clock.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Annotated, Any

from pydantic import Field, ValidationError, model_validator

from arena.domain.job import WorkloadSpec
from arena.domain.specbase import Model, Name, PositiveFloat, PositiveInt
from arena.domain.specfile import described, spec_error
from arena.domain.trace import TraceJob
from arena.domain.yamltree import Path, Problem, Tree, read_tree
from arena.errors import SpecError, UserError
from arena.units import HOUR_S
from arena_traces.trace import Draw, Trace

_MANTISSA_BITS = 53


class MappedWorkload(Model):
    """A workload that a job may become.

    Attributes:
        name: What tables of measurements call it.
        global_batch: Samples a step.
        gpu_seconds_per_step: GPU time of one step on the reference GPU.
        weight: How often it is drawn, against the others of its class.
    """

    name: Name
    global_batch: PositiveInt
    gpu_seconds_per_step: PositiveFloat
    weight: PositiveFloat = 1.0


class WorkloadClass(Model):
    """Jobs of about the same GPU time.

    Attributes:
        below_gpu_hours: GPU-hours that its jobs stay below; the last class has no bound.
    """

    below_gpu_hours: PositiveFloat | None = None
    workloads: Annotated[tuple[MappedWorkload, ...], Field(min_length=1)]


class WorkloadMapping(Model):
    """Which workloads jobs become, by their GPU-hours.

    Attributes:
        classes: From few GPU-hours to many.
        reference: Of what the times of a step are, for people.
    """

    classes: Annotated[tuple[WorkloadClass, ...], Field(min_length=1)]
    reference: str = ""

    @model_validator(mode="after")
    def _rises(self) -> WorkloadMapping:
        *bounded, last = (one.below_gpu_hours for one in self.classes)
        if last is not None:
            raise ValueError("the last class must hold all other jobs: leave its below_gpu_hours out")
        bounds = [bound for bound in bounded if bound is not None]
        if len(bounds) < len(bounded):
            raise ValueError("every class but the last needs below_gpu_hours")
        if any(first >= second for first, second in pairwise(bounds)):
            raise ValueError(f"below_gpu_hours must rise from class to class, found {bounds}")
        return self

    @property
    def digest(self) -> str:
        """A short name of its content."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()[:12]

    def class_of(self, gpu_hours: float) -> int:
        """Return the index of the class that a job falls into."""
        bounds = (one.below_gpu_hours for one in self.classes)
        return next(index for index, bound in enumerate(bounds) if bound is None or gpu_hours < bound)


def _class(below_gpu_hours: float | None, *rows: tuple[str, int, float]) -> WorkloadClass:
    workloads = tuple(
        MappedWorkload(name=name, global_batch=batch, gpu_seconds_per_step=gpu_s) for name, batch, gpu_s in rows
    )
    return WorkloadClass(below_gpu_hours=below_gpu_hours, workloads=workloads)


def default_mapping() -> WorkloadMapping:
    """Return the mapping that is used where none is given.

    The cut points are those of Sia's and Pollux' generators (SOSP'23, OSDI'21), with one more at 1,000 GPU-hours. Times
    are the least GPU time of a step over the A100 groups that were measured for Arena (EuroSys'26), in GPU-seconds.
    """
    return WorkloadMapping(
        reference="A100, the group that takes the least GPU time",
        classes=(
            _class(1, ("moe__690M", 256, 3.77), ("bert__760M", 128, 6.58), ("wide_resnet__500M", 256, 13.7)),
            _class(10, ("moe__1.3B", 512, 14.6), ("bert__1.3B", 256, 21.5), ("wide_resnet__1B", 256, 29.6)),
            _class(100, ("moe__2.4B", 1024, 38.3), ("bert__2.6B", 256, 37.2), ("wide_resnet__2B", 256, 80.3)),
            _class(1000, ("moe__10B", 1024, 80.2), ("bert__6.7B", 256, 96.5), ("wide_resnet__4B", 256, 111.0)),
            _class(None, ("bert__6.7B", 512, 195.0), ("wide_resnet__6.8B", 512, 414.0)),
        ),
    )


def parse_mapping(text: str, *, source: str) -> WorkloadMapping:
    """Read a mapping from YAML.

    Args:
        text: The document.
        source: Its name, for errors.

    Raises:
        SpecError: Everything that is wrong, each with its place and field.
    """
    tree = read_tree(text, source)
    if not isinstance(tree.data, dict):
        raise SpecError(f"{tree.place(())}: a mapping has `classes`", why="it is no mapping of fields")
    try:
        return WorkloadMapping.model_validate(tree.data)
    except ValidationError as error:
        problems = [_problem(tree, item) for item in error.errors(include_url=False)]
        raise spec_error(source, problems) from error


def _problem(tree: Tree, item: Any) -> Problem:
    path: Path = item["loc"]
    field = ".".join(str(part) for part in path)
    if item["type"] == "extra_forbidden":
        return Problem(place=tree.keys.get(path, tree.place(path)), field=field, text="unknown field")
    return Problem(place=tree.place(path), field=field, text=described(item))


def with_workloads(trace: Trace, mapping: WorkloadMapping, *, seed: int) -> Trace:
    """Return a trace whose jobs train what their GPU-hours and a draw say.

    ``draws`` says for each job what was drawn, from which row and number. Durations stay, as what the source says.

    Raises:
        UserError: A job states no duration, so that its GPU time is not known.
    """
    for job in trace.jobs:
        if job.duration_s is None:
            what = f"job {job.job_id} of line {job.row} states no duration, so no workload follows from its GPU time"
            raise UserError(what, why=f"{trace.source.file} is of format {trace.source.format_name}")
    drawn = [_mapped(job, mapping, seed) for job in trace.jobs]
    return replace(
        trace,
        jobs=tuple(job for job, _ in drawn),
        draws=tuple(draw for _, draw in drawn),
        spec_by_job={},
        changes=(*trace.changes, f"workloads drawn by GPU-hours: mapping {mapping.digest}, seed {seed}"),
    )


def _mapped(job: TraceJob, mapping: WorkloadMapping, seed: int) -> tuple[TraceJob, Draw]:
    assert job.duration_s is not None
    gpu_seconds = job.duration_s * job.gpu_count
    class_index = mapping.class_of(gpu_seconds / HOUR_S)
    number = uniform_number(seed, job.row, purpose="workload")
    chosen = _chosen(mapping.classes[class_index].workloads, number)
    draw = Draw(
        job_id=job.job_id,
        row=job.row,
        number=number,
        gpu_hours=gpu_seconds / HOUR_S,
        class_index=class_index,
        workload=chosen.name,
    )
    step_count = max(1, round(gpu_seconds / chosen.gpu_seconds_per_step))
    workload = WorkloadSpec(name=chosen.name, global_batch=chosen.global_batch)
    return replace(job, workload=workload, step_count=step_count), draw


def _chosen(workloads: Sequence[MappedWorkload], number: float) -> MappedWorkload:
    ends = list(accumulate(one.weight for one in workloads))
    return next((one for one, end in zip(workloads, ends, strict=True) if number * ends[-1] < end), workloads[-1])


def uniform_number(seed: int, row: int, *, purpose: str) -> float:
    """Return a number in [0, 1) that depends on the three alone: the same on every machine, in every order.

    Args:
        purpose: Sets the draws of one row apart.
    """
    digest = hashlib.blake2b(f"{seed}/{row}/{purpose}".encode(), digest_size=8).digest()
    return math.ldexp(int.from_bytes(digest, "big") >> (64 - _MANTISSA_BITS), -_MANTISSA_BITS)
