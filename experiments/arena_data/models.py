"""The models that Arena's artifact trains, as the cost model sees them.

Shapes are those of ``runtime/crius_worker/jax/configs.py`` of the artifact, which has them from Alpa's benchmark; what
the layers do is read from Alpa's ``model/bert_model.py`` and ``model/moe.py`` and the artifact's
``model/wide_resnet.py``. They are not the worker's own models: a Wide-ResNet of bottleneck blocks (He et al. 2016), and
a mixture of experts in every other layer, whose tokens are sent to two experts by products with one-hot masks (GShard,
Lepikhin et al. 2020). Each layer is computed again in the backward pass, the two ends as well (``remat_mode`` of the
trainers).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from arena.domain.job import ModelFamily, ModelSpec, TrainSpec
from arena.domain.optimizer import OptimizerSpec
from arena.domain.parallel import Recompute
from arena.planner.activations import Kept, Operators, Spread
from arena.planner.implementation import Attention, Implementation
from arena.planner.model import ModelCost, ParameterCounts, Part, Product, Reductions, model_cost
from arena.planner.named_workloads import BERT_SHAPES, BERT_VOCABULARY, MOE_SHAPES, MOE_VOCABULARY, SEQUENCE
from experiments.arena_data.data import Workload

MOE_WIDENING = 8
EXPERT_GROUP_TOKENS = 2048
CLASSES, IMAGE_SIZE = 1024, 224
CLUSTERS = 16
"""Of operators of a model (``num_pipeline_layers``): the blocks of a Wide-ResNet, some of the layers of others."""

_RESNET_50, _RESNET_101 = (3, 4, 6, 3), (3, 4, 23, 3)
RESNET_SHAPES = {
    "500M": (224, 2, _RESNET_50),
    "1B": (320, 2, _RESNET_50),
    "2B": (448, 2, _RESNET_50),
    "4B": (640, 2, _RESNET_50),
    "6.8B": (320, 16, _RESNET_50),
    "13B": (320, 16, _RESNET_101),
}
"""Channels of the first group, widening of the 3 x 3 convolutions, blocks of each group."""

WEIGHT_PASSES = 19.5
"""Of convolutions that XLA does not tune (``XLA_AUTO_TUNE_LEVEL`` 0). Kernel times in the artifact's estimates of plans
with 1 to 16 replicas are a + b / replicas; a is 312 bytes for each weight and micro-batch at the memory's bandwidth
(median of 21 rows of 500M, 1B and 2B; A10 284, A40 306, A100 394), whatever the batch: 78 accesses in four passes."""

OPERATORS = Operators(has_fused_rms_norm=True, stores_scores=True)
"""XLA stores attention scores; the trainers drop nothing (``deterministic=True``)."""

_UNLESS_FULL = frozenset({Recompute.NONE, Recompute.SELECTIVE})


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """A workload as the cost model takes it.

    Args:
        samples_min: Fewest samples of a micro-batch that a replica can have.
    """

    train: TrainSpec
    model: ModelCost
    implementation: Implementation
    samples_min: int = 1

    @property
    def expert_count(self) -> int:
        """Experts of a layer that has some."""
        return max(part.expert_count for part in self.model.parts)


@lru_cache(maxsize=128)
def trained(workload: Workload) -> Trained:
    """Return what a workload trains.

    Raises:
        KeyError: The artifact has no such model.
    """
    layers, spec, model = _FAMILIES[workload.family](workload.size)
    is_resnet = workload.family == "wide_resnet"
    optimizers = {
        "wide_resnet": OptimizerSpec(name="sgd", momentum=0.9),
        "bert": OptimizerSpec(name="adamw"),
        # Adafactor keeps a row and a column of each weight: next to nothing.
        "moe": OptimizerSpec(name="sgd"),
    }
    assert model.unit_count == layers + 2
    return Trained(
        train=TrainSpec(
            model=spec,
            global_batch=workload.batch,
            precision="fp32" if is_resnet else "fp16",
            optimizer=optimizers[workload.family],
        ),
        model=model,
        implementation=Implementation(
            attention=Attention.STORED,
            gradient_bytes=4.0 if is_resnet else 2.0,
            # A micro-batch's gradients stand beside those that are summed up.
            kept_gradient_bytes=8.0 if is_resnet else 4.0,
            # A tensor goes to the next stage in slices, gathered there ("local all-gather" of Alpa).
            splits_sends=True,
            sends_in_turn=True,
            weight_passes=WEIGHT_PASSES if is_resnet else 0.0,
        ),
        samples_min=EXPERT_GROUP_TOKENS // SEQUENCE if workload.family == "moe" else 1,
    )


def _bert(size: str) -> tuple[int, ModelSpec, ModelCost]:
    layers, hidden, heads = BERT_SHAPES[size]
    spec = _encoder(layers, hidden, heads, BERT_VOCABULARY, 4)
    base = model_cost(spec, OPERATORS)
    beginning, layer, ending = base.parts
    return layers, spec, replace(base, parts=(beginning, clustered(layer, layers), recomputed(ending)))


def _moe(size: str) -> tuple[int, ModelSpec, ModelCost]:
    layers, hidden, heads, experts = MOE_SHAPES[size]
    spec = _encoder(layers, hidden, heads, MOE_VOCABULARY, MOE_WIDENING)
    base = model_cost(spec, OPERATORS)
    beginning, dense, ending = base.parts
    dense = clustered(dense, layers)
    parts = (beginning, mixed(dense, hidden, experts), dense, recomputed(ending))
    units = [0, *[1, 2] * (layers // 2), 3]
    return layers, spec, replace(base, parts=parts, part_by_unit=np.array(units, dtype=np.int64))


def _encoder(layers: int, hidden: int, heads: int, vocabulary: int, widening: int) -> ModelSpec:
    return ModelSpec(
        family=ModelFamily.BERT,
        layers=layers,
        hidden=hidden,
        heads=heads,
        ffn_hidden=widening * hidden,
        vocab_size=vocabulary,
        seq_len=SEQUENCE,
    )


def clustered(layer: Part, layers: int) -> Part:
    """Return a layer with its share of Alpa's clusters, whose inputs are kept and which are computed again as a whole.

    The first cluster's input is the tokens.
    """
    inputs = (CLUSTERS - 1) / layers
    others = max(0.0, layers / CLUSTERS - 1.0)
    kept = [replace(one, elements=one.elements * inputs) if one.name == "layer input" else one for one in layer.kept]
    beside = [
        replace(one, name=f"{one.name} of its cluster", elements=one.elements * others)
        for one in layer.kept
        if Recompute.FULL not in one.modes and others
    ]
    working = tuple((*alternative, *beside) for alternative in layer.working)
    return replace(layer, kept=tuple(kept), working=working)


def recomputed(ending: Part) -> Part:
    """Return a model's end that is computed again with its layer.

    Its logits and their gradient last for a moment, in the working precision: XLA fuses the softmax with its sums.
    """
    logits = Kept(name="logits", elements=ending.logits_elements, spread=ending.logits_spread, modes=_UNLESS_FULL)
    gradient = Kept(name="gradient of the logits", elements=ending.logits_elements, spread=ending.logits_spread)
    kept = tuple(replace(one, modes=_UNLESS_FULL) for one in ending.kept)
    return replace(ending, logits_elements=0.0, kept=(*kept, logits), working=((gradient,),), is_layer=True)


def mixed(dense: Part, hidden: int, experts: int) -> Part:
    """Return a layer with experts in place of its feed-forward product.

    Of S tokens of a group each expert takes 2 S / E; masks of S x E x 2 S / E choose and combine them.
    """
    tokens, width = SEQUENCE, MOE_WIDENING * hidden
    places = 2 * EXPERT_GROUP_TOKENS
    attention = tuple(one for one in dense.products if one.is_attention)
    pair = 2.0 * 2.0 * tokens * hidden * width
    mask = 2.0 * tokens * places * hidden
    masks = (Product(flops_per_sample=mask, inner=EXPERT_GROUP_TOKENS, outer=hidden),) * 2
    experts_of = tuple(
        Product(flops_per_sample=pair, is_expert=True, inner=inner, outer=outer, splits_inner=inner > outer)
        for inner, outer in ((hidden, width), (width, hidden))
    )
    kept = tuple(one for one in dense.kept if not one.name.startswith("feed-forward"))
    own = (
        # The part of each choice, their sum, and where it is not zero.
        ("masks", 4.0 * tokens * places),
        ("chosen tokens", 2.0 * tokens * hidden),
        ("experts' inner", 4.0 * tokens * width),
        ("expert outputs", 2.0 * tokens * hidden),
        ("feed-forward input", tokens * hidden),
    )
    expert_weights = 2 * experts * hidden * width
    counts = dense.parameters
    feed_forward = 2 * hidden * width + width
    return replace(
        dense,
        parameters=replace(
            counts, split=counts.split - feed_forward, expert=expert_weights, largest=expert_weights // 2
        ),
        products=(*attention, *masks, *experts_of),
        kept=(*kept, *(_split(name, elements) for name, elements in own)),
        expert_count=experts,
        exchanged_elements=4.0 * tokens * hidden,
        expert_kernel_count=0,
        kernel_count=dense.kernel_count + 20,
    )


def _split(name: str, elements: float) -> Kept:
    return Kept(name=name, elements=elements, spread=Spread.SPLIT, modes=_UNLESS_FULL)


def _resnet(size: str) -> tuple[int, ModelSpec, ModelCost]:
    channels, widening, depths = RESNET_SHAPES[size]
    layers = sum(depths)
    spec = ModelSpec(
        family=ModelFamily.WIDE_RESNET,
        layers=layers,
        hidden=4 * channels,  # what its blocks hand on, as those of the worker's model do
        image_size=IMAGE_SIZE // 4,
        class_count=CLASSES,
        group_depths=depths,
    )
    blocks = tuple(_blocks(channels, widening, depths))
    # Within a group all blocks but the first are alike.
    kinds = {block: index for index, block in enumerate(dict.fromkeys(blocks), start=1)}
    parts = (_stem(channels), *kinds, _class_end(32 * channels, blocks[-1].output_elements))
    units = np.array([0, *(kinds[block] for block in blocks), len(parts) - 1], dtype=np.int64)
    return layers, spec, replace(model_cost(spec), parts=parts, part_by_unit=units)


def _stem(channels: int) -> Part:
    pixels = float(channels * (IMAGE_SIZE // 2) ** 2)
    weights = 7 * 7 * 3 * channels
    return Part(
        parameters=ParameterCounts(replicated=weights, largest=weights),
        products=(Product(flops_per_sample=2.0 * 49 * 3 * pixels, spread=Spread.WHOLE),),
        kept=(
            Kept(name="images", elements=3.0 * IMAGE_SIZE**2, spread=Spread.WHOLE),
            Kept(name="before pooling", elements=2.0 * pixels, spread=Spread.WHOLE, modes=_UNLESS_FULL),
        ),
        kernel_count=4,
        output_elements=pixels / 4,
        is_layer=True,
    )


def _blocks(channels: int, widening: int, depths: tuple[int, ...]) -> Iterator[Part]:
    inputs, size = channels, IMAGE_SIZE // 4
    for group, depth in enumerate(depths):
        for index in range(depth):
            stride = 2 if group and not index else 1
            yield _bottleneck(inputs, channels * 2**group, widening, size, stride)
            inputs, size = 4 * channels * 2**group, size // stride


def _bottleneck(inputs: int, filters: int, widening: int, size: int, stride: int) -> Part:
    """Return a block: 1 x 1, 3 x 3 and 1 x 1 convolutions, norms between, and a shortcut."""
    inner, outputs = filters * widening, 4 * filters
    before, after = size**2, (size // stride) ** 2
    sides = (
        (inputs, filters),
        (9 * filters, inner),
        (inner, outputs),
        (inputs, outputs) if inputs != outputs else (0, 0),
    )
    pixels = (before, after, after, after)
    weights = [rows * columns for rows, columns in sides]
    kept = (("narrowed", 2.0 * filters * before), ("widened", 2.0 * inner * after), ("output", 1.0 * outputs * after))
    return Part(
        parameters=ParameterCounts(
            split=sum(weights), replicated=2 * (filters + inner + outputs), largest=max(weights)
        ),
        products=tuple(
            Product(flops_per_sample=2.0 * rows * columns * count, inner=rows, outer=columns)
            for (rows, columns), count in zip(sides, pixels, strict=True)
            if rows
        ),
        kept=(
            # Norms and activations work channel by channel, so that what is between blocks stays divided.
            Kept(name="block input", elements=float(inputs * before), spread=Spread.SPLIT),
            *(_split(name, elements) for name, elements in kept),
        ),
        working=(
            (
                Kept(name="gradient of the stream", elements=float(outputs * after), spread=Spread.WHOLE),
                Kept(name="gradient of the inner channels", elements=float(inner * after), spread=Spread.SPLIT),
            ),
        ),
        kernel_count=12,
        # One sum of what goes on and one of what comes back: what the estimates of plans on two A40 move, within 3 %.
        reductions=Reductions(
            forward_elements=float(outputs * after),
            forward_count=1,
            backward_elements=float(inputs * before),
            backward_count=1,
        ),
        input_elements=float(inputs * before),
        output_elements=float(outputs * after),
        is_layer=True,
    )


def _class_end(channels: int, inputs: float) -> Part:
    weights = channels * CLASSES
    return Part(
        parameters=ParameterCounts(replicated=weights + CLASSES, largest=weights),
        products=(Product(flops_per_sample=2.0 * weights, spread=Spread.WHOLE),),
        kept=(Kept(name="last output", elements=inputs, spread=Spread.WHOLE),),
        kernel_count=4,
        input_elements=inputs,
        logits_elements=float(CLASSES),
        logits_spread=Spread.WHOLE,
        is_layer=True,
    )


_FAMILIES = {"bert": _bert, "moe": _moe, "wide_resnet": _resnet}
