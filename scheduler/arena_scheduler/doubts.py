"""What the user of a new job may not have meant: it is taken all the same, with a warning. Pure: no I/O, no clock."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from arena.domain.cluster import ClusterShape
from arena.domain.grid import Cell, Grid
from arena.domain.job import JobSpec
from arena.domain.paces import estimator, work_name
from arena.domain.reason import Reason, ReasonCode, reason
from arena.domain.tenants import Guarantees
from arena.engine.spending import usd_per_s
from arena.engine.state import ClusterState
from arena.policies.beside_shares import never_beside_shares
from arena.policies.priced.pace import paces_of_work

DEFAULT_PROJECT: str = JobSpec.model_fields["project"].default
OF_PROJECTS = frozenset({ReasonCode.PROJECT_UNKNOWN, ReasonCode.PROJECT_WITHOUT_SHARE})
"""Doubts about a project of which no job is here at the moment."""

OF_CELLS = frozenset({ReasonCode.BUDGET_NOT_ENOUGH, ReasonCode.NEVER_BESIDE_SHARES})
"""Doubts that further cells may take away."""

_OFFERS = frozenset(
    {
        *(ReasonCode.OUTBID, ReasonCode.TIED, ReasonCode.INDIVISIBLE, ReasonCode.NEXT_BEST, ReasonCode.DISPLACES),
        ReasonCode.UNMOVABLE,
        *(ReasonCode.BEYOND_SHARE, ReasonCode.KEPT_FOR_SHARE),
    }
)
"""What a policy says of groups that a job competes for: it is no word of groups that it never gets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What a job is weighed by.

    Args:
        state: Jobs that are not over, and what a restart takes.
        shape: The nodes of this moment.
        tenants: Guaranteed GPUs by project.
        usd_per_hour: Price of a GPU hour of each type.
    """

    state: ClusterState
    shape: ClusterShape
    tenants: Guarantees
    usd_per_hour: Mapping[str, float]


def doubts(spec: JobSpec, known: Known, planned: Grid | None) -> Iterator[Reason]:
    """Yield what is doubtful about a job that is about to be submitted.

    Args:
        planned: Its grid, None where that is not known.
    """
    yield from _of_project(spec, known.state, known.tenants)
    if planned is not None and (planned.cells or planned.mixed):
        yield from _of_budget(spec, planned, known)
    never = None if planned is None else never_beside_shares(spec, planned, known.tenants, known.shape)
    if never is not None:
        yield never


def _of_project(spec: JobSpec, state: ClusterState, tenants: Guarantees) -> Iterator[Reason]:
    """Yield that nobody knows a project: most likely another was meant where one has nearly the same name."""
    project = spec.project
    if project == DEFAULT_PROJECT or project in tenants:
        return
    here = {job.spec.project for job in state.jobs.values()}
    if project in here:
        return
    near = difflib.get_close_matches(project, sorted({*here, *tenants, DEFAULT_PROJECT}), n=1)
    if near:
        yield reason(ReasonCode.PROJECT_UNKNOWN, project=project, near=near[0])
    elif tenants:
        yield reason(ReasonCode.PROJECT_WITHOUT_SHARE, project=project)


def _of_budget(spec: JobSpec, planned: Grid, known: Known) -> Iterator[Reason]:
    """Yield that a budget is less than the job costs where it costs least, as fast as its like have run."""
    limit_s = spec.stop.time_limit_s
    if spec.budget_usd is None or (spec.step_limit is None and limit_s is None):
        return

    def cost_usd(cell: Cell, pace: float) -> float:
        ends_s = [] if limit_s is None else [limit_s]
        ends_s += [] if spec.step_limit is None else [spec.step_limit * cell.best.estimate.iter_time_s / pace]
        return (known.state.restart_s + min(ends_s)) * usd_per_s(cell.group, known.usd_per_hour)

    cells, work = (*planned.cells, *planned.mixed), work_name(spec, spec.user or "")
    paces = paces_of_work(known.state.paces, estimator(planned), work, [cell.group for cell in cells])
    costs_usd = [cost_usd(cell, pace) for cell, pace in zip(cells, paces.tolist(), strict=True)]
    needed_usd = min(costs_usd)
    cheapest = cells[costs_usd.index(needed_usd)]
    if needed_usd > spec.budget_usd:
        told = {"budget_usd": spec.budget_usd, "needed_usd": needed_usd}
        yield reason(ReasonCode.BUDGET_NOT_ENOUGH, group=str(cheapest.group), **told)


def for_good(
    reasons: Sequence[Reason], spec: JobSpec, grid: Grid | None, tenants: Guarantees, shape: ClusterShape
) -> tuple[Reason, ...]:
    """Return the reasons of a job that waits; of one that never starts, why that is instead of what it is offered.

    Args:
        grid: The job's, None where it is not known.
    """
    never = None if grid is None else never_beside_shares(spec, grid, tenants, shape)
    return tuple(reasons) if never is None else (never, *(one for one in reasons if one.code not in _OFFERS))
