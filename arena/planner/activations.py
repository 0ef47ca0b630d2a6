"""What the backward pass needs kept of each part of a model, tensor by tensor. Pure: no I/O, no clock.

Element counts are per sample. They follow from the operators that the worker calls: a matrix product keeps its input,
a norm its input and its statistics, GELU and SiLU their input, ReLU its output, a product of two its factors, fused
attention (without dropout) queries, keys, values, output and the log-sum of its scores; with attention dropout the
scores are kept. A tensor that two operators need is kept once. Sequence parallelism (Korthikanti et al. 2022) divides
what stands between split layers, but not what a split layer gathers from all ranks: that is kept whole.

Symbols: s positions, h hidden, k key/value width, f feed-forward width, H heads, E experts, c experts per token.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import IntEnum

from arena.domain.job import RMS_NORM_FAMILIES, SWIGLU_FAMILIES, ModelFamily, ModelSpec
from arena.domain.parallel import Recompute
from arena.domain.parameters import ResidualBlock

Modes = frozenset[Recompute]
ALWAYS: Modes = frozenset(Recompute)
UNLESS_FULL: Modes = frozenset({Recompute.NONE, Recompute.SELECTIVE})
ONLY_NONE: Modes = frozenset({Recompute.NONE})
ONLY_RECOMPUTED: Modes = frozenset({Recompute.SELECTIVE, Recompute.FULL})

_FLOAT, _INDEX, _FLAG = 4, 8, 1
_SCORES = frozenset({"softmax of scores", "mask of weights", "dropped weights"})
RANDOM_BYTES = 24
"""Bytes in use at once for each element that dropout draws a number for: three int64 values of its hash."""


class Spread(IntEnum):
    """How the ranks of a tensor-parallel group share a tensor."""

    SPLIT = 0
    """Each has a part."""
    SEQUENCE = 1
    """Each has a run of the sequence under sequence parallelism, else all of it."""
    WHOLE = 2
    """Each has all of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """A tensor that a forward pass leaves for the backward pass.

    Args:
        elements: Per sample, over all ranks of a tensor-parallel group.
        element_bytes: None where it is in the working precision.
        modes: Under which recomputation settings it is kept.
    """

    name: str
    elements: float
    spread: Spread
    element_bytes: int | None = None
    modes: Modes = ALWAYS

    @property
    def is_score(self) -> bool:
        """Whether it is as large as the attention scores."""
        return self.name in _SCORES


@dataclass(frozen=True, slots=True, kw_only=True)
class Operators:
    """How a device's operators differ in what they keep.

    Args:
        has_fused_rms_norm: CUDA's RMSNorm keeps its input and one number per position; where there is none (CPU),
            it is composed of others that keep the input and the normalised input, both in fp32.
        stores_scores: Attention without a fused kernel keeps its softmax.
        drops_weights: It also keeps a dropout mask and the dropped weights (Korthikanti et al. 2022: 5 bytes for each
            score in 16 bit together).
        keeps_every_other_product: Selective recomputation keeps the outputs of the attention and of every other
            product (queries, values, one of two wide ones, the last), and nothing else beside a layer's input.
    """

    has_fused_rms_norm: bool
    stores_scores: bool = False
    drops_weights: bool = False
    keeps_every_other_product: bool = False


def kept_by_layer(spec: ModelSpec, operators: Operators) -> tuple[Kept, ...]:
    """Return what one transformer layer keeps."""
    is_post = spec.family is ModelFamily.BERT or spec.variant.post_norm
    kept = tuple((_post_norm_layer if is_post else _pre_norm_layer)(spec, operators))
    return _every_other_product(spec, kept) if operators.keeps_every_other_product else kept


_SELECTED = frozenset(
    {"layer input", "queries", "attention output", "log-sums of scores", "feed-forward gate", "feed-forward in"}
)
"""What is kept when every other product is, beside the values and the last product."""


def _every_other_product(spec: ModelSpec, kept: Iterable[Kept]) -> tuple[Kept, ...]:
    """Return what a layer keeps where selective recomputation keeps every other product."""
    found: list[Kept] = []
    for one in kept:
        modes = one.modes - {Recompute.SELECTIVE}
        if one.name in _SELECTED:
            modes |= {Recompute.SELECTIVE}
        found.append(replace(one, modes=modes))
        if one.name == "keys and values":
            half = replace(one, name="values", elements=one.elements / 2, modes=frozenset({Recompute.SELECTIVE}))
            found.append(half)
    stream = spec.sequence_length * spec.hidden
    last = _kept("last product", stream, Spread.SEQUENCE, modes=frozenset({Recompute.SELECTIVE}))
    return (*found, last)


def kept_by_cross_attention(spec: ModelSpec, source_positions: int, operators: Operators) -> tuple[Kept, ...]:
    """Return what a decoder's attention to ``source_positions`` of its encoder keeps, without the encoder's output."""
    stream = spec.sequence_length * spec.hidden
    queries = spec.sequence_length * spec.heads * spec.head_size
    keys = source_positions * spec.kv_head_count * spec.head_size
    scores = spec.heads * spec.sequence_length
    found = [
        *_norm("cross_norm", spec, operators, ONLY_NONE),
        _kept("cross attention input", stream, Spread.WHOLE, modes=ONLY_NONE),
        _kept("cross queries", queries, Spread.SPLIT, modes=ONLY_NONE),
        _kept("cross keys and values", 2 * keys, Spread.SPLIT, modes=ONLY_NONE),
        _kept("cross attention output", queries, Spread.SPLIT, modes=ONLY_NONE),
    ]
    if operators.stores_scores or spec.attention_dropout:
        found.append(_kept("cross softmax of scores", scores * source_positions, Spread.SPLIT, modes=ONLY_NONE))
    else:
        found.append(_kept("cross log-sums", scores, Spread.SPLIT, element_bytes=_FLOAT, modes=ONLY_NONE))
    return (*found, *_dropout("cross attention", spec, stream, ONLY_NONE))


def kept_by_beginning(spec: ModelSpec) -> tuple[Kept, ...]:
    """Return what stands before the layers."""
    if spec.family is ModelFamily.WIDE_RESNET:
        return tuple(_stem(spec))
    stream = spec.sequence_length * spec.hidden
    if spec.family is ModelFamily.VIT:
        values = spec.channels * (spec.patch_size or 0) ** 2
        found = [_kept("patches", spec.sequence_length * values, Spread.SEQUENCE)]
    else:
        found = [_kept("tokens", spec.seq_len, Spread.WHOLE, element_bytes=_INDEX)]
    if spec.family is ModelFamily.BERT:
        found += _layer_norm("embed_norm", spec, ALWAYS)
    if spec.variant.embedding_size:
        found.append(_kept("embedding", spec.seq_len * spec.variant.embedding_size, Spread.WHOLE))
    return (*found, *_dropout("embed", spec, stream, ALWAYS))


def kept_by_ending(spec: ModelSpec, operators: Operators) -> tuple[Kept, ...]:
    """Return what stands behind a transformer's layers, without the logits."""
    stream = spec.sequence_length * spec.hidden
    found: list[Kept] = []
    if spec.family is ModelFamily.BERT:
        found += [_kept("transform input", stream, Spread.SEQUENCE), _kept("gelu input", stream, Spread.SEQUENCE)]
    if spec.variant.embedding_size:
        found.append(_kept("projected", spec.seq_len * spec.variant.embedding_size, Spread.SEQUENCE))
    if not spec.variant.post_norm:
        found += _norm("final_norm", spec, operators, ALWAYS)
    if spec.family is ModelFamily.VIT:
        return (*found, _kept("pooled", spec.hidden, Spread.WHOLE))
    targets = _kept("targets", spec.seq_len, Spread.WHOLE, element_bytes=_INDEX)
    return (*found, _kept("head input", stream, Spread.WHOLE), targets)


def kept_by_block(block: ResidualBlock) -> tuple[Kept, ...]:
    """Return what one block of a Wide-ResNet keeps.

    Recomputing norms and activations alone frees nothing, as each convolution keeps the activation before it.
    """
    outer = block.input_channels * block.input_size**2
    inner = block.output_channels * block.output_size**2
    if block.is_bottleneck:
        return _kept_by_bottleneck(block, outer, inner)
    return (
        _kept("block input", outer, Spread.WHOLE),
        _kept("relu1", outer, Spread.WHOLE, modes=UNLESS_FULL),
        _kept("conv1 output", inner, Spread.SPLIT, modes=UNLESS_FULL),
        _kept("relu2", inner, Spread.SPLIT, modes=UNLESS_FULL),
    )


def kept_by_class_end(block: ResidualBlock) -> tuple[Kept, ...]:
    """Return what a Wide-ResNet's end keeps behind its last block."""
    outer = block.output_channels * block.output_size**2
    if block.is_bottleneck:
        return (_kept("final input", outer, Spread.WHOLE),)
    # No convolution keeps this activation, so recomputing it does free it.
    relu = _kept("final relu", outer, Spread.WHOLE, modes=frozenset({Recompute.NONE, Recompute.FULL}))
    return _kept("final input", outer, Spread.WHOLE), relu


def working_sets(spec: ModelSpec) -> tuple[tuple[Kept, ...], ...]:
    """Return what a transformer layer has in use for a moment, beside what is kept: alternatives, the largest counts.

    In the backward pass that is the gradient of the feed-forward layer (of its two factors with SwiGLU) and of the
    residual stream; in the forward pass the numbers that dropout draws.
    """
    positions, hidden = spec.sequence_length, spec.hidden
    stream = positions * hidden
    width = positions * spec.ffn_width
    gradients = [_kept("gradient of the stream", stream, Spread.WHOLE)]
    if spec.family is ModelFamily.MOE:
        routed = spec.experts_per_token * stream
        one_expert = 2 * spec.experts_per_token * width / (spec.expert_count or 1)
        gradients += [
            _kept("gradients of routed tokens", 2 * routed, Spread.WHOLE),
            _kept("gradients of an expert", one_expert, Spread.SPLIT),
        ]
    else:
        factors = 2 if spec.is_gated else 1
        gradients.append(_kept("gradients of the feed-forward", factors * width, Spread.SPLIT))
    sets = [tuple(gradients)]
    if spec.variant.shared_ffn_hidden:
        shared = _kept("gradients of shared experts", 2 * positions * spec.variant.shared_ffn_hidden, Spread.SPLIT)
        sets.append((gradients[0], shared))
    if spec.dropout:
        sets.append((_kept("random numbers", stream, Spread.SEQUENCE, element_bytes=RANDOM_BYTES),))
    if spec.attention_dropout:
        weights = spec.heads * positions**2
        sets.append((_kept("random numbers of weights", weights, Spread.SPLIT, element_bytes=RANDOM_BYTES),))
    return tuple(sets)


def working_set_of_block(block: ResidualBlock) -> tuple[Kept, ...]:
    """Return the gradients that a Wide-ResNet's block has in use for a moment."""
    outer = block.input_channels * block.input_size**2
    inner = block.inner_channels * block.output_size**2
    stream = max(block.output_channels * block.output_size**2, outer)
    return (
        _kept("gradient of the stream", stream, Spread.WHOLE),
        _kept("gradient of the inner channels", inner, Spread.SPLIT),
    )


def _stem(spec: ModelSpec) -> Iterator[Kept]:
    size = spec.image_size or 0
    yield _kept("images", spec.channels * size**2, Spread.WHOLE)
    if spec.variant.bottleneck:
        outputs = spec.hidden // 4 * (size // 2) ** 2
        yield _kept("stem output", outputs, Spread.WHOLE)
        yield _kept("stem relu", outputs, Spread.WHOLE)
        yield _kept("which are largest", outputs / 4, Spread.WHOLE, element_bytes=_INDEX)


def _kept_by_bottleneck(block: ResidualBlock, outer: float, outputs: float) -> tuple[Kept, ...]:
    """A batch norm keeps its input, which no other operator needs, and ReLU its output, which the next one does."""
    first, second = (block.inner_channels * size**2 for size in (block.input_size, block.output_size))
    found = [
        _kept("block input", outer, Spread.WHOLE),
        _kept("conv1 output", first, Spread.SPLIT, modes=UNLESS_FULL),
        _kept("relu1", first, Spread.SPLIT, modes=UNLESS_FULL),
        _kept("conv2 output", second, Spread.SPLIT, modes=UNLESS_FULL),
        _kept("relu2", second, Spread.SPLIT, modes=UNLESS_FULL),
        _kept("conv3 output", outputs, Spread.WHOLE, modes=UNLESS_FULL),
    ]
    if block.has_projection:
        found.append(_kept("shortcut output", outputs, Spread.WHOLE, modes=UNLESS_FULL))
    return tuple(found)


def _pre_norm_layer(spec: ModelSpec, operators: Operators) -> Iterator[Kept]:
    stream = spec.sequence_length * spec.hidden
    yield _kept("layer input", stream, Spread.SEQUENCE, modes=ONLY_RECOMPUTED)
    yield from _norm("attn_norm", spec, operators, ONLY_NONE)
    yield _kept("attention input", stream, Spread.WHOLE, modes=ONLY_NONE)
    yield from _attention(spec, operators)
    yield from _dropout("attention", spec, stream, ONLY_NONE)
    yield from _norm("mlp_norm", spec, operators, UNLESS_FULL)
    if spec.family is ModelFamily.MOE:
        yield from _experts(spec)
    width = spec.variant.shared_ffn_hidden if spec.family is ModelFamily.MOE else spec.ffn_width
    if width:
        yield _kept("feed-forward input", stream, Spread.WHOLE, modes=UNLESS_FULL)
        yield from _feed_forward(spec, width)
    yield from _dropout("feed-forward", spec, stream, UNLESS_FULL)


def _post_norm_layer(spec: ModelSpec, operators: Operators) -> Iterator[Kept]:
    stream = spec.sequence_length * spec.hidden
    yield _kept("layer input", stream, Spread.SEQUENCE, modes=ONLY_RECOMPUTED)
    yield _kept("attention input", stream, Spread.WHOLE, modes=ONLY_NONE)
    yield from _attention(spec, operators)
    yield from _dropout("attention", spec, stream, ONLY_NONE)
    yield from _layer_norm("attn_norm", spec, ONLY_NONE)
    yield _kept("feed-forward input", stream, Spread.WHOLE, modes=UNLESS_FULL)
    yield from _feed_forward(spec, spec.ffn_width)
    yield from _dropout("feed-forward", spec, stream, UNLESS_FULL)
    yield from _layer_norm("mlp_norm", spec, UNLESS_FULL)


def _attention(spec: ModelSpec, operators: Operators) -> Iterator[Kept]:
    positions, head_size = spec.sequence_length, spec.head_size
    is_dropping = spec.attention_dropout > 0
    output = positions * spec.heads * spec.value_size
    # Grouped keys and values are repeated for each head where their weights are dropped; latent ones are made for each.
    key_heads = spec.heads if is_dropping or spec.variant.kv_rank else spec.kv_head_count
    keys_and_values = positions * key_heads * (head_size + spec.value_size)
    if spec.family in SWIGLU_FAMILIES:
        turned = positions * (spec.variant.rotary_head_size or head_size)
        yield _kept("rotation table", turned, Spread.WHOLE, element_bytes=_FLOAT, modes=ONLY_NONE)
    yield from _inner_norms(spec)
    yield _kept("queries", positions * spec.heads * head_size, Spread.SPLIT, modes=ONLY_NONE)
    yield _kept("keys and values", keys_and_values, Spread.SPLIT, modes=ONLY_NONE)
    yield _kept("attention output", output, Spread.SPLIT, modes=ONLY_NONE)
    weights = spec.heads * positions**2
    if operators.stores_scores and not is_dropping:
        yield _kept("softmax of scores", weights, Spread.SPLIT, modes=ONLY_NONE)
        if operators.drops_weights:
            yield _kept("mask of weights", weights, Spread.SPLIT, element_bytes=_FLAG, modes=ONLY_NONE)
            yield _kept("dropped weights", weights, Spread.SPLIT, modes=ONLY_NONE)
        return
    if not is_dropping:
        if spec.family in SWIGLU_FAMILIES:
            # Rotated queries lie head by head, and so does the output; joining the heads copies it.
            yield _kept("joined attention output", output, Spread.SPLIT, modes=ONLY_NONE)
        sums = spec.heads * positions
        yield _kept("log-sums of scores", sums, Spread.SPLIT, element_bytes=_FLOAT, modes=ONLY_NONE)
        return
    yield _kept("softmax of scores", weights, Spread.SPLIT, element_bytes=_FLOAT, modes=ONLY_NONE)
    yield _kept("mask of weights", weights, Spread.SPLIT, element_bytes=_FLAG, modes=ONLY_NONE)
    yield _kept("dropped weights", weights, Spread.SPLIT, modes=ONLY_NONE)


def _inner_norms(spec: ModelSpec) -> Iterator[Kept]:
    """Yield what norms inside the attention keep: of latent vectors, their inputs and outputs; of queries and keys."""
    variant, positions = spec.variant, spec.sequence_length
    if variant.kv_rank:
        latent = 2 * ((variant.query_rank or 0) + variant.kv_rank) + (variant.rotary_head_size or 0)
        yield _kept("latent vectors", positions * latent, Spread.WHOLE, modes=ONLY_NONE)
    if variant.qk_norm:
        heads = spec.heads + spec.kv_head_count
        yield _kept("queries and keys", positions * heads * spec.head_size, Spread.SPLIT, modes=ONLY_NONE)


def _feed_forward(spec: ModelSpec, width: int) -> Iterator[Kept]:
    names = ("gate", "activated gate", "up", "their product") if spec.is_gated else ("in", "activated")
    for name in names[1:] if spec.activation == "relu" and not spec.is_gated else names:
        yield _kept(f"feed-forward {name}", spec.sequence_length * width, Spread.SPLIT, modes=UNLESS_FULL)


def _experts(spec: ModelSpec) -> Iterator[Kept]:
    positions, choices = spec.sequence_length, spec.sequence_length * spec.experts_per_token
    stream = positions * spec.hidden
    yield _kept("router input", stream, Spread.SEQUENCE, element_bytes=_FLOAT, modes=UNLESS_FULL)
    shares = positions * (spec.expert_count or 0)
    yield _kept("router softmax", shares, Spread.SEQUENCE, element_bytes=_FLOAT, modes=UNLESS_FULL)
    yield _kept("choices", choices, Spread.SEQUENCE, element_bytes=_INDEX, modes=UNLESS_FULL)
    yield _kept("order and source", 2 * choices, Spread.WHOLE, element_bytes=_INDEX, modes=UNLESS_FULL)
    yield _kept("gates", 2 * choices, Spread.WHOLE, element_bytes=_FLOAT, modes=UNLESS_FULL)
    routed = spec.experts_per_token * stream
    for name in ("routed tokens", "expert outputs", "gated outputs"):
        yield _kept(name, routed, Spread.WHOLE, modes=UNLESS_FULL)
    for name in ("gate", "activated gate", "up", "their product"):
        yield _kept(f"experts' {name}", choices * spec.ffn_width, Spread.SPLIT, modes=UNLESS_FULL)


def _norm(name: str, spec: ModelSpec, operators: Operators, modes: Modes) -> list[Kept]:
    if spec.family not in RMS_NORM_FAMILIES:
        return _layer_norm(name, spec, modes)
    stream = spec.sequence_length * spec.hidden
    statistics = _statistics(name, spec, 1, modes)
    if operators.has_fused_rms_norm:
        return [_kept(f"{name} input", stream, Spread.SEQUENCE, modes=modes), statistics]
    both = _kept(f"{name} input and normalised", 2 * stream, Spread.SEQUENCE, element_bytes=_FLOAT, modes=modes)
    return [both, statistics]


def _layer_norm(name: str, spec: ModelSpec, modes: Modes) -> list[Kept]:
    stream = spec.sequence_length * spec.hidden
    return [_kept(f"{name} input", stream, Spread.SEQUENCE, modes=modes), _statistics(name, spec, 2, modes)]


def _statistics(name: str, spec: ModelSpec, count: int, modes: Modes) -> Kept:
    elements = count * spec.sequence_length
    return _kept(f"{name} statistics", elements, Spread.SEQUENCE, element_bytes=_FLOAT, modes=modes)


def _dropout(name: str, spec: ModelSpec, elements: float, modes: Modes) -> list[Kept]:
    if not spec.dropout:
        return []
    return [_kept(f"{name} dropout mask", elements, Spread.SEQUENCE, element_bytes=_FLAG, modes=modes)]


def _kept(
    name: str, elements: float, spread: Spread, *, element_bytes: int | None = None, modes: Modes = ALWAYS
) -> Kept:
    return Kept(name=name, elements=elements, spread=spread, element_bytes=element_bytes, modes=modes)
