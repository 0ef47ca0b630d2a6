"""Jobs whose budgets do not last: nobody raises them in a replay, so their users give up."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from arena.domain.job import JobId, JobSpec
from arena.domain.reason import Reason, ReasonCode
from arena.domain.records import JobState
from arena.engine.ports import Step
from arena.engine.spending import is_spent
from arena.engine.state import ClusterState

GIVEN_UP = "budget"
"""Who cancels such jobs."""


@dataclass(slots=True)
class Budgets:
    """Says once of each job that it is given up: it was stopped for its budget, or what is left buys it nothing."""

    _told: set[JobId] = field(default_factory=set)

    @staticmethod
    def of(specs: Iterable[JobSpec]) -> Budgets | None:
        """Return the watch over some jobs, None where none of them has a budget."""
        return Budgets() if any(spec.budget_usd is not None for spec in specs) else None

    def given_up(self, step: Step, state: ClusterState) -> Iterator[JobId]:
        """Yield the jobs that a step leaves without hope."""
        for job in step.jobs:
            if job.state is JobState.HELD and is_spent(job):
                yield from self._once(job.job_id)
        if step.decision is None:
            return
        for job_id, reasons in step.decision.reasons.items():
            found = state.jobs.get(job_id)
            waits = found is not None and found.state is JobState.QUEUED and found.target is None
            if waits and _is_too_small(reasons):
                yield from self._once(job_id)

    def _once(self, job_id: JobId) -> Iterator[JobId]:
        if job_id not in self._told:
            self._told.add(job_id)
            yield job_id


def _is_too_small(reasons: Iterable[Reason]) -> bool:
    return any(one.code is ReasonCode.BUDGET_TOO_SMALL for one in reasons)
