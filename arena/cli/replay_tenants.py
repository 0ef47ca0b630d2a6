"""Tenants of ``arena replay``: their guaranteed shares, and whose job each job of a trace is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from arena.cli.file_kinds import FileKind, read_as
from arena.cli.submit import read_text
from arena.domain.specbase import NAME_LENGTH_MAX
from arena.domain.tenants import Guarantees
from arena.errors import UserError
from arena.planner.clusterfile import Cluster
from arena.planner.tenantfile import check_guarantees, parse_tenants
from arena.units import format_count

if TYPE_CHECKING:
    from arena_traces.trace import Trace


def read_tenants(file: str, cluster: Cluster) -> tuple[Guarantees, str]:
    """Return what a file guarantees, and its text.

    Raises:
        UserError: It cannot be read, is not right, or guarantees more than the cluster has.
    """
    text = read_text(file, command="replay")
    with read_as(FileKind.TENANTS, text, source=file):
        tenants = parse_tenants(text, source=file, gpu_types=cluster.gpu_types)
    check_guarantees(tenants, cluster.shape, source=file)
    return tenants, text


def project_shares(texts: Sequence[str]) -> tuple[tuple[str, float], ...]:
    """Return what ``--project NAME=SHARE`` says, in the order given.

    Raises:
        UserError: One is not of that form, or there is more than all.
    """
    found = tuple(_project_share(text) for text in texts)
    if len({name for name, _ in found}) < len(found):
        raise UserError("--project names one twice", fix="give each once")
    if sum(share for _, share in found) > 1.0 + 1e-9:
        raise UserError("--project deals out more than all jobs", fix="give shares that add up to 1 or less")
    return found


def _project_share(text: str) -> tuple[str, float]:
    name, _, share = text.rpartition("=")
    try:
        value = float(share)
    except ValueError:
        value = -1.0
    if not (name and len(name) <= NAME_LENGTH_MAX and name.isprintable() and 0.0 <= value <= 1.0):
        raise UserError(f"--project {text} is no project with its share", fix="write it like --project vision=0.3")
    return name, value


def with_projects(trace: Trace, shares: Sequence[tuple[str, float]], *, seed: int) -> Trace:
    """Return a trace whose jobs without a project have one, drawn by seed and row alone."""
    from arena_traces.mapping import uniform_number

    if not shares:
        return trace
    jobs, count = [], 0
    for job in trace.jobs:
        project = job.project or _dealt(uniform_number(seed, job.row, purpose="project"), shares)
        count += project != job.project
        jobs.append(replace(job, project=project))
    listed = ", ".join(f"{name} {share:g}" for name, share in shares)
    change = f"{format_count(count, 'job')} dealt to projects, seed {seed}: {listed}"
    return replace(trace, jobs=tuple(jobs), changes=(*trace.changes, change))


def _dealt(number: float, shares: Sequence[tuple[str, float]]) -> str:
    for name, share in shares:
        if number < share:
            return name
        number -= share
    return ""
