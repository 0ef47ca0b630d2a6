"""Which state a node is in, worked out from its facts. Pure: no I/O, no clock."""

from __future__ import annotations

from arena.domain.cluster import Device, NodeState
from arena.domain.launch import AttemptId, NodeId
from arena.domain.reason import Reason, ReasonCode, reason
from arena.domain.records import NodeRecord
from arena.domain.replacing import replace
from arena.engine.draft import Draft

CLEANING_PREFIX = "cleaning"
"""An agent whose problem text begins so is removing leftovers of an earlier life."""

LENDER = "its lender"
"""Who is named as the one who drains a node that is taken back."""

OUT_OF_SIGHT = "its node does not list it any more"
"""Why a device is dirty that its node stopped listing while a job had it or waited for it."""


def attempts_on(draft: Draft, node: NodeRecord) -> tuple[AttemptId, ...]:
    """Return the live attempts that hold devices of a node, sorted."""
    holders = draft.state.holders
    found = {holders[device.device_id] for device in node.info.devices if device.device_id in holders}
    return tuple(sorted(found))


def is_in_use(draft: Draft, node: NodeRecord) -> bool:
    """Tell whether a live attempt or a target names a node, also one that has ended there."""
    state = draft.state
    allocations = [attempt.allocation for attempt in state.attempts.values()]
    allocations += [job.target.allocation for job in state.jobs.values() if job.target is not None]
    return any(node.node_id in allocation.node_ids for allocation in allocations)


def settle_node(draft: Draft, node_id: NodeId) -> None:
    """Put a node into the state its facts call for; a lost node stays lost until it registers."""
    node = draft.state.nodes.get(node_id)
    if node is None or node.state is NodeState.LOST:
        return
    if _is_as_it_should_be(node):
        return
    state, cause = _state_of(draft, node)
    devices = tuple(device for device in node.info.devices if not _is_forgotten(draft, device))
    if (state, cause) != (node.state, node.state_cause) or len(devices) < len(node.info.devices):
        draft.put_node(replace(node, info=replace(node.info, devices=devices), state=state, state_cause=cause))


def _is_as_it_should_be(node: NodeRecord) -> bool:
    """Tell quickly of a node without trouble, which nearly all are, that nothing is to be done."""
    has_facts = node.condemned or node.info.problem or node.drain or node.notice or node.failed_starts
    if has_facts or node.quarantined_until_s is not None or node.state is not NodeState.READY or node.state_cause:
        return False
    return OUT_OF_SIGHT not in [device.dirty for device in node.info.devices]


def _is_forgotten(draft: Draft, device: Device) -> bool:
    """Tell whether a device is out of sight and nobody has it or waits for it any more."""
    state, name = draft.state, device.device_id
    return device.dirty == OUT_OF_SIGHT and name not in state.holders and name not in state.reserved


def _state_of(draft: Draft, node: NodeRecord) -> tuple[NodeState, str]:
    problem = node.info.problem or ""
    if node.condemned:
        return NodeState.CLEANING, f"ending leftover attempts {', '.join(node.condemned)}"
    if problem.startswith(CLEANING_PREFIX):
        return NodeState.CLEANING, problem
    leaving = node.leaving
    if leaving is not None:
        busy = len(attempts_on(draft, node))
        cause = f"{leaving.why} (by {leaving.by})"
        if leaving.until_s is not None:
            cause += f", empty within {leaving.until_s - leaving.at_s:.0f} s"
        return (
            (NodeState.DRAINING, f"{busy} attempt{'s' * (busy != 1)} left, {cause}")
            if busy
            else (
                NodeState.DRAINED,
                cause,
            )
        )
    if problem:
        return NodeState.DEGRADED, problem
    if node.quarantined_until_s is not None and node.quarantined_until_s > draft.now_s:
        if len(node.failed_starts) + node.launch_failure_count >= draft.config.quarantine_after:
            return NodeState.QUARANTINED, _told_of_failed_starts(node)
        return NodeState.QUARANTINED, f"launches failed in a row, last: {node.last_launch_error}"
    return NodeState.READY, _told_of_failed_starts(node)


def _told_of_failed_starts(node: NodeRecord) -> str:
    """Return who failed here before a first step; of what, everybody is told only of jobs of their own."""
    names = [str(one.job_id) for one in node.failed_starts]
    if not names:
        return ""
    return f"job{'s' * (len(names) != 1)} {', '.join(names)} failed here before the first step"


def cause_of(node: NodeRecord, now_s: float) -> Reason:
    """Return why a node takes no work any more."""
    leaving = node.leaving
    assert leaving is not None
    if leaving.until_s is None:
        return reason(ReasonCode.NODE_DRAINING, node=str(node.node_id), why=leaving.why)
    code = ReasonCode.NODE_RECLAIMED if leaving is node.notice else ReasonCode.NODE_EMPTIED
    left_s = max(leaving.until_s - now_s, 0.0)
    return reason(code, node=str(node.node_id), why=leaving.why, by=leaving.by, left_s=left_s)
