"""Why nothing can be promised to a job with a deadline. Pure: no I/O, no clock."""

from __future__ import annotations

from arena.domain.grid import Grid
from arena.domain.job import JobId
from arena.domain.reason import Reason, ReasonCode, reason
from arena.policies.base import Admission, Snapshot
from arena.policies.priced.budgets import offered
from arena.policies.priced.market import Market


def with_cause(snapshot: Snapshot, market: Market, found: Admission | None, job_id: JobId) -> Admission | None:
    """Return an answer that says why nothing can be promised, where that is so.

    Args:
        found: None where nothing could be said.
    """
    if found is not None and (found.is_promised or found.earliest_end_s is not None):
        return found
    job = snapshot.jobs[job_id]
    if job.spec.deadline_s is None or job_id not in snapshot.grids:
        return found
    at = next((at for at, contender in enumerate(market.contenders) if contender.job_id == job_id), None)
    if at is None:
        no_nodes = reason(ReasonCode.NO_NODES, nodes=0)
        why = no_cell(snapshot.grids[job_id])[0] if snapshot.capacity.devices else no_nodes
    else:
        left_s = job.submitted_at_s + job.spec.deadline_s - snapshot.now_s
        code = ReasonCode.DEADLINE_UNKNOWN if found is None else ReasonCode.DEADLINE_OPEN
        known = None if found is None else found.reason
        if known is not None and known.code is ReasonCode.DEADLINE_TAKEN:
            known = None  # that nobody knows when they come free says more
        why = offered(snapshot, market).reasons.get(at) or known or reason(code, left_s=left_s)
    return Admission(is_promised=False, earliest_end_s=None, reason=why)


def no_cell(grid: Grid) -> tuple[Reason, ...]:
    """Return why a grid has nothing for this cluster."""
    elsewhere = reason(ReasonCode.NO_FEASIBLE_PLAN, detail="its grid has no cell of the GPU types that are here")
    return tuple(item.reason for item in grid.infeasible[:1]) or (elsewhere,)
