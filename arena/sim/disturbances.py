"""What happens to nodes in a simulated cluster: failures, repairs, reclaims of lent nodes. Pure: no I/O, no clock.

Streams of (instant, event) in order of time, drawn lazily, so that a run may be as long as it likes.
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from arena.domain.cluster import NodeInfo
from arena.domain.events import Event, NodeDisconnected, NodeDrainChanged, NodeRegistered
from arena.domain.launch import NodeId
from arena.errors import UserError

Timed = tuple[float, Event]


@dataclass(frozen=True, slots=True, kw_only=True)
class Failures:
    """Nodes that break and are repaired, each by itself, after exponential times.

    Args:
        mean_uptime_s: Of one node, from registration to failure.
        mean_repair_s: From failure to registration.
        seed: Of the draws; each node has a stream of its own, so that a node more changes nothing for the others.
    """

    mean_uptime_s: float
    mean_repair_s: float
    seed: int

    def __post_init__(self) -> None:
        if self.mean_uptime_s <= 0 or self.mean_repair_s <= 0:
            raise UserError("mean times between failures and repairs are greater than zero", fix="leave failures out")

    def events(self, nodes: Sequence[NodeInfo], from_s: float) -> Iterator[Timed]:
        """Yield losses and returns without end."""
        streams = [self._of_node(node, from_s) for node in nodes]
        yield from heapq.merge(*streams, key=lambda timed: timed[0])

    def _of_node(self, node: NodeInfo, from_s: float) -> Iterator[Timed]:
        name = int.from_bytes(hashlib.sha256(node.node_id.encode()).digest()[:8], "big")
        draws = np.random.default_rng([self.seed, name])
        at_s, life = from_s, 1
        while True:
            at_s += float(draws.exponential(self.mean_uptime_s))
            yield at_s, _lost(node, life, "it failed")
            at_s += float(draws.exponential(self.mean_repair_s))
            life += 1
            yield at_s, NodeRegistered(info=_reborn(node, life))


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
        changes: In order of time.
        grace_s: From the word that a node is asked back, when it takes no more work, until it is gone.
    """

    changes: tuple[Availability, ...]
    grace_s: float

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
        streams = (self._of_node(known[name], changes[name]) for name in sorted(changes))
        yield from heapq.merge(*streams, key=lambda timed: timed[0])

    def _of_node(self, node: NodeInfo, changes: Sequence[Availability]) -> Iterator[Timed]:
        is_there, life, free_at_s = True, 1, -np.inf
        for change in changes:
            if change.is_there == is_there:
                continue
            is_there = change.is_there
            if not is_there:
                yield change.at_s, NodeDrainChanged(node_id=node.node_id, drain=True, by="its lender", why="asked back")
                free_at_s = change.at_s + self.grace_s
                yield free_at_s, _lost(node, life, "it was taken back")
            else:
                # Lent again within the grace: it comes back once it is gone.
                back_at_s, life = max(change.at_s, free_at_s), life + 1
                yield back_at_s, NodeRegistered(info=_reborn(node, life))
                yield back_at_s, NodeDrainChanged(node_id=node.node_id, drain=False, by="its lender")


def _lost(node: NodeInfo, life: int, why: str) -> NodeDisconnected:
    return NodeDisconnected(node_id=node.node_id, incarnation=str(life), why=why)


def _reborn(node: NodeInfo, life: int) -> NodeInfo:
    return replace(node, incarnation=str(life))
