"""What a supervisor is told and what it leaves behind, as JSON files in the attempt's directory. Pure: no I/O."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class RankOrder:
    """One rank to start; ``env`` is added to the order's."""

    rank: int
    env: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class UnixUser:
    """The account that ranks run as, by its numbers."""

    uid: int
    gid: int
    group_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShimOrder:
    """One node's share of an attempt, as its supervisor needs it.

    Args:
        argv: Program and arguments of every rank; None when ranks are forked from the warm launcher.
        env: Added to the environment the supervisor was started with.
        user: Account the ranks run as; None leaves them the supervisor's.
        lock_paths: Lock files of virtual devices, held until nothing of the attempt is left.
        log_cap_bytes: Most that is kept of each rank's output.
        grace_s: Seconds from a polite stop to the kill, unless the stop says otherwise.
        failure_delay_s: Seconds from the first failing rank to the kill of the others, so that they can say why.
    """

    attempt_id: str
    argv: tuple[str, ...] | None
    cwd: str | None
    env: Mapping[str, str]
    ranks: tuple[RankOrder, ...]
    user: UnixUser | None = None
    lock_paths: tuple[str, ...] = ()
    log_cap_bytes: int
    grace_s: float
    failure_delay_s: float = 1.0

    def to_json(self) -> str:
        """Return the order as JSON."""
        return json.dumps(asdict(self), ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> ShimOrder:
        """Return the order that ``to_json`` wrote."""
        value = json.loads(text)
        value["argv"] = None if value["argv"] is None else tuple(value["argv"])
        value["ranks"] = tuple(RankOrder(**rank) for rank in value["ranks"])
        if (user := value["user"]) is not None:
            value["user"] = UnixUser(uid=user["uid"], gid=user["gid"], group_ids=tuple(user["group_ids"]))
        value["lock_paths"] = tuple(value["lock_paths"])
        return cls(**value)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitRecord:
    """How a node's share of an attempt ended, as its supervisor saw it.

    Args:
        exit_codes: By global rank; negative is minus the signal.
        first_failed_rank: The rank that failed first, before anything was killed.
        launch_error: Why the ranks could not be started.
        stop_mode: ``save`` or ``kill`` when a stop reached ranks that still ran.
        grace_expired: The polite stop did not end the ranks in time.
        oom_kill_count: Processes of this control group that the kernel killed for memory meanwhile.
        leftover_pids: Processes that would not die.
        gone_boot_s: When the last process was gone, on the host's boot clock.
    """

    attempt_id: str
    exit_codes: Mapping[int, int] = field(default_factory=dict)
    first_failed_rank: int | None = None
    launch_error: str | None = None
    stop_mode: str | None = None
    grace_expired: bool = False
    oom_kill_count: int = 0
    leftover_pids: tuple[int, ...] = ()
    gone_boot_s: float = 0.0

    def to_json(self) -> str:
        """Return the record as JSON."""
        return json.dumps(asdict(self), ensure_ascii=False)

    @classmethod
    def from_mapping(cls, value: Mapping[str, Any]) -> ExitRecord:
        """Return the record from its parsed JSON."""
        codes = {int(rank): int(code) for rank, code in value["exit_codes"].items()}
        return cls(**{**value, "exit_codes": codes, "leftover_pids": tuple(value["leftover_pids"])})
