"""How the program that trains does what a plan leaves open. Pure: no I/O, no clock."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Attention(StrEnum):
    """How attention weights are computed."""

    FLASH = "flash"
    """In one kernel that never stores the scores and skips what a causal mask hides."""
    STORED = "stored"
    """Two batched products with the scores stored between them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Implementation:
    """What differs between training programs; the defaults describe Arena's own worker.

    Args:
        drops_weights: Attention with stored scores has dropout.
        gradient_bytes: Of an element when gradients are reduced; None where they are reduced as they are kept.
        kept_gradient_bytes: Of all copies of an element of the gradients together; None as the worker keeps them.
        buffer_bytes: Of buffers in which gradients and weights are put together for collectives.
        kept_share_bytes: Of copies of an element of the gradients that a rank has of its share alone (ZeRO-1).
        logits_bytes: Of all copies of a logit at once, as a fused loss has them; None as the worker has them.
        keeps_every_other_product: Selective recomputation keeps the attention and every other product of a layer, in
            the order in which they run, and makes all else again.
        overlaps_gradients: Gradients are reduced while the last micro-batch still runs backward.
        reduces_whole: Gradients are summed on all replicas under ZeRO-1 as well, where each needs its share alone.
        overlaps_shards: Sharded weights are gathered, and under ZeRO-2 and 3 gradients scattered, while others are
            worked on.
        collectives_per_unit: Collectives in which a layer is gathered; 1 where its weights lie together.
        splits_sends: Tensor-parallel ranks send a part each to the next stage, which gathers it inside its node
            (Narayanan et al. 2021, section 4.1), instead of the whole each.
        sends_in_turn: A rank sends or receives one message after the other and computes nothing meanwhile, so that
            each message holds up both ends; else what goes on and what comes back pass each other.
        weight_passes: Reads and writes of each weight in a pass over a micro-batch, beside those of the products; many
            where convolutions sum their gradient up in parts (algorithms that nobody tuned).
        waits_for_kernels: The host waits for each kernel before it launches the next one.
        recomputes_core_only: Selective recomputation leaves the projections of attention alone.
        shard_ranks_max: Most replicas over which ZeRO divides state; None divides over all.
    """

    attention: Attention = Attention.FLASH
    drops_weights: bool = False
    gradient_bytes: float | None = None
    kept_gradient_bytes: float | None = None
    buffer_bytes: float = 0.0
    kept_share_bytes: float = 0.0
    logits_bytes: float | None = None
    keeps_every_other_product: bool = False
    overlaps_gradients: bool = False
    reduces_whole: bool = False
    overlaps_shards: bool = False
    collectives_per_unit: int = 1
    splits_sends: bool = False
    sends_in_turn: bool = False
    weight_passes: float = 0.0
    waits_for_kernels: bool = False
    recomputes_core_only: bool = False
    shard_ranks_max: int | None = None


WORKER = Implementation()
"""Arena's own worker."""
