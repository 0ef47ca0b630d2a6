"""Microsoft's ITP clusters, 2021 (github.com/microsoft/elasticflow-traces, data/raw-traces; ElasticFlow, ASPLOS'23).

Columns: ``job_id``, ``submission_time`` (s since the beginning of the collection), ``duration`` (s, running time) and
``num_gpu``. Nothing says how a job ended. The same authors' tables with models and iterations can be read as well;
those columns were drawn at random, and are ignored. Pure: no I/O, no clock.
"""

from __future__ import annotations

from arena.domain.job import JobId
from arena.domain.trace import TraceJob
from arena_traces.defects import Defect
from arena_traces.formats.base import FlawError, Parsed
from arena_traces.formats.cells import TIME_S_MAX, Cells, gpu_count_of, job_id_of, submission_of
from arena_traces.formats.table import TableFormat


def _job(cells: Cells) -> Parsed:
    job_id = job_id_of(cells, "job_id")
    submitted_at_s = submission_of(cells, "submission_time")
    gpu_count, repairs = gpu_count_of(cells, "num_gpu")
    duration_s = cells.number("duration", TIME_S_MAX)
    if duration_s is None:
        raise FlawError(Defect.NO_WORK, "duration is empty")
    if duration_s == 0:
        raise FlawError(Defect.NO_TIME, "duration is 0")
    job = TraceJob(
        job_id=JobId(job_id),
        row=cells.line,
        submitted_at_s=submitted_at_s,
        gpu_count=gpu_count,
        duration_s=duration_s,
        project=cells.text("project") or "",
    )
    return Parsed(job=job, repairs=repairs)


MICROSOFT_ITP = TableFormat(
    name="microsoft-itp",
    title="Microsoft ITP clusters, 2021",
    columns=("job_id", "submission_time", "duration", "num_gpu"),
    job=_job,
    optional=("project",),
)
