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

from arena.domain.job import SWIGLU_FAMILIES, ModelFamily, ModelSpec

Place = int | Literal["first", "last"]

_INIT_STD = 0.02
"""As GPT-2 (Radford et al. 2019), for all transformers here."""


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
    return tuple(_resnet(spec) if spec.family is ModelFamily.WIDE_RESNET else _transformer(spec))


def _transformer(spec: ModelSpec) -> Iterator[Parameter]:
    yield from _embeddings(spec)
    for layer in range(spec.layers):
        yield from _norm(f"layers.{layer}.attn_norm", spec, layer)
        yield from _attention(spec, layer)
        yield from _norm(f"layers.{layer}.mlp_norm", spec, layer)
        yield from _experts(spec, layer) if spec.family is ModelFamily.MOE else _mlp(spec, layer)
    yield from _ending(spec)


def _embeddings(spec: ModelSpec) -> Iterator[Parameter]:
    hidden = spec.hidden
    if spec.family is ModelFamily.VIT:
        patch_values = spec.channels * (spec.patch_size or 0) ** 2
        yield _matrix("patches.weight", (hidden, patch_values), "first")
        yield Parameter(name="patches.bias", shape=(hidden,), place="first")
    else:
        is_tied = spec.tied_embeddings
        shape = (spec.vocab_size, hidden)
        yield _matrix("embed.weight", shape, "first", is_split=True, is_tied=is_tied)
    if spec.family not in SWIGLU_FAMILIES:
        yield _matrix("positions.weight", (spec.sequence_length, hidden), "first")
    if spec.family is ModelFamily.BERT:
        yield from _norm("embed_norm", spec, "first")


def _attention(spec: ModelSpec, layer: int) -> Iterator[Parameter]:
    kv_width = spec.kv_head_count * (spec.hidden // spec.heads)
    for name, width in (("wq", spec.hidden), ("wk", kv_width), ("wv", kv_width)):
        yield from _split_linear(f"layers.{layer}.attn.{name}", (width, spec.hidden), spec, layer)
    yield from _summing_linear(f"layers.{layer}.attn.wo", (spec.hidden, spec.hidden), spec, layer)


def _mlp(spec: ModelSpec, layer: int) -> Iterator[Parameter]:
    names = ("w_gate", "w_in") if spec.family in SWIGLU_FAMILIES else ("w_in",)
    for name in names:
        yield from _split_linear(f"layers.{layer}.mlp.{name}", (spec.ffn_width, spec.hidden), spec, layer)
    yield from _summing_linear(f"layers.{layer}.mlp.w_out", (spec.ffn_width, spec.hidden), spec, layer)


def _experts(spec: ModelSpec, layer: int) -> Iterator[Parameter]:
    yield _matrix(f"layers.{layer}.mlp.router.weight", (spec.expert_count or 0, spec.hidden), layer)
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
    yield from _norm("final_norm", spec, "last")
    if spec.family is ModelFamily.VIT:
        yield from _class_head(spec, hidden)
        return
    if not spec.tied_embeddings:
        yield _matrix("head.weight", (spec.vocab_size, hidden), "last", is_split=True)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ResidualBlock:
    """One block of a Wide-ResNet (Zagoruyko and Komodakis 2016, basic block, pre-activation).

    Args:
        input_channels, output_channels: Of the block; its inner channels are the outputs'.
        stride: 2 where the block opens a group and halves the image, else 1.
        input_size: Height and width of its input, in pixels.
    """

    input_channels: int
    output_channels: int
    stride: int
    input_size: int

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
    """Return the blocks of a Wide-ResNet in order."""
    blocks: list[ResidualBlock] = []
    channels, size = spec.hidden, spec.image_size or 0
    for group, depth in enumerate(spec.group_depths):
        for index in range(depth):
            opens = index == 0 and group > 0
            outputs = spec.hidden * 2**group
            stride = 2 if opens else 1
            blocks.append(
                ResidualBlock(input_channels=channels, output_channels=outputs, stride=stride, input_size=size)
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


def _split_linear(name: str, shape: tuple[int, int], spec: ModelSpec, layer: int) -> Iterator[Parameter]:
    """A linear layer whose outputs are split."""
    yield _matrix(f"{name}.weight", shape, layer, is_split=True)
    if spec.family not in SWIGLU_FAMILIES:
        yield Parameter(name=f"{name}.bias", shape=(shape[0],), place=layer, is_split=True)


def _summing_linear(name: str, shape: tuple[int, int], spec: ModelSpec, layer: int) -> Iterator[Parameter]:
    """A linear layer that sums over split inputs into the residual stream; shape is ``(inputs, outputs)``."""
    yield _residual_output(f"{name}.weight", shape, spec, layer)
    if spec.family not in SWIGLU_FAMILIES:
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
    if spec.family not in SWIGLU_FAMILIES:
        yield Parameter(name=f"{name}.bias", shape=(spec.hidden,), place=place)


def _scale_and_shift(name: str, width: int, place: Place, *, is_split: bool = False) -> Iterator[Parameter]:
    yield Parameter(name=f"{name}.weight", shape=(width,), place=place, is_split=is_split, init_value=1.0)
    yield Parameter(name=f"{name}.bias", shape=(width,), place=place, is_split=is_split)


def _class_head(spec: ModelSpec, width: int) -> Iterator[Parameter]:
    yield _matrix("head.weight", (spec.class_count or 0, width), "last")
    yield Parameter(name="head.bias", shape=(spec.class_count or 0,), place="last")
