"""Why nothing can be promised to a job with a deadline. Pure: no I/O, no clock."""

from __future__ import annotations

from arena.domain.job import JobId
from arena.domain.reason import ReasonCode, reason
from arena.policies.base import Admission, Snapshot
from arena.policies.priced.budgets import offered
from arena.policies.priced.market import Market
from arena.policies.priced.shortages import no_cell


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
        why = no_cell(snapshot, snapshot.grids[job_id])[0]
    else:
        left_s = job.submitted_at_s + job.spec.deadline_s - snapshot.now_s
        code = ReasonCode.DEADLINE_UNKNOWN if found is None else ReasonCode.DEADLINE_OPEN
        known = None if found is None else found.reason
        if known is not None and known.code is ReasonCode.DEADLINE_TAKEN:
            known = None  # that nobody knows when they come free says more
        why = offered(snapshot, market).reasons.get(at) or known or reason(code, left_s=left_s)
    return Admission(is_promised=False, earliest_end_s=None, reason=why)
