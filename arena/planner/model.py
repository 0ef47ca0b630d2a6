"""What the parts of a model weigh: parameters, operations, activations. Pure: no I/O, no clock.

A model is a row of units: its beginning, its layers, its ending. Units that are alike share one ``Part``; all layers of
a transformer are alike, the blocks of a Wide-ResNet are not. Parameters come from ``arena.domain.parameters``, what is
kept for the backward pass from ``arena.planner.activations``; operations are those of the worker's matrix products and
convolutions, a multiplication and an addition counting two. Symbols as there: s, h, k, f, E, c; V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from arena.domain.job import SWIGLU_FAMILIES, ModelFamily, ModelSpec
from arena.domain.parameters import Parameter, Place, ResidualBlock, parameters_of, residual_blocks
from arena.planner.activations import (
    Kept,
    Operators,
    Spread,
    kept_by_beginning,
    kept_by_block,
    kept_by_class_end,
    kept_by_ending,
    kept_by_layer,
    working_set_of_block,
    working_sets,
)

GPU_OPERATORS = Operators(has_fused_rms_norm=True)

_CAUSAL = frozenset({ModelFamily.GPT, ModelFamily.LLAMA, ModelFamily.MOE})


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterCounts:
    """Parameters of a part, all ranks together.

    Args:
        split: Divided by tensor parallelism.
        replicated: Whole on every tensor-parallel rank.
        expert: Of experts: divided by tensor parallelism and spread over the replicas of an expert group.
        tied: Split like ``split``, and used by the model's last stage as well.
        largest: Elements of the largest single parameter.
    """

    split: int = 0
    replicated: int = 0
    expert: int = 0
    tied: int = 0
    largest: int = 0

    @property
    def total(self) -> int:
        """All parameters."""
        return self.split + self.replicated + self.expert + self.tied


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """A matrix product or convolution of the forward pass.

    Args:
        inner, outer: Columns that it sums over and columns that it makes, all ranks together; 0 where it is no product
            with a weight.
        splits_inner: Tensor parallelism divides the columns that it sums over, not those that it makes.
        head_size: Of the attention scores and their product with the values; 0 elsewhere.
    """

    flops_per_sample: float
    spread: Spread = Spread.SPLIT
    is_expert: bool = False
    is_attention: bool = False
    inner: int = 0
    outer: int = 0
    splits_inner: bool = False
    head_size: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Reductions:
    """What tensor-parallel ranks sum: elements per sample, and in how many collectives.

    Args:
        attention_elements, attention_count: The attention's part of the forward pass.
    """

    forward_elements: float = 0.0
    forward_count: int = 0
    backward_elements: float = 0.0
    backward_count: int = 0
    attention_elements: float = 0.0
    attention_count: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A unit of a model, all shards together; counts are per sample.

    Args:
        kept: What it leaves for the backward pass.
        working: What it has in use for a moment beside that: alternatives.
        kernel_count, attention_kernel_count: Kernels of a forward pass, and the attention's among them.
        expert_count, expert_kernel_count: Experts, and kernels for each of a rank's.
        exchanged_elements: What expert-parallel ranks exchange in a forward pass, there and back.
        input_elements, output_elements: Activations before and after it.
        logits_elements: Outputs of the model; over a vocabulary they are split.
        widths: Sizes of its products that tensor cores want aligned.
        is_layer: Whether it is a layer, which can be recomputed, and no end.
    """

    parameters: ParameterCounts
    products: tuple[Product, ...] = ()
    kept: tuple[Kept, ...] = ()
    working: tuple[tuple[Kept, ...], ...] = ()
    kernel_count: int = 2
    attention_kernel_count: int = 0
    expert_count: int = 0
    expert_kernel_count: int = 0
    reductions: Reductions = Reductions()
    exchanged_elements: float = 0.0
    input_elements: float = 0.0
    output_elements: float = 0.0
    logits_elements: float = 0.0
    logits_spread: Spread = Spread.SPLIT
    widths: tuple[int, ...] = ()
    is_layer: bool = False

    @property
    def flops_per_sample(self) -> float:
        """Forward operations per sample."""
        return sum(product.flops_per_sample for product in self.products)


@dataclass(frozen=True, kw_only=True, eq=False)
class ModelCost:
    """A whole model.

    Args:
        parts: Its distinct parts: the beginning first, the ending last.
        part_by_unit: Index into ``parts`` for each unit: beginning, layers, ending.
    """

    parts: tuple[Part, ...]
    part_by_unit: npt.NDArray[np.int64]

    @property
    def unit_count(self) -> int:
        """Layers and the two ends."""
        return len(self.part_by_unit)

    @property
    def beginning(self) -> Part:
        """What stands before the layers."""
        return self.parts[0]

    @property
    def ending(self) -> Part:
        """What stands behind the layers."""
        return self.parts[-1]

    def layer(self, index: int) -> Part:
        """Return one of the layers."""
        return self.parts[int(self.part_by_unit[index + 1])]

    @property
    def parameter_count(self) -> int:
        """All trainable parameters; tied ones count once."""
        return sum(self.parts[part].parameters.total for part in self.part_by_unit.tolist())

    @property
    def flops_per_sample(self) -> float:
        """Forward operations per sample."""
        return float(self.by_unit(part.flops_per_sample for part in self.parts).sum())

    def by_unit(self, by_part: Iterable[float] | npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Spread values of parts, ``[..., parts]``, over units, ``[..., units]``."""
        values = by_part if isinstance(by_part, np.ndarray) else np.array(list(by_part), dtype=np.float64)
        spread: npt.NDArray[np.float64] = values[..., self.part_by_unit]
        return spread

    def cumulative(self, by_part: Iterable[float] | npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Return sums over the first 0, 1, ... units of values of parts: ``[..., units + 1]``."""
        values = self.by_unit(by_part)
        sums = np.zeros((*values.shape[:-1], values.shape[-1] + 1))
        np.cumsum(values, axis=-1, out=sums[..., 1:])
        return sums


@lru_cache(maxsize=64)
def model_cost(model: ModelSpec, operators: Operators = GPU_OPERATORS) -> ModelCost:
    """Return what a model's parts weigh on devices with some operators."""
    if model.family is ModelFamily.WIDE_RESNET:
        return _resnet_cost(model)
    # One layer stands for all: they are alike.
    parameters = parameters_of(model.model_copy(update={"layers": 1}))
    parts = (
        _beginning(model, _counts(parameters, "first")),
        _layer(model, _counts(parameters, 0), operators),
        _ending(model, _counts(parameters, "last"), operators),
    )
    return ModelCost(parts=parts, part_by_unit=np.array([0, *[1] * model.layers, 2], dtype=np.int64))


def _counts(parameters: Iterable[Parameter], place: Place) -> ParameterCounts:
    counts = dict.fromkeys(("split", "replicated", "expert", "tied"), 0)
    largest = 0
    for parameter in parameters:
        if parameter.place == place:
            counts[_kind(parameter)] += parameter.element_count
            largest = max(largest, parameter.element_count)
    return ParameterCounts(**counts, largest=largest)


def _kind(parameter: Parameter) -> str:
    if parameter.is_tied:
        return "tied"
    if parameter.expert is not None:
        return "expert"
    return "split" if parameter.is_split else "replicated"


def _beginning(model: ModelSpec, parameters: ParameterCounts) -> Part:
    stream = float(model.sequence_length * model.hidden)
    is_vit = model.family is ModelFamily.VIT
    patch_values = model.channels * (model.patch_size or 0) ** 2
    patches = Product(flops_per_sample=2.0 * patch_values * stream, spread=Spread.SEQUENCE)
    return Part(
        parameters=parameters,
        products=(patches,) if is_vit else (),
        kept=kept_by_beginning(model),
        kernel_count=3,
        reductions=Reductions() if is_vit else Reductions(forward_elements=stream, forward_count=1),
        output_elements=stream,
    )


def _layer(model: ModelSpec, parameters: ParameterCounts, operators: Operators) -> Part:
    stream = float(model.sequence_length * model.hidden)
    is_mixture = model.family is ModelFamily.MOE
    kernels = 20 if model.family in SWIGLU_FAMILIES else 14
    return Part(
        parameters=parameters,
        products=(*_attention_products(model, operators), *_feed_forward_products(model)),
        kept=kept_by_layer(model, operators),
        working=working_sets(model),
        kernel_count=kernels + 12 * is_mixture,
        attention_kernel_count=kernels // 2,
        expert_count=model.expert_count or 0 if is_mixture else 0,
        expert_kernel_count=5,
        reductions=Reductions(
            forward_elements=2 * stream,
            forward_count=2,
            backward_elements=2 * stream,
            backward_count=2,
            attention_elements=stream,
            attention_count=1,
        ),
        exchanged_elements=2 * model.experts_per_token * stream if is_mixture else 0.0,
        input_elements=stream,
        output_elements=stream,
        widths=(model.hidden, model.ffn_width),
        is_layer=True,
    )


def _attention_products(model: ModelSpec, operators: Operators) -> Iterator[Product]:
    positions, hidden = model.sequence_length, model.hidden
    keys = model.kv_head_count * (hidden // model.heads)
    # Queries, keys and values are one product.
    for inner, outer, is_last in ((hidden, hidden + 2 * keys, False), (hidden, hidden, True)):
        flops = 2.0 * positions * inner * outer
        yield Product(flops_per_sample=flops, is_attention=True, inner=inner, outer=outer, splits_inner=is_last)
    # Fused kernels skip the half of the scores that a causal mask hides.
    is_halved = model.family in _CAUSAL and not (model.attention_dropout or operators.stores_scores)
    scores = 4.0 * positions**2 * hidden / (2.0 if is_halved else 1.0)
    yield Product(flops_per_sample=scores, is_attention=True, head_size=hidden // model.heads)


def _feed_forward_products(model: ModelSpec) -> Iterator[Product]:
    positions, hidden = model.sequence_length, model.hidden
    is_mixture = model.family is ModelFamily.MOE
    if is_mixture:
        router = 2.0 * positions * hidden * (model.expert_count or 0)
        yield Product(flops_per_sample=router, spread=Spread.SEQUENCE)
    copies = model.experts_per_token if is_mixture else 1
    width = model.ffn_width
    ups = 2 if model.family in SWIGLU_FAMILIES else 1
    for inner, outer, is_down in ((hidden, ups * width, False), (width, hidden, True)):
        flops = 2.0 * positions * copies * inner * outer
        yield Product(flops_per_sample=flops, is_expert=is_mixture, inner=inner, outer=outer, splits_inner=is_down)


def _ending(model: ModelSpec, parameters: ParameterCounts, operators: Operators) -> Part:
    stream = float(model.sequence_length * model.hidden)
    products: list[Product] = []
    if model.family is ModelFamily.BERT:
        products.append(Product(flops_per_sample=2.0 * stream * model.hidden, spread=Spread.SEQUENCE))
    if model.family is ModelFamily.VIT:
        return _class_end(model, parameters, kept_by_ending(model, operators), model.hidden)
    # BERT computes the logits of all positions, also of those that its loss leaves out.
    products.append(
        Product(flops_per_sample=2.0 * stream * model.vocab_size, inner=model.hidden, outer=model.vocab_size)
    )
    return Part(
        parameters=parameters,
        products=tuple(products),
        kept=kept_by_ending(model, operators),
        kernel_count=8,
        reductions=Reductions(backward_elements=stream, backward_count=1),
        input_elements=stream,
        logits_elements=float(model.sequence_length * model.vocab_size),
        widths=(model.hidden,),
    )


def _class_end(model: ModelSpec, parameters: ParameterCounts, kept: tuple[Kept, ...], width: int) -> Part:
    classes = model.class_count or 0
    return Part(
        parameters=parameters,
        products=(Product(flops_per_sample=2.0 * width * classes, spread=Spread.WHOLE),),
        kept=kept,
        kernel_count=6,
        logits_elements=float(classes),
        logits_spread=Spread.WHOLE,
    )


def _resnet_cost(model: ModelSpec) -> ModelCost:
    # Within a group all blocks but the first are alike.
    reduced = model.model_copy(update={"group_depths": tuple(min(depth, 2) for depth in model.group_depths)})
    parameters = parameters_of(reduced)
    first_of: dict[ResidualBlock, int] = {}
    for layer, block in enumerate(residual_blocks(reduced)):
        first_of.setdefault(block, layer)
    kinds = {block: index for index, block in enumerate(first_of, start=1)}
    blocks = residual_blocks(model)
    parts = (
        _stem(model, _counts(parameters, "first")),
        *(_block(block, _counts(parameters, layer)) for block, layer in first_of.items()),
        _class_end(model, _counts(parameters, "last"), kept_by_class_end(blocks[-1]), blocks[-1].output_channels),
    )
    units = [0, *(kinds[block] for block in blocks), len(parts) - 1]
    return ModelCost(parts=parts, part_by_unit=np.array(units, dtype=np.int64))


def _stem(model: ModelSpec, parameters: ParameterCounts) -> Part:
    outputs = float(model.hidden * (model.image_size or 0) ** 2)
    return Part(
        parameters=parameters,
        products=(Product(flops_per_sample=18.0 * model.channels * outputs, spread=Spread.WHOLE),),
        kept=kept_by_beginning(model),
        output_elements=outputs,
    )


def _block(block: ResidualBlock, parameters: ParameterCounts) -> Part:
    outer = float(block.input_channels * block.input_size**2)
    inner = float(block.output_channels * block.output_size**2)
    products = [
        Product(flops_per_sample=18.0 * block.input_channels * inner),
        Product(flops_per_sample=18.0 * block.output_channels * inner),
    ]
    if block.has_projection:
        products.append(Product(flops_per_sample=2.0 * block.input_channels * inner, spread=Spread.WHOLE))
    return Part(
        parameters=parameters,
        products=tuple(products),
        kept=kept_by_block(block),
        working=(working_set_of_block(block),),
        kernel_count=8,
        reductions=Reductions(forward_elements=inner, forward_count=1, backward_elements=outer, backward_count=1),
        input_elements=outer,
        output_elements=inner,
        is_layer=True,
    )
