"""What the end of a node's share was, from its supervisor's last word and its workers' reports. Pure: no I/O."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from arena.domain.launch import DeviceId, Finished, NodeId, Stopped, WorkerError, WorkerReport
from arena.domain.records import EndKind, NodeEnd
from arena_agent.shim.order import ExitRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class EndEvidence:
    """All that is known of a share that is gone.

    Args:
        exit: The supervisor's last word; None when it died without one.
        reports: What the workers said.
        is_command: A user's program, whose exit code alone tells whether it finished.
        has_rank_zero: Whether rank 0, which reports for all, ran here.
        was_given_up: Whether an agent gave the attempt up before its supervisor came, so that nothing of it ever ran.
        supervisor_log: What the supervisor itself printed: nothing, unless it failed.
        stop_mode: How the agent was asked to stop it, None if it was not.
        log_tails: Last output by rank.
        dirty: Devices that are not free, with the reason.
    """

    node_id: NodeId
    exit: ExitRecord | None
    reports: Sequence[WorkerReport]
    is_command: bool
    has_rank_zero: bool
    stop_mode: str | None
    was_given_up: bool = False
    supervisor_log: str = ""
    log_tails: Mapping[int, str] = field(default_factory=dict)
    dirty: Mapping[DeviceId, str] = field(default_factory=dict)


def node_end(evidence: EndEvidence) -> NodeEnd:
    """Return the end of a share: a result that is durable counts, whatever happened to the processes after it."""
    if any(isinstance(report, Finished) for report in evidence.reports):
        return _end(evidence, EndKind.FINISHED)
    record = evidence.exit
    if record is None:
        return _end_without_word(evidence)
    if record.launch_error is not None:
        # A program that cannot be started is its job's fault, an interpreter of ours that cannot be is the node's.
        code = "config" if evidence.is_command else ""
        return _end(evidence, EndKind.LAUNCH_FAILED, code=code, message=record.launch_error)
    if record.stop_mode is not None:
        return _stopped_end(evidence, record)
    failed = failed_rank(record)
    if failed is not None:
        return _failed_end(evidence, record, failed)
    if evidence.is_command or not evidence.has_rank_zero:
        return _end(evidence, EndKind.FINISHED)
    if any(isinstance(report, Stopped) for report in evidence.reports):
        return _end(evidence, EndKind.STOPPED)  # ranks on another node were asked, and all agreed on the step
    return _end(evidence, EndKind.FAILED, message="the ranks exited without finishing the job")


def failed_rank(record: ExitRecord) -> int | None:
    """Return the rank to blame: the first that failed, else the lowest that did not exit with 0."""
    if record.first_failed_rank is not None:
        return record.first_failed_rank
    return min((rank for rank, code in record.exit_codes.items() if code != 0), default=None)


def describe_exit(rank: int, code: int) -> str:
    """Return an exit code as people read it: ``rank 2 was killed by signal 9``."""
    if code >= 0:
        return f"rank {rank} exited with code {code}"
    try:
        name = f" ({signal.Signals(-code).name})"
    except ValueError:
        name = ""
    return f"rank {rank} was killed by signal {-code}{name}"


def _stopped_end(evidence: EndEvidence, record: ExitRecord) -> NodeEnd:
    said_so = any(isinstance(report, Stopped) for report in evidence.reports)
    obeyed = all(code == 0 for code in record.exit_codes.values())
    if record.stop_mode == "save" and obeyed and (said_so or evidence.is_command or not evidence.has_rank_zero):
        return _end(evidence, EndKind.STOPPED)
    if record.grace_expired:
        return _end(evidence, EndKind.KILLED, message="killed: the ranks had not saved and exited within the grace")
    if record.stop_mode == "kill":
        return _end(evidence, EndKind.KILLED, message="killed on request")
    failed = failed_rank(record)
    if failed is None:
        return _end(evidence, EndKind.KILLED, message="the ranks exited on request without saying what they saved")
    code = record.exit_codes[failed]
    if code == -signal.SIGTERM:
        return _end(evidence, EndKind.KILLED, message="ended by the request to stop, without saving")
    if evidence.is_command and not _ran_out_of_memory(record, code):
        # A shell ends with 143, a launcher of ranks with 1: what a foreign program makes of the request is no failure.
        return _end(evidence, EndKind.KILLED, message=f"{describe_exit(failed, code)}, asked to stop")
    return _failed_end(evidence, record, failed)


def _ran_out_of_memory(record: ExitRecord, code: int) -> bool:
    return code == -signal.SIGKILL and record.oom_kill_count > 0


def _failed_end(evidence: EndEvidence, record: ExitRecord, rank: int) -> NodeEnd:
    code = record.exit_codes[rank]
    said = next((report for report in evidence.reports if isinstance(report, WorkerError)), None)
    tail = evidence.log_tails.get(said.rank if said else rank, "")
    if said is not None:
        message = f"rank {said.rank}: {said.message}"
        return _end(evidence, EndKind.FAILED, message=message, code=said.code, tail=tail)
    if _ran_out_of_memory(record, code):
        message = f"{describe_exit(rank, code)}: the memory limit of the node's control group was hit"
        return _end(evidence, EndKind.FAILED, message=message, code="oom", tail=tail)
    return _end(evidence, EndKind.FAILED, message=describe_exit(rank, code), tail=tail)


def _end_without_word(evidence: EndEvidence) -> NodeEnd:
    if evidence.stop_mode is not None:
        return _end(evidence, EndKind.KILLED, message="killed on request")
    if evidence.was_given_up:  # a launch that may be repeated, also of a program that may not run twice
        return _end(evidence, EndKind.LAUNCH_FAILED, message="the agent was restarted before the processes came up")
    tail = evidence.log_tails[min(evidence.log_tails)] if evidence.log_tails else ""
    message = "the processes are gone and nobody saw them exit"
    return _end(evidence, EndKind.FAILED, message=message, tail=evidence.supervisor_log or tail)


def _end(evidence: EndEvidence, kind: EndKind, *, message: str = "", code: str = "", tail: str = "") -> NodeEnd:
    return NodeEnd(
        node_id=evidence.node_id,
        kind=kind,
        exit_codes=evidence.exit.exit_codes if evidence.exit else {},
        error_code=code,
        message=message,
        log_tail=tail,
        dirty=evidence.dirty,
    )
