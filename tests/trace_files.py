"""Small traces as files, and where published ones lie."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from arena.domain.job import JobId
from arena.domain.trace import TraceJob
from arena_traces.trace import Accounting, Source, Trace, order

ITP_HEAD = "job_id,submission_time,duration,num_gpu"
ARENA_HEAD = "job_id,submission_time,num_iteration,model_name,deadline,batch_size,num_gpu,gpu_type"


def table(head: str, *rows: str, end: str = "\n") -> bytes:
    """A table whose lines all end."""
    return "".join(f"{line}{end}" for line in (head, *rows)).encode()


def written(path: Path, content: bytes) -> Path:
    """The path, once the content is there."""
    path.write_bytes(content)
    return path


def trace_of(jobs: Iterable[TraceJob]) -> Trace:
    """A trace of some jobs, as if read."""
    ordered = tuple(sorted(jobs, key=order))
    return Trace(
        source=Source(file="made.csv", format_name="microsoft-itp", sha256="0" * 64),
        jobs=ordered,
        accounting=Accounting(row_count=len(ordered), job_count=len(ordered)),
    )


def itp_job(row: int, *, submitted_at_s: float, duration_s: float | None = 3600.0, gpu_count: int = 1) -> TraceJob:
    """A job of which a duration is known."""
    return TraceJob(
        job_id=JobId(f"j{row}"), row=row, submitted_at_s=submitted_at_s, duration_s=duration_s, gpu_count=gpu_count
    )


def published(*parts: str) -> Path | None:
    """A published trace, None where it is not here."""
    stated = os.environ.get("ARENA_DATA_DIR")
    base = Path(stated) if stated is not None else Path(__file__).resolve().parents[2] / "shared"
    path = base.joinpath(*parts)
    return path if path.exists() else None
