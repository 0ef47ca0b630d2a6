"""What the scheduler has not been told yet on the present stream: the agent's state against what was said."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from arena.domain.events import (
    AttemptEnded,
    AttemptStarted,
    DevicesChanged,
    EndedAttempt,
    HeldAttempt,
    NodeNoticeChanged,
    WorkerReported,
)
from arena.domain.launch import AttemptId
from arena_agent.devices import Inventory
from arena_agent.files import StateFiles
from arena_agent.link import News
from arena_agent.machine import AgentState, HeldShare
from arena_agent.notice import Notice
from arena_agent.reports import ReportTail

_REPEAT_END_S = 5.0


class Newsroom:
    """Keeps what was said.

    Args:
        files: The agent's files.
        boot_s: The host's boot clock.
    """

    def __init__(self, files: StateFiles, boot_s: Callable[[], float]) -> None:
        self._files = files
        self._boot_s = boot_s
        self._tails: dict[AttemptId, ReportTail] = {}
        self._started: set[AttemptId] = set()
        self._end_said_s: dict[AttemptId, float] = {}
        self._inventory: Inventory | None = None
        self._notice: Notice | None = None

    def begin(
        self, state: AgentState, inventory: Inventory, notice: Notice | None
    ) -> tuple[tuple[HeldAttempt, ...], tuple[EndedAttempt, ...]]:
        """Begin a stream: return what the registration says of the shares.

        A share that is over but has reports to deliver counts as held, so that its end does not overtake them.
        """
        self._tails = {name: self._tail(name) for name in state.shares}
        for tail in self._tails.values():
            tail.rewind()
        over = [share for share in state.ended if self._tails[share.attempt_id].is_drained]
        names = {share.attempt_id for share in over}
        held = [share for _, share in sorted(state.shares.items()) if share.attempt_id not in names]
        self._started = {share.attempt_id for share in held if share.is_started}
        self._end_said_s = dict.fromkeys(names, self._boot_s())
        self._inventory = inventory
        self._notice = notice
        return (
            tuple(map(_held, held)),
            tuple(EndedAttempt(attempt_id=share.attempt_id, end=share.end) for share in over if share.end),
        )

    def collect(self, state: AgentState, inventory: Inventory, notice: Notice | None) -> Iterator[News]:
        """Yield what is new: whether the node goes, devices, of each share that it is up, its reports, its end."""
        if notice != self._notice:
            self._notice = notice
            word = notice.left(self._boot_s()) if notice is not None else None
            yield NodeNoticeChanged(node_id=state.node_id, notice=word)
        if inventory != self._inventory:
            self._inventory = inventory
            yield DevicesChanged(node_id=state.node_id, devices=inventory.devices, problem=inventory.problem)
        for _, share in sorted(state.shares.items()):
            yield from self._about(state, share)

    def forget(self, attempt_id: AttemptId) -> None:
        """Drop what is known of an acknowledged attempt."""
        self._tails.pop(attempt_id, None)
        self._started.discard(attempt_id)
        self._end_said_s.pop(attempt_id, None)

    def _about(self, state: AgentState, share: HeldShare) -> Iterable[News]:
        attempt_id = share.attempt_id
        if share.is_started and attempt_id not in self._started:
            self._started.add(attempt_id)
            yield AttemptStarted(node_id=state.node_id, attempt_id=attempt_id)
        tail = self._tails.setdefault(attempt_id, self._tail(attempt_id))
        for report in tail.read_new():
            yield WorkerReported(node_id=state.node_id, attempt_id=attempt_id, report=report)
        if share.end is None:
            return
        if not tail.is_drained:
            tail.skip_rest()
            return
        said_s = self._end_said_s.get(attempt_id)
        if said_s is None or self._boot_s() - said_s >= _REPEAT_END_S:
            self._end_said_s[attempt_id] = self._boot_s()
            yield AttemptEnded(node_id=state.node_id, attempt_id=attempt_id, end=share.end)
            if share.end.dirty:  # the scheduler now holds these devices dirty: tell it again what they are
                self._inventory = None

    def _tail(self, attempt_id: AttemptId) -> ReportTail:
        return self._tails.get(attempt_id) or ReportTail(self._files.attempt(attempt_id), self._boot_s)


def _held(share: HeldShare) -> HeldAttempt:
    return HeldAttempt(attempt_id=share.attempt_id, started=share.is_started, left_for=share.left_for)
