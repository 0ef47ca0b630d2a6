"""Discretised least attained service in two dimensions (Tiresias, NSDI'19, section 3.2). Pure: no I/O, no clock.

Jobs that have had few GPU-seconds come before those that have had many; within a queue they come in order of
submission, so that jobs of one queue do not displace each other in turns. Nothing is known of their lengths.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

from arena.domain.job import JobId
from arena.policies.base import Decision, Snapshot
from arena.policies.lengths import attained_gpu_s
from arena.policies.ranked import by_rank, contenders

ROUNDING_S = 1e-3
"""So much later than worked out, a job has passed its limit whatever was rounded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiresias:
    """The ``tiresias`` policy.

    Args:
        first_gpu_s, second_gpu_s: GPU-seconds after which a job falls into the second and into the third queue.
    """

    first_gpu_s: float = 3600.0
    second_gpu_s: float = 36_000.0
    name: str = "tiresias"
    version: str = "2"
    serves_waiting_only: bool = True

    def decide(self, snapshot: Snapshot) -> Decision:
        """Give devices by attained service, and look again when the next running job falls into another queue."""
        limits = (self.first_gpu_s, self.second_gpu_s)

        def rank(job_id: JobId) -> tuple[int, int, tuple[int, float, JobId]]:
            job = snapshot.jobs[job_id]
            return -job.spec.priority, bisect_right(limits, attained_gpu_s(snapshot, job_id)), job.queue_key

        decision = by_rank(snapshot, sorted(contenders(snapshot), key=rank))
        if not snapshot.waiting:
            return decision
        falls = (at_s for job_id in snapshot.holding for at_s in self._falls_at_s(snapshot, job_id, limits))
        return Decision(
            choices=decision.choices,
            reasons=decision.reasons,
            look_again_at_s=min((at_s for at_s in falls if at_s > snapshot.now_s), default=None),
        )

    def _falls_at_s(self, snapshot: Snapshot, job_id: JobId, limits: tuple[float, float]) -> list[float]:
        """Return when a running job will have had as much as each limit it has not passed yet."""
        had, count = attained_gpu_s(snapshot, job_id), snapshot.holding[job_id].group.gpu_count
        return [snapshot.now_s + (limit - had) / count + ROUNDING_S for limit in limits if limit > had]
