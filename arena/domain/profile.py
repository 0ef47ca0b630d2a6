"""Measured times of a GPU type as frozen values: layers of a model, collectives, sends. Pure: no I/O, no clock."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from arena.domain.job import ModelSpec


class LinkKind(StrEnum):
    """What a message goes over: the links of a node, or the network between nodes."""

    NODE = "node"
    NETWORK = "network"


class MessageKind(StrEnum):
    """What was timed."""

    SEND = "send"
    ALL_REDUCE = "all_reduce"


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerTime:
    """One rank's seconds of a unit of the model.

    Args:
        unit: Position in the model: 0 is its beginning, 1 its first layer, ``layers + 1`` its ending.
        update_s: Of the optimizer, for the unit's parameters on that rank.
    """

    unit: int
    tp: int
    micro_batch_size: int
    forward_s: float
    backward_s: float
    update_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageTime:
    """Seconds of one message or collective of so many bytes on each rank."""

    kind: MessageKind
    link: LinkKind
    ranks: int
    size_bytes: float
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """What was measured on a GPU type.

    Args:
        gpu_type: Catalog key.
        model: Whose layers were timed; how many there are does not matter.
        precision: Theirs.
        includes_collectives: Whether times of split layers hold their tensor-parallel collectives.
    """

    gpu_type: str
    model: ModelSpec
    precision: str
    layers: tuple[LayerTime, ...]
    messages: tuple[MessageTime, ...] = ()
    includes_collectives: bool = True
