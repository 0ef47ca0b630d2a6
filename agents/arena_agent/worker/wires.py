"""How activations and their gradients travel between neighbouring chunks of the pipeline.

Neighbours may have unequal tensor-parallel degrees and unequal replicas. Whole activations come from one of the
sender's ranks; runs of the sequence come from whichever ranks hold them. Receivers post in the order in which a
sender sends, so that no tags are needed, and one message ahead, so that it can travel while they compute.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from arena.domain.micro_batches import MicroBatch
from arena.domain.parallel import ParallelPlan
from arena.domain.parameters import boundary_shape
from arena.domain.schedule import Action, Orders, Pass
from arena_agent.worker.groups import Groups
from arena_agent.worker.placement import Placement

_SEQUENCE_DIM = 1

Positions = dict[tuple[int, int], dict[Action, int]]
"""Where each action stands in the order of its (stage, replica)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """Part of what one rank sends another for one pass.

    Args:
        cause: The sender's action whose result it is.
        sent_at, needed_at: Positions of that action among the sender's, and of the one that needs it among the
            receiver's.
        source, destination: Ranks.
        run: Positions of the sequence; None for all there is.
    """

    cause: Action
    sent_at: int
    needed_at: int
    source: int
    destination: int
    run: range | None


def routes(sender_tp: int, receiver_tp: int, length: int | None) -> Iterator[tuple[int, int, range | None]]:
    """Yield which of the sender's ranks sends what to which of the receiver's: (from, to, run).

    Args:
        sender_tp, receiver_tp: Tensor-parallel degrees.
        length: Positions of the sequence where ranks hold runs of it; None where each has everything.
    """
    for receiver in range(receiver_tp):
        if length is None:
            yield receiver % sender_tp, receiver, None
            continue
        for sender in range(sender_tp):
            start = max(length * sender // sender_tp, length * receiver // receiver_tp)
            stop = min(length * (sender + 1) // sender_tp, length * (receiver + 1) // receiver_tp)
            if start < stop:
                yield sender, receiver, range(start, stop)


@dataclass(frozen=True, slots=True, kw_only=True)
class Itinerary:
    """All messages of a step that concern a rank.

    Args:
        sent: By the action that causes them.
        awaited: By the action that needs them.
        order: By (source, direction), in the sender's order.
    """

    sent: dict[Action, tuple[Message, ...]]
    awaited: dict[Action, tuple[Message, ...]]
    order: dict[tuple[int, Pass], tuple[Message, ...]]

    def ends(self) -> Iterator[tuple[Pass, int, int]]:
        """Yield what travels, from which rank, to which, for each message."""
        for messages in (*self.sent.values(), *self.awaited.values()):
            for message in messages:
                yield message.cause.direction, message.source, message.destination


def itinerary(placement: Placement, batches: Sequence[MicroBatch], orders: Orders, rank: int) -> Itinerary:
    """Return a rank's messages. Pure."""
    sent: dict[Action, list[Message]] = {}
    awaited: dict[Action, list[Message]] = {}
    order: dict[tuple[int, Pass], list[Message]] = {}
    neighbours = _neighbours(placement, placement.ranks[rank].stage)
    positions = {place: {action: at for at, action in enumerate(actions)} for place, actions in orders.items()}
    for (stage, _), actions in sorted(orders.items()):
        if stage not in neighbours:
            continue
        for cause in actions:
            for effect, message in _messages(placement, batches, positions, stage, cause):
                if message.source == rank:
                    sent.setdefault(cause, []).append(message)
                if message.destination == rank:
                    awaited.setdefault(effect, []).append(message)
                    order.setdefault((message.source, cause.direction), []).append(message)
    return Itinerary(
        sent={key: tuple(value) for key, value in sent.items()},
        awaited={key: tuple(value) for key, value in awaited.items()},
        order={key: tuple(value) for key, value in order.items()},
    )


def _neighbours(placement: Placement, stage: int) -> set[int]:
    pp = placement.plan.pp
    return {stage, (stage - 1) % pp, (stage + 1) % pp}


def _messages(
    placement: Placement, batches: Sequence[MicroBatch], positions: Positions, stage: int, cause: Action
) -> Iterator[tuple[Action, Message]]:
    """Yield the messages of a stage's action with the action that needs each."""
    chunk = cause.chunk + (1 if cause.direction is Pass.FORWARD else -1)
    if not 0 <= chunk < len(placement.chunks):
        return
    plan = placement.plan
    here, there = (stage, batches[cause.micro_batch].replicas[stage]), _place(plan, batches, chunk, cause.micro_batch)
    length = placement.spec.sequence_length if plan.sequence_parallel else None
    degrees = [plan.stages[at].replicas[replica].tp for at, replica in (here, there)]
    effect = Action(cause.direction, chunk, cause.micro_batch)
    for sender, receiver, run in routes(degrees[0], degrees[1], length):
        message = Message(
            cause=cause,
            sent_at=positions[here][cause],
            needed_at=positions[there][effect],
            source=placement.rank_of(*here, sender),
            destination=placement.rank_of(*there, receiver),
            run=run,
        )
        yield effect, message


def _place(plan: ParallelPlan, batches: Sequence[MicroBatch], chunk: int, micro_batch: int) -> tuple[int, int]:
    """Return the stage and the replica that take a micro-batch through a chunk."""
    stage = chunk % plan.pp
    return stage, batches[micro_batch].replicas[stage]


@dataclass(slots=True, kw_only=True)
class Wires:
    """A rank's ends of the wires, for one step.

    Args:
        placement: The layout.
        batches: The step's micro-batches.
        plan: The rank's messages.
        rank: This rank.
        groups: Process groups.
        dtype, device: Of activations.
    """

    placement: Placement
    batches: Sequence[MicroBatch]
    plan: Itinerary
    rank: int
    groups: Groups
    dtype: torch.dtype
    device: torch.device
    _waiting: dict[tuple[int, Pass], deque[Message]] = field(default_factory=dict)
    _posted: dict[Message, tuple[Tensor, Any]] = field(default_factory=dict)
    _sending: list[tuple[Message, Tensor, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._waiting = {channel: deque(messages) for channel, messages in self.plan.order.items()}

    def send(self, cause: Action, x: Tensor) -> None:
        """Send a pass's result to whoever needs it, without waiting."""
        for message in self.plan.sent.get(cause, ()):
            part = x if message.run is None else self._own_part(x, message.run)
            part = part.detach().contiguous()
            work = dist.isend(part, message.destination, group=self._group(message))
            self._sending.append((message, part, work))

    def receive(self, effect: Action) -> Tensor:
        """Wait for what a pass needs."""
        parts: list[tuple[int, Tensor]] = []
        for message in self.plan.awaited[effect]:
            channel = (message.source, message.cause.direction)
            while message not in self._posted:
                self._post(channel)
            buffer, work = self._posted.pop(message)
            self._post(channel)
            work.wait()
            self._forget_received_by(message)
            parts.append((message.run.start if message.run else 0, buffer))
        ordered = [part for _, part in sorted(parts, key=lambda item: item[0])]
        return ordered[0] if len(ordered) == 1 else torch.cat(ordered, dim=_SEQUENCE_DIM)

    def finish(self) -> None:
        """Wait until everything that was sent has left."""
        for _, _, work in self._sending:
            work.wait()
        self._sending.clear()

    def _forget_received_by(self, answer: Message) -> None:
        """Let go of what the sender of a message had used before: gloo says that a send is done only when asked."""
        under_way, self._sending = self._sending, []
        for message, part, work in under_way:
            if message.destination == answer.source and message.needed_at < answer.sent_at:
                work.wait()
            else:
                self._sending.append((message, part, work))

    def _post(self, channel: tuple[int, Pass]) -> None:
        if not self._waiting[channel]:
            return
        message = self._waiting[channel].popleft()
        buffer = torch.empty(self._shape(message), dtype=self.dtype, device=self.device)
        work = dist.irecv(buffer, message.source, group=self._group(message))
        self._posted[message] = (buffer, work)

    def _own_part(self, x: Tensor, run: range) -> Tensor:
        at = self.placement.ranks[self.rank]
        first = self.placement.spec.sequence_length * at.tp_index // at.tp
        return x[:, run.start - first : run.stop - first]

    def _shape(self, message: Message) -> tuple[int, ...]:
        """Return the shape of a message: activations after the chunk that caused it, or gradients before it."""
        chunk = self.placement.chunks[message.cause.chunk]
        layer = chunk.layers.stop if message.cause.direction is Pass.FORWARD else chunk.layers.start
        shape = boundary_shape(self.placement.spec, layer)
        if message.run is not None:
            shape = (len(message.run), *shape[1:])
        return (self.batches[message.cause.micro_batch].row_count, *shape)

    def _group(self, message: Message) -> dist.ProcessGroup:
        return self.groups.wires[message.cause.direction, message.source < message.destination]
