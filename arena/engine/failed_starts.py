"""Failures before the first step: which node a job is kept from, and what a node answers for. Pure: no I/O, no clock.

A broken node that fails jobs quickly is free again before any other, and would get each of them back, and the next one.
A broken job fails wherever it is. One that fails on two nodes in the same way is itself to blame, and so are several of
one user that do.
"""

from __future__ import annotations

from collections.abc import Sequence

from arena.domain.failed_start import FAILED_STARTS_KEPT, FailedStart
from arena.domain.launch import NodeId
from arena.domain.records import AttemptRecord, EndKind, JobRecord, NodeRecord
from arena.domain.replacing import replace
from arena.engine.draft import Draft
from arena.engine.node_state import settle_node

PROGRAM_START_S = 60.0
"""A program that has told of no step counts as one that was still starting when it fails within so many seconds."""

_NOT_OF_A_NODE = frozenset({"port", "config", "data", "checkpoint"})
"""Worker errors that say nothing about the node."""


def remembered(draft: Draft, job: JobRecord, attempt: AttemptRecord, outcome: EndKind) -> JobRecord:
    """Return a job as it is after a failed attempt; if that had made no step, its node has it held against it.

    Args:
        job: Its record, not put into the state yet.
    """
    failed = _failed(draft, job, attempt, outcome)
    # Failed launches are counted by themselves, and how a program ends is nobody's affair but its user's.
    is_counted = job.spec.command is None and outcome is not EndKind.LAUNCH_FAILED
    for one in failed:
        if is_counted and "oom" not in [end.error_code for end in attempt.ends]:
            _hold_against_its_node(draft, job, one)
    if not failed:
        return job
    nodes, times = {one.node_id for one in failed}, {one.node_id: one.times for one in job.failed_starts}
    failed = tuple(replace(one, times=times.get(one.node_id, 0) + 1) for one in failed)
    kept = (*(one for one in job.failed_starts if one.node_id not in nodes), *failed)
    return replace(job, failed_starts=kept[-FAILED_STARTS_KEPT:])


def forget_on(draft: Draft, node_ids: Sequence[NodeId]) -> None:
    """Hold nothing against nodes any more on which a first step was made; a quarantine goes on till its end."""
    for node_id in node_ids:
        node = draft.state.nodes.get(node_id)
        if node is not None and node.failed_starts and node.quarantined_until_s is None:
            _put(draft, node, ())


def _failed(draft: Draft, job: JobRecord, attempt: AttemptRecord, outcome: EndKind) -> tuple[FailedStart, ...]:
    if not _was_starting(draft, job, attempt) or outcome is EndKind.LOST:
        return ()
    ends = [end for end in attempt.ends if end.kind in {EndKind.FAILED, EndKind.LAUNCH_FAILED}]
    if ends and ends[0].error_code in _NOT_OF_A_NODE:
        return ()
    # The others were killed for it, or died of it.
    nodes = tuple(end.node_id for end in ends[:1]) or _silent(attempt)
    error = (ends[0].message if ends else "") or attempt.error or outcome.value
    return tuple(
        FailedStart(job_id=job.job_id, user=job.user, node_id=node_id, error=error, at_s=draft.now_s)
        for node_id in nodes
    )


def _was_starting(draft: Draft, job: JobRecord, attempt: AttemptRecord) -> bool:
    if job.spec.command is None:
        return attempt.first_step_at_s is None
    up_at_s = attempt.started_at_s
    return attempt.last_step == 0 and (up_at_s is None or draft.now_s < up_at_s + PROGRAM_START_S)


def _silent(attempt: AttemptRecord) -> tuple[NodeId, ...]:
    """Return the nodes whose ranks were too late, as far as one can tell."""
    nodes = attempt.allocation.node_ids
    return nodes if len(nodes) == 1 else tuple(name for name in nodes if name not in attempt.started_nodes)


def _hold_against_its_node(draft: Draft, job: JobRecord, failed: FailedStart) -> None:
    node = draft.state.nodes.get(failed.node_id)
    elsewhere = [one.node_id for one in job.failed_starts if one.node_id != failed.node_id and one.way == failed.way]
    if elsewhere:
        for node_id in (*elsewhere, failed.node_id):
            _take_back(draft, job, node_id)
    elif node is not None and not _is_way_of_its_user(draft, failed):
        limit = draft.config.quarantine_after
        # One that an admin has taken back out of its quarantine begins anew.
        before = () if node.quarantined_until_s is None and len(node.failed_starts) >= limit else node.failed_starts
        held = (*(one for one in before if one.job_id != job.job_id), failed)[-limit:]
        _put(draft, node, held)
        node = draft.state.nodes[failed.node_id]
        is_too_often = len(held) + node.launch_failure_count >= limit
        if is_too_often and node.quarantined_until_s is None and _has_others(draft, node):
            draft.put_node(replace(node, quarantined_until_s=draft.now_s + draft.config.quarantine_s))
            settle_node(draft, node.node_id)


def _is_way_of_its_user(draft: Draft, failed: FailedStart) -> bool:
    """Tell whether jobs of the same user have failed so on another node: many with one mistake close no second one."""
    return any(
        one.node_id != failed.node_id and one.user == failed.user and one.way == failed.way
        for node in draft.state.nodes.values()
        for one in node.failed_starts
    )


def _has_others(draft: Draft, node: NodeRecord) -> bool:
    """Tell whether there is any other node to go to: in quarantine the last one would help nobody."""
    return any(other.is_usable for other in draft.state.nodes.values() if other.node_id != node.node_id)


def _take_back(draft: Draft, job: JobRecord, node_id: NodeId) -> None:
    node = draft.state.nodes.get(node_id)
    if node is None or node.quarantined_until_s is not None:
        return
    held = tuple(one for one in node.failed_starts if one.job_id != job.job_id)
    if held != node.failed_starts:
        _put(draft, node, held)


def _put(draft: Draft, node: NodeRecord, held: tuple[FailedStart, ...]) -> None:
    draft.put_node(replace(node, failed_starts=held))
    settle_node(draft, node.node_id)
