"""Every parameter of a model: its name, shape, where it stands and how it may be split. Pure: no I/O, no clock.

This is the one place that says what a model is made of. The worker builds its modules and cuts, initialises,
synchronises and saves parameters by it; the planner counts by it. Names and logical shapes depend on no plan.

Tensor parallelism always splits the first dimension, so that a part of a parameter is one run of memory: weights
that sum over the split dimension (``wo``, ``w_out``, ``conv2``) are stored with their inputs first.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Literal

from arena.domain.job import RMS_NORM_FAMILIES, ModelFamily, ModelSpec
from arena.domain.layers import LayerKind, layer_kind, layer_spec

Place = int | Literal["first", "last"]

_INIT_STD = 0.02
"""As GPT-2 (Radford et al. 2019), for all transformers here."""

_RELATIVE_BUCKETS = 32
"""Distances that T5 (Raffel et al. 2020) tells apart."""


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """One logical parameter.

    Args:
        name: Its name in the whole model.
        shape: Its whole shape.
        place: The layer that owns it, or the model's end: ``first`` before all layers, ``last`` after them.
        is_split: Whether tensor parallelism splits its first dimension; else every rank has all of it.
        is_tied: Whether the last place uses it as well (tied embeddings).
        expert: The expert it belongs to; expert parallelism spreads experts over replicas.
        is_input_first: Whether it is stored with its inputs first, the other way round than torch's modules.
        init_std: Standard deviation of its initial values; None starts at ``init_value``.
        init_value: Constant initial value.
    """

    name: str
    shape: tuple[int, ...]
    place: Place
    is_split: bool = False
    is_tied: bool = False
    expert: int | None = None
    is_input_first: bool = False
    init_std: float | None = None
    init_value: float = 0.0

    @cached_property
    def element_count(self) -> int:
        """Elements of the whole parameter."""
        return math.prod(self.shape)

    @property
    def is_decayed(self) -> bool:
        """Whether weight decay applies: to matrices and kernels, not to biases and norms."""
        return len(self.shape) > 1


@lru_cache(maxsize=64)
def parameters_of(spec: ModelSpec) -> tuple[Parameter, ...]:
    """Return all parameters of a model, in model order."""
    if spec.family is not ModelFamily.WIDE_RESNET:
        return tuple(_transformer(spec))
    return tuple(_bottleneck_resnet(spec) if spec.variant.bottleneck else _resnet(spec))


def _transformer(spec: ModelSpec) -> Iterator[Parameter]:
    yield from _embeddings(spec)
    for layer in range(spec.layers):
        yield from parameters_of_layer(spec, layer)
    yield from _ending(spec)


def parameters_of_ends(spec: ModelSpec) -> Iterator[Parameter]:
    """Yield the parameters that stand before and behind a transformer's layers."""
    yield from _embeddings(spec)
    yield from _ending(spec)


def parameters_of_layer(whole: ModelSpec, layer: int) -> Iterator[Parameter]:
    """Yield the parameters of one layer of a transformer."""
    kind = layer_kind(whole, layer)
    spec = layer_spec(whole, kind)
    prefix = f"layers.{layer}"
    yield from _norm(f"{prefix}.attn_norm", spec, layer)
    yield from _attention(f"{prefix}.attn", spec, layer)
    yield from _relative_positions(f"{prefix}.attn", spec, layer, kind)
    if kind.is_decoder:
        yield from _norm(f"{prefix}.cross_norm", spec, layer)
        yield from _attention(f"{prefix}.cross", spec, layer)
    yield from _norm(f"{prefix}.mlp_norm", spec, layer)
    if spec.family is ModelFamily.MOE:
        yield from _experts(spec, layer)
    else:
        yield from _mlp(f"{prefix}.mlp", spec, layer, spec.ffn_width)


def _embeddings(spec: ModelSpec) -> Iterator[Parameter]:
    hidden, variant = spec.hidden, spec.variant
    if spec.family is ModelFamily.VIT:
        patch_values = spec.channels * (spec.patch_size or 0) ** 2
        yield _matrix("patches.weight", (hidden, patch_values), "first")
        yield Parameter(name="patches.bias", shape=(hidden,), place="first")
    else:
        # The decoder of a T5 begins with the encoder's embedding.
        is_tied = spec.tied_embeddings or spec.family is ModelFamily.T5
        shape = (spec.vocab_size, variant.embedding_size or hidden)
        yield _matrix("embed.weight", shape, "first", is_split=True, is_tied=is_tied)
    if variant.embedding_size:
        yield _matrix("embed_in.weight", (hidden, variant.embedding_size), "first")
    if spec.family not in RMS_NORM_FAMILIES:
        yield _matrix("positions.weight", (variant.position_count or spec.sequence_length, hidden), "first")
    if spec.family is ModelFamily.BERT:
        yield from _norm("embed_norm", spec, "first")


def _relative_positions(prefix: str, spec: ModelSpec, layer: int, kind: LayerKind) -> Iterator[Parameter]:
    """What the scores of an encoder's or a decoder's layers gain by distance, and the norm behind the encoder."""
    if kind.opens_stack:
        yield _matrix(f"{prefix}.relative.weight", (spec.heads, _RELATIVE_BUCKETS), layer, is_split=True)
        if kind.is_decoder:
            yield from _norm("encoder_norm", spec, layer)


def _attention(prefix: str, spec: ModelSpec, layer: int) -> Iterator[Parameter]:
    if spec.variant.kv_rank:
        yield from _latent_attention(prefix, spec, layer)
        return
    width, kv_width = spec.heads * spec.head_size, spec.kv_head_count * spec.head_size
    inputs, output = _attention_biases(spec)
    for name, outputs in (("wq", width), ("wk", kv_width), ("wv", kv_width)):
        yield from _split_linear(f"{prefix}.{name}", (outputs, spec.hidden), layer, has_bias=inputs)
    yield from _summing_linear(f"{prefix}.wo", (width, spec.hidden), spec, layer, has_bias=output)
    if spec.variant.qk_norm:
        for name in ("q_norm", "k_norm"):
            yield Parameter(name=f"{prefix}.{name}.weight", shape=(spec.head_size,), place=layer, init_value=1.0)


def _attention_biases(spec: ModelSpec) -> tuple[bool, bool]:
    """Return whether queries, keys and values have a bias, and whether the output has."""
    which = spec.variant.attention_bias or ("none" if spec.family in RMS_NORM_FAMILIES else "all")
    return which in {"all", "qkv"}, which in {"all", "output"}


def _latent_attention(prefix: str, spec: ModelSpec, layer: int) -> Iterator[Parameter]:
    """Keys and values (and queries) made of a short vector of each position (DeepSeek-AI 2024, DeepSeek-V2, 2.1)."""
    variant, hidden, heads = spec.variant, spec.hidden, spec.heads
    kv_rank, rotary = variant.kv_rank or 0, variant.rotary_head_size or 0
    inputs = hidden
    if variant.query_rank:
        yield _matrix(f"{prefix}.wq_down.weight", (variant.query_rank, hidden), layer)
        yield Parameter(name=f"{prefix}.q_norm.weight", shape=(variant.query_rank,), place=layer, init_value=1.0)
        inputs = variant.query_rank
    yield _matrix(f"{prefix}.wq.weight", (heads * spec.head_size, inputs), layer, is_split=True)
    yield _matrix(f"{prefix}.wkv_down.weight", (kv_rank + rotary, hidden), layer)
    yield Parameter(name=f"{prefix}.kv_norm.weight", shape=(kv_rank,), place=layer, init_value=1.0)
    made = heads * (spec.head_size - rotary + spec.value_size)
    yield _matrix(f"{prefix}.wkv.weight", (made, kv_rank), layer, is_split=True)
    yield _residual_output(f"{prefix}.wo.weight", (heads * spec.value_size, hidden), spec, layer)


def _mlp(prefix: str, spec: ModelSpec, layer: int, width: int) -> Iterator[Parameter]:
    has_bias = spec.family not in RMS_NORM_FAMILIES
    for name in ("w_gate", "w_in") if spec.is_gated else ("w_in",):
        yield from _split_linear(f"{prefix}.{name}", (width, spec.hidden), layer, has_bias=has_bias)
    yield from _summing_linear(f"{prefix}.w_out", (width, spec.hidden), spec, layer, has_bias=has_bias)


def _experts(spec: ModelSpec, layer: int) -> Iterator[Parameter]:
    yield _matrix(f"layers.{layer}.mlp.router.weight", (spec.expert_count or 0, spec.hidden), layer)
    if spec.variant.router_bias:
        yield Parameter(name=f"layers.{layer}.mlp.router.bias", shape=(spec.expert_count or 0,), place=layer)
    if spec.variant.shared_ffn_hidden:
        yield from _mlp(f"layers.{layer}.mlp.shared", spec, layer, spec.variant.shared_ffn_hidden)
    if spec.variant.shared_gate:
        yield _matrix(f"layers.{layer}.mlp.shared_gate.weight", (1, spec.hidden), layer)
    shape = (spec.ffn_width, spec.hidden)
    for expert in range(spec.expert_count or 0):
        prefix = f"layers.{layer}.mlp.experts.{expert}"
        for name in ("w_gate", "w_in"):
            yield _matrix(f"{prefix}.{name}.weight", shape, layer, is_split=True, expert=expert)
        yield _residual_output(f"{prefix}.w_out.weight", shape, spec, layer, expert=expert)


def _ending(spec: ModelSpec) -> Iterator[Parameter]:
    hidden = spec.hidden
    if spec.family is ModelFamily.BERT:
        yield _matrix("transform.weight", (hidden, hidden), "last")
        yield Parameter(name="transform.bias", shape=(hidden,), place="last")
    if not spec.variant.post_norm:
        yield from _norm("final_norm", spec, "last")
    if spec.variant.embedding_size:
        yield _matrix("embed_out.weight", (spec.variant.embedding_size, hidden), "last")
    if spec.family is ModelFamily.VIT:
        yield from _class_head(spec, hidden)
        return
    if not spec.tied_embeddings:
        yield _matrix("head.weight", (spec.vocab_size, spec.variant.embedding_size or hidden), "last", is_split=True)
    if spec.family is ModelFamily.BERT:
        yield Parameter(name="head.bias", shape=(spec.vocab_size,), place="last", is_split=True)


def _resnet(spec: ModelSpec) -> Iterator[Parameter]:
    yield _kernel("stem.weight", (spec.hidden, spec.channels, 3, 3), "first", fan_in=9 * spec.channels)
    for layer, block in enumerate(residual_blocks(spec)):
        prefix = f"layers.{layer}"
        inputs, outputs = block.input_channels, block.output_channels
        yield from _scale_and_shift(f"{prefix}.norm1", inputs, layer)
        yield _kernel(f"{prefix}.conv1.weight", (outputs, inputs, 3, 3), layer, fan_in=9 * inputs, is_split=True)
        yield from _scale_and_shift(f"{prefix}.norm2", outputs, layer, is_split=True)
        shape = (outputs, outputs, 3, 3)
        yield _kernel(f"{prefix}.conv2.weight", shape, layer, fan_in=9 * outputs, is_split=True, is_input_first=True)
        if block.has_projection:
            yield _kernel(f"{prefix}.shortcut.weight", (outputs, inputs, 1, 1), layer, fan_in=inputs)
    channels = residual_blocks(spec)[-1].output_channels
    yield from _scale_and_shift("final_norm", channels, "last")
    yield from _class_head(spec, channels)


def _bottleneck_resnet(spec: ModelSpec) -> Iterator[Parameter]:
    """ResNet-50 and wider ones as published: batch norm behind each convolution (He et al. 2016)."""
    blocks = residual_blocks(spec)
    stem = blocks[0].input_channels
    yield _kernel("stem.weight", (stem, spec.channels, 7, 7), "first", fan_in=49 * spec.channels)
    yield from _scale_and_shift("stem_norm", stem, "first")
    for layer, block in enumerate(blocks):
        inner = block.inner_channels
        convolutions = [
            ("1", block.input_channels, inner, 1),
            ("2", inner, inner, 3),
            ("3", inner, block.output_channels, 1),
        ]
        for name, inputs, outputs, size in convolutions:
            weight = f"layers.{layer}.conv{name}.weight"
            yield _kernel(weight, (outputs, inputs, size, size), layer, fan_in=size**2 * inputs, is_split=True)
            yield from _scale_and_shift(f"layers.{layer}.norm{name}", outputs, layer)
        if block.has_projection:
            shape = (block.output_channels, block.input_channels, 1, 1)
            yield _kernel(f"layers.{layer}.shortcut.weight", shape, layer, fan_in=block.input_channels)
            yield from _scale_and_shift(f"layers.{layer}.shortcut_norm", block.output_channels, layer)
    yield from _class_head(spec, blocks[-1].output_channels)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResidualBlock:
    """One block of a ResNet: basic with activations before (Zagoruyko and Komodakis 2016), or a bottleneck.

    Args:
        input_channels, output_channels: Of the block.
        inner_channels: Of its 3 x 3 convolutions; in a basic block the outputs'.
        stride: 2 where the block opens a group and halves the image, else 1.
        input_size: Height and width of its input, in pixels.
    """

    input_channels: int
    output_channels: int
    inner_channels: int
    stride: int
    input_size: int
    is_bottleneck: bool = False

    @property
    def output_size(self) -> int:
        """Height and width of its output."""
        return self.input_size // self.stride

    @property
    def has_projection(self) -> bool:
        """Whether the shortcut needs a convolution of its own."""
        return self.input_channels != self.output_channels or self.stride != 1


@lru_cache(maxsize=64)
def residual_blocks(spec: ModelSpec) -> tuple[ResidualBlock, ...]:
    """Return the blocks of a ResNet in order."""
    blocks: list[ResidualBlock] = []
    bottleneck = spec.variant.bottleneck
    # The stem of ImageNet is a quarter as wide as the first group, and halves the image twice.
    channels, size = (
        (spec.hidden // 4, (spec.image_size or 0) // 4) if bottleneck else (spec.hidden, spec.image_size or 0)
    )
    for group, depth in enumerate(spec.group_depths):
        for index in range(depth):
            opens = index == 0 and group > 0
            outputs = spec.hidden * 2**group
            stride = 2 if opens else 1
            blocks.append(
                ResidualBlock(
                    input_channels=channels,
                    output_channels=outputs,
                    inner_channels=bottleneck * 2**group if bottleneck else outputs,
                    stride=stride,
                    input_size=size,
                    is_bottleneck=bottleneck is not None,
                )
            )
            channels, size = outputs, size // stride
    return tuple(blocks)


def boundary_shape(spec: ModelSpec, layer: int) -> tuple[int, ...]:
    """Return the shape of one sample's activations before layer ``layer`` (``layers``: after the last one)."""
    if spec.family is not ModelFamily.WIDE_RESNET:
        return (spec.sequence_length, spec.hidden)
    blocks = residual_blocks(spec)
    if layer < len(blocks):
        return (blocks[layer].input_channels, blocks[layer].input_size, blocks[layer].input_size)
    return (blocks[-1].output_channels, blocks[-1].output_size, blocks[-1].output_size)


def _matrix(
    name: str,
    shape: tuple[int, ...],
    place: Place,
    *,
    is_split: bool = False,
    is_tied: bool = False,
    expert: int | None = None,
) -> Parameter:
    return Parameter(
        name=name, shape=shape, place=place, is_split=is_split, is_tied=is_tied, expert=expert, init_std=_INIT_STD
    )


def _split_linear(name: str, shape: tuple[int, int], layer: int, *, has_bias: bool) -> Iterator[Parameter]:
    """A linear layer whose outputs are split."""
    yield _matrix(f"{name}.weight", shape, layer, is_split=True)
    if has_bias:
        yield Parameter(name=f"{name}.bias", shape=(shape[0],), place=layer, is_split=True)


def _summing_linear(
    name: str, shape: tuple[int, int], spec: ModelSpec, layer: int, *, has_bias: bool
) -> Iterator[Parameter]:
    """A linear layer that sums over split inputs into the residual stream; shape is ``(inputs, outputs)``."""
    yield _residual_output(f"{name}.weight", shape, spec, layer)
    if has_bias:
        yield Parameter(name=f"{name}.bias", shape=(shape[1],), place=layer)


def _residual_output(
    name: str, shape: tuple[int, int], spec: ModelSpec, layer: int, *, expert: int | None = None
) -> Parameter:
    """A weight that writes into the residual stream, scaled down by the number of such writes (GPT-2)."""
    return Parameter(
        name=name,
        shape=shape,
        place=layer,
        is_split=True,
        expert=expert,
        is_input_first=True,
        init_std=_INIT_STD / math.sqrt(2 * spec.layers),
    )


def _kernel(
    name: str,
    shape: tuple[int, int, int, int],
    place: Place,
    *,
    fan_in: int,
    is_split: bool = False,
    is_input_first: bool = False,
) -> Parameter:
    """A convolution's weight, initialised for rectified inputs (He et al. 2015)."""
    return Parameter(
        name=name,
        shape=shape,
        place=place,
        is_split=is_split,
        is_input_first=is_input_first,
        init_std=math.sqrt(2 / fan_in),
    )


def _norm(name: str, spec: ModelSpec, place: Place) -> Iterator[Parameter]:
    yield Parameter(name=f"{name}.weight", shape=(spec.hidden,), place=place, init_value=1.0)
    if spec.family not in RMS_NORM_FAMILIES:
        yield Parameter(name=f"{name}.bias", shape=(spec.hidden,), place=place)


def _scale_and_shift(name: str, width: int, place: Place, *, is_split: bool = False) -> Iterator[Parameter]:
    yield Parameter(name=f"{name}.weight", shape=(width,), place=place, is_split=is_split, init_value=1.0)
    yield Parameter(name=f"{name}.bias", shape=(width,), place=place, is_split=is_split)


def _class_head(spec: ModelSpec, width: int) -> Iterator[Parameter]:
    yield _matrix("head.weight", (spec.class_count or 0, width), "last")
    yield Parameter(name="head.bias", shape=(spec.class_count or 0,), place="last")
