"""What a unit of a model weighs: parameters, operations, activations. Pure: no I/O, no clock."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from arena.domain.parameters import Parameter, Place
from arena.planner.activations import Kept, Spread


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
        uses_embedding: Whether it works with the embedding of the model's beginning, where that is tied.
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
    uses_embedding: bool = False

    @property
    def flops_per_sample(self) -> float:
        """Forward operations per sample."""
        return sum(product.flops_per_sample for product in self.products)


def counts_at(parameters: Iterable[Parameter], place: Place) -> ParameterCounts:
    """Return the parameters at one place of a model."""
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
