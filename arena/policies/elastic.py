"""A small elastic policy: everybody's minimum first, then one growth step at a time where it helps most.

Pure: no I/O, no clock.

1. *Admit.* Waiting jobs, in order of service, get their smallest group; where that does not fit, running malleable
   jobs shrink to their own minimum, the largest first, until it does (or nothing is changed for it at all).
2. *Grow.* What is then free goes, one step at a time, to the job with the largest gain in log speed per GPU: jobs that
   start, jobs that shrank in step 1 (so a shrink takes no more than it must), and running malleable jobs.
3. *Change with reason.* A running job is left alone for ``change_interval_s`` after a change, and grows only if what
   that gains over its remaining time exceeds the cost of the restart.
4. *Bounded waiting.* Small jobs may pass a large one that does not fit, until it has waited ``wait_s_max``: then
   the GPU types it can use are drained for it. Nothing else starts or grows on them until it has started, so it waits
   no longer than the longest job that already runs there; other types stay busy.

No job ever loses all it has, so a preempt-admit-preempt loop cannot occur. Rigid, moldable and non-preemptible jobs
keep what they were started with.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from arena.domain.job import JobId
from arena.domain.reason import Reason, ReasonCode, reason
from arena.policies.base import Decision, Snapshot
from arena.policies.choose import PLANNING
from arena.policies.elastic_draft import ElasticDraft
from arena.policies.elastic_rules import ElasticRules


@dataclass(frozen=True, slots=True, kw_only=True)
class Elastic:
    """The ``elastic`` policy."""

    rules: ElasticRules = field(default_factory=ElasticRules)
    name: str = "elastic"
    version: str = "1"

    def decide(self, snapshot: Snapshot) -> Decision:
        """Admit, then grow; see the module for the rules."""
        if not snapshot.waiting and not snapshot.capacity.rooms:
            return Decision()
        draft = ElasticDraft(snapshot, self.rules)
        rest = self._admit(snapshot, draft)
        draft.grow()
        return Decision(
            choices=draft.choices(),
            reasons=dict(sorted(draft.reasons.items())),
            rest=rest,
            look_again_at_s=self._look_again_at_s(snapshot, draft),
            numbers={"admitted": float(len(draft.started)), "examined": float(len(draft.reasons))},
        )

    def _admit(self, snapshot: Snapshot, draft: ElasticDraft) -> Reason | None:
        """Give waiting jobs their minimum; return the reason of those not looked at."""
        first_waiting: JobId | None = None
        for position, job_id in enumerate(snapshot.waiting):
            if first_waiting is not None and draft.is_exhausted:
                return reason(ReasonCode.BEHIND, job=first_waiting, ahead=position - len(draft.started))
            if job_id not in snapshot.grids:
                draft.reasons[job_id] = PLANNING
                continue
            if draft.admit(job_id):
                continue
            first_waiting = first_waiting or job_id
            waited_s = snapshot.now_s - snapshot.jobs[job_id].submitted_at_s
            if waited_s >= self.rules.wait_s_max and draft.drained_for is None:
                draft.drain_for(job_id)
        return None

    def _look_again_at_s(self, snapshot: Snapshot, draft: ElasticDraft) -> float | None:
        overdue = [
            snapshot.jobs[job_id].submitted_at_s + self.rules.wait_s_max
            for job_id in draft.reasons
            if job_id in snapshot.jobs and job_id not in snapshot.holding and job_id not in draft.started
        ]
        instants = [at_s for at_s in (*overdue, *draft.eligible_at_s) if at_s > snapshot.now_s]
        return min(instants, default=None)
