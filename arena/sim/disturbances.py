"""What happens to nodes in a simulated cluster: failures, repairs, reclaims of lent nodes. Pure: no I/O, no clock.

Streams of (instant, event) in order of time, drawn lazily, so that a run may be as long as it likes.
"""

from __future__ import annotations

import hashlib
import heapq
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from arena.domain.cluster import NodeInfo
from arena.domain.events import Event, NodeDisconnected, NodeNoticeChanged, NodeRegistered, ReclaimNotice
from arena.domain.launch import NodeId
from arena.errors import UserError

Timed = tuple[float, Event]
FAILED = "it failed"
RECLAIMED = "it was taken back"


class Disturbance(Protocol):
    """Something that happens to nodes, each of which is there at the beginning."""

    def events(self, nodes: Sequence[NodeInfo], from_s: float) -> Iterator[Timed]:
        """Yield what happens, in order of time."""
        ...


def merged(disturbances: Sequence[Disturbance], nodes: Sequence[NodeInfo], from_s: float) -> Iterator[Timed]:
    """Yield what happens to nodes of all causes together.

    A node is lost with the first cause and back when the last is gone; what happens to it in between is not to be seen.
    """
    streams = [_named(index, one.events(nodes, from_s)) for index, one in enumerate(disturbances)]
    causes: dict[NodeId, set[int]] = {node.node_id: set() for node in nodes}
    lives = {node.node_id: 1 for node in nodes}
    going: dict[NodeId, tuple[float, str]] = {}
    for at_s, index, event in heapq.merge(*streams, key=lambda named: named[0]):
        match event:
            case NodeDisconnected(node_id=node_id):
                if not causes[node_id]:
                    yield at_s, replace(event, incarnation=str(lives[node_id]))
                causes[node_id].add(index)
            case NodeRegistered(info=info):
                causes[info.node_id].discard(index)
                if not causes[info.node_id]:
                    lives[info.node_id] += 1
                    notice = _left(going.get(info.node_id), at_s)
                    yield at_s, NodeRegistered(info=_reborn(info, lives[info.node_id]), notice=notice)
            case NodeNoticeChanged(node_id=node_id, notice=ReclaimNotice(within_s=within_s, why=why)):
                going[node_id] = at_s + within_s, why
                yield at_s, event
            case _:
                yield at_s, event


def _left(going: tuple[float, str] | None, now_s: float) -> ReclaimNotice | None:
    """Return what a node that comes back in its grace says of its going, which a registration without it would undo."""
    if going is None or going[0] <= now_s:
        return None
    return ReclaimNotice(within_s=going[0] - now_s, why=going[1])


def _named(index: int, events: Iterator[Timed]) -> Iterator[tuple[float, int, Event]]:
    return ((at_s, index, event) for at_s, event in events)


def _instant(timed: Timed) -> float:
    return timed[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Failures:
    """Nodes that break and are repaired, each by itself, after exponential times.

    Args:
        mean_uptime_s: Of one node, from registration to failure.
        mean_repair_s: From failure to registration.
        seed: Of the draws; each node has a stream of its own, so that a node more changes nothing for the others.
        gpu_type, zone: Only nodes of these; None: of all.
    """

    mean_uptime_s: float
    mean_repair_s: float
    seed: int
    gpu_type: str | None = None
    zone: str | None = None

    def __post_init__(self) -> None:
        if self.mean_uptime_s <= 0 or self.mean_repair_s <= 0:
            raise UserError("mean times between failures and repairs are greater than zero", fix="leave failures out")

    def events(self, nodes: Sequence[NodeInfo], from_s: float) -> Iterator[Timed]:
        """Yield losses and returns without end."""
        streams = [self._of_node(node, from_s) for node in nodes if self._breaks(node)]
        yield from heapq.merge(*streams, key=_instant)

    def _breaks(self, node: NodeInfo) -> bool:
        return self.gpu_type in {None, node.gpu_type} and self.zone in {None, node.zone}

    def _of_node(self, node: NodeInfo, from_s: float) -> Iterator[Timed]:
        name = int.from_bytes(hashlib.sha256(node.node_id.encode()).digest()[:8], "big")
        draws = np.random.default_rng([self.seed, name])
        at_s, life = from_s, 1
        while True:
            at_s += _drawn_s(draws, self.mean_uptime_s)
            yield at_s, _lost(node, life, FAILED)
            at_s += _drawn_s(draws, self.mean_repair_s)
            life += 1
            yield at_s, NodeRegistered(info=_reborn(node, life))


def _drawn_s(draws: np.random.Generator, mean_s: float) -> float:
    """Return an exponential time, in whole milliseconds: the last bits of a logarithm are the machine's own."""
    return max(round(float(draws.exponential(mean_s)), 3), 0.001)


@dataclass(frozen=True, slots=True, kw_only=True)
class Availability:
    """When a lent node (spot) comes and goes.

    Args:
        at_s: The instant of the change.
        is_there: Whether it is there from now on, or is asked back.
    """

    at_s: float
    node_id: NodeId
    is_there: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Reclaims:
    """Lent nodes by a trace of their availability.

    Args:
        changes: In order of time; what changes before the nodes register is so from the beginning, without grace.
        grace_s: From the word that a node is asked back, when it takes no more work and what runs there is saved, until
            it is gone.
        repeat_every_s: After so long the changes come again, and again; None: once.
    """

    changes: tuple[Availability, ...]
    grace_s: float
    repeat_every_s: float | None = None

    def events(self, nodes: Sequence[NodeInfo], from_s: float) -> Iterator[Timed]:
        """Yield warnings, losses and returns.

        Raises:
            UserError: The trace names a node that the cluster does not have.
        """
        known = {node.node_id: node for node in nodes}
        unknown = sorted({change.node_id for change in self.changes} - set(known))
        if unknown:
            raise UserError(
                f"the availability trace names node {unknown[0]}, which the cluster does not have",
                fix=f"its nodes are {', '.join(sorted(known)[:3])}, ...",
            )
        changes: dict[NodeId, list[Availability]] = {}
        for change in self.changes:
            changes.setdefault(change.node_id, []).append(change)
        streams = (self._of_node(known[name], changes[name], from_s) for name in sorted(changes))
        yield from heapq.merge(*streams, key=_instant)

    def _of_node(self, node: NodeInfo, changes: Sequence[Availability], from_s: float) -> Iterator[Timed]:
        is_there, life, gone_at_s = True, 1, -math.inf
        for at_s, comes in self._repeated(changes):
            if comes == is_there:
                continue
            is_there = comes
            if not is_there:
                gone_at_s = at_s + self.grace_s if at_s > from_s else from_s
                if gone_at_s > at_s > from_s:  # else it goes without a word
                    notice = ReclaimNotice(within_s=self.grace_s, why="asked back")
                    yield at_s, NodeNoticeChanged(node_id=node.node_id, notice=notice)
                yield gone_at_s, _lost(node, life, RECLAIMED)
            else:
                # Lent again within the grace: it comes back once it is gone.
                back_at_s, life = max(at_s, gone_at_s), life + 1
                yield back_at_s, NodeRegistered(info=_reborn(node, life))

    def _repeated(self, changes: Sequence[Availability]) -> Iterator[tuple[float, bool]]:
        yield from ((one.at_s, one.is_there) for one in changes)
        # A node that is always there, or never, would be looked at for ever without a word.
        if self.repeat_every_s is not None and len({one.is_there for one in changes}) > 1:
            for turn in itertools.count(1):
                yield from ((one.at_s + turn * self.repeat_every_s, one.is_there) for one in changes)


def _lost(node: NodeInfo, life: int, why: str) -> NodeDisconnected:
    return NodeDisconnected(node_id=node.node_id, incarnation=str(life), why=why)


def _reborn(node: NodeInfo, life: int) -> NodeInfo:
    return replace(node, incarnation=str(life))
