"""Models that traces only name, e.g. ``bert__1.3B``, as the planner can lay them out. Pure: no I/O, no clock.

The names are those of Arena's artifact (EuroSys'26), whose shapes are of Alpa's benchmark (OSDI'22). BERT has them as
they are. The artifact's mixtures have plain experts, eight times as wide as the model, in every other layer; here each
layer has gated ones a third as wide (three matrices for two, twice as many layers), which is as many weights, and as
many operations of the experts. Its Wide-ResNets are made of bottleneck blocks; here they are of plain blocks, as many
of them, and as wide as gives the size in the name. So a replay with these is about jobs of that size, and not about the
artifact's own programs, whose measurements are a table's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache

from arena.domain.job import ModelFamily, ModelSpec, TrainSpec, WorkloadSpec
from arena.domain.optimizer import OptimizerSpec

SEQUENCE = 1024
BERT_VOCABULARY, MOE_VOCABULARY = 51_200, 32_000
CLASSES, IMAGE_SIZE = 1024, 56
"""Images of 224 pixels, as the artifact's first convolution and pooling hand them on."""

EXPERT_WIDTH_MULTIPLE = 32

BERT_SHAPES: Mapping[str, tuple[int, int, int]] = {
    "760M": (24, 1536, 16),
    "1.3B": (24, 2048, 32),
    "2.6B": (32, 2560, 32),
    "6.7B": (32, 4096, 32),
    "15B": (48, 5120, 40),
    "39B": (48, 8192, 64),
}
"""Layers, width, heads."""

MOE_SHAPES: Mapping[str, tuple[int, int, int, int]] = {
    "690M": (8, 768, 16, 16),
    "1.3B": (16, 768, 16, 16),
    "2.4B": (16, 1024, 16, 16),
    "10B": (16, 1536, 16, 32),
    "27B": (16, 2048, 16, 48),
    "70B": (32, 2048, 16, 64),
}
"""Layers, width, heads, experts."""

_SHALLOW, _DEEP = (3, 4, 6, 3), (3, 4, 23, 3)
RESNET_SHAPES: Mapping[str, tuple[int, tuple[int, ...]]] = {
    "500M": (312, _SHALLOW),
    "1B": (440, _SHALLOW),
    "2B": (616, _SHALLOW),
    "4B": (880, _SHALLOW),
    "6.8B": (1144, _SHALLOW),
    "13B": (1136, _DEEP),
}
"""Channels of the first group, blocks of each group."""


@lru_cache(maxsize=256)
def described(workload: WorkloadSpec) -> TrainSpec | None:
    """Return what a workload trains, None where its name is none of the known."""
    family, _, size = workload.name.partition("__")
    make = _FAMILIES.get(family)
    model = make(size) if make is not None else None
    if model is None:
        return None
    is_images = model.family is ModelFamily.WIDE_RESNET
    return TrainSpec(
        model=model,
        global_batch=workload.global_batch,
        precision="fp32" if is_images else "fp16",
        optimizer=OptimizerSpec(name="sgd", momentum=0.9) if is_images else OptimizerSpec(name="adamw"),
    )


def known_names() -> tuple[str, ...]:
    """Return the names that are known, sorted."""
    sizes: Mapping[str, Mapping[str, object]]
    sizes = {"bert": BERT_SHAPES, "moe": MOE_SHAPES, "wide_resnet": RESNET_SHAPES}
    return tuple(f"{family}__{size}" for family, some in sizes.items() for size in some)


def _bert(size: str) -> ModelSpec | None:
    shape = BERT_SHAPES.get(size)
    if shape is None:
        return None
    layers, hidden, heads = shape
    return ModelSpec(
        family=ModelFamily.BERT,
        layers=layers,
        hidden=hidden,
        heads=heads,
        vocab_size=BERT_VOCABULARY,
        seq_len=SEQUENCE,
    )


def _moe(size: str) -> ModelSpec | None:
    shape = MOE_SHAPES.get(size)
    if shape is None:
        return None
    layers, hidden, heads, experts = shape
    return ModelSpec(
        family=ModelFamily.MOE,
        layers=layers,
        hidden=hidden,
        heads=heads,
        ffn_hidden=round(8 * hidden / 3 / EXPERT_WIDTH_MULTIPLE) * EXPERT_WIDTH_MULTIPLE,
        expert_count=experts,
        experts_per_token=2,
        vocab_size=MOE_VOCABULARY,
        seq_len=SEQUENCE,
    )


def _resnet(size: str) -> ModelSpec | None:
    shape = RESNET_SHAPES.get(size)
    if shape is None:
        return None
    channels, depths = shape
    return ModelSpec(
        family=ModelFamily.WIDE_RESNET,
        layers=sum(depths),
        hidden=channels,
        image_size=IMAGE_SIZE,
        class_count=CLASSES,
        group_depths=depths,
    )


_FAMILIES: Mapping[str, Callable[[str], ModelSpec | None]] = {"bert": _bert, "moe": _moe, "wide_resnet": _resnet}
