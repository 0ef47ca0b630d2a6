"""What has happened since this process started, in numbers that only grow. Pure: no I/O, no clock.

The state tells how things are; what came and went between two looks at it is only seen where batches become durable.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from arena.domain.cluster import NodeState
from arena.domain.launch import AttemptId, NodeId
from arena.domain.records import ENDED_JOB_STATES, AttemptRecord, EndKind, JobRecord, JobState, NodeEnd, NodeRecord
from arena.engine.attempts import NOT_THE_NODES_FAULT
from arena.engine.ports import Step
from arena.engine.state import ClusterState

_Number = TypeVar("_Number", int, float)

LAUNCH_FAULTS = ("node", "port", "config")
"""Why a launch failed on a node: it could start nothing, the port was taken, what the job wants cannot be started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """Counts since the start of the process.

    Args:
        ended_count_by_state: Jobs that ended, by how.
        restart_count: Attempts that failed once their processes were up, or were up too late, and whose jobs went on.
        launch_failure_count_by_fault: Launches that failed, each on each node that it failed on.
        preemption_count: Stops of jobs whose GPUs went to others, or whose node goes.
        reconfiguration_count: Changes of the GPUs or the plan of a running job.
        gpu_seconds: GPU time of the attempts that ended, each counted at its end.
        lost_node_count: Nodes that were taken for lost, each time.
    """

    submitted_count: int = 0
    ended_count_by_state: Mapping[JobState, int] = field(default_factory=lambda: dict.fromkeys(ENDED_JOB_STATES, 0))
    restart_count: int = 0
    launch_failure_count_by_fault: Mapping[str, int] = field(default_factory=lambda: dict.fromkeys(LAUNCH_FAULTS, 0))
    preemption_count: int = 0
    reconfiguration_count: int = 0
    gpu_seconds: float = 0.0
    lost_node_count: int = 0

    def after(self, before: ClusterState, steps: Sequence[Step]) -> Tally:
        """Return the counts after a batch.

        Args:
            before: The state that the batch began with.
        """
        jobs = {job.job_id: job for step in steps for job in step.jobs}
        nodes = {node.node_id: node for step in steps for node in step.nodes}
        attempts = {attempt.attempt_id: attempt for step in steps for attempt in step.attempts}
        if not jobs and not nodes and not attempts:
            return self
        pairs = [(before.jobs.get(job_id), job) for job_id, job in jobs.items()]
        ended = Counter(self.ended_count_by_state)
        ended.update(job.state for _, job in pairs if job.state.is_terminal)
        failures = Counter(self.launch_failure_count_by_fault)
        failures.update(fault for end in _new_ends(before.attempts, attempts) if (fault := _launch_fault(end)))
        return Tally(
            submitted_count=self.submitted_count + sum(old is None for old, _ in pairs),
            ended_count_by_state=ended,
            restart_count=self.restart_count + _gain(pairs, lambda job: job.restart_count),
            launch_failure_count_by_fault=failures,
            preemption_count=self.preemption_count + _gain(pairs, lambda job: job.preemption_count),
            reconfiguration_count=self.reconfiguration_count + _gain(pairs, lambda job: job.reconfiguration_count),
            gpu_seconds=self.gpu_seconds + _gain(pairs, lambda job: job.gpu_seconds),
            lost_node_count=self.lost_node_count + _lost_count(before.nodes, nodes),
        )


def _gain(pairs: Sequence[tuple[JobRecord | None, JobRecord]], value_of: Callable[[JobRecord], _Number]) -> _Number:
    """Return by how much a value of the jobs' records has grown in all."""
    # Job by job: a difference of sums could be below zero by a rounding, and a counter that falls reads as a restart.
    return sum(value_of(job) - (value_of(old) if old is not None else 0) for old, job in pairs)


def _new_ends(
    before: Mapping[AttemptId, AttemptRecord], attempts: Mapping[AttemptId, AttemptRecord]
) -> Iterator[NodeEnd]:
    for attempt_id, attempt in attempts.items():
        old = before.get(attempt_id)
        yield from attempt.ends[len(old.ends) if old is not None else 0 :]  # they are only ever added to


def _launch_fault(end: NodeEnd) -> str | None:
    """Return why a launch failed on a node, None where it did not fail there."""
    if end.error_code == "port":  # noticed by the agent, or only by a rank
        return "port"
    if end.kind is not EndKind.LAUNCH_FAILED:
        return None
    return "config" if end.error_code in NOT_THE_NODES_FAULT else "node"


def _lost_count(before: Mapping[NodeId, NodeRecord], nodes: Mapping[NodeId, NodeRecord]) -> int:
    lost = [node_id for node_id, node in nodes.items() if node.state is NodeState.LOST]
    return sum(node_id not in before or before[node_id].state is not NodeState.LOST for node_id in lost)
