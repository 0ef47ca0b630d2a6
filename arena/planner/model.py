"""A model as the planner sees it: a row of units, and what they weigh. Pure: no I/O, no clock.

A model is a row of units: its beginning, its layers, its ending. Units that are alike share one ``Part``: the layers of
most transformers do, the blocks of a Wide-ResNet do not. Parameters come from ``arena.domain.parameters``, what is kept
for the backward pass from ``arena.planner.activations``, what stages send each other from ``arena.planner.graph``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from arena.domain.job import ModelFamily, ModelSpec
from arena.domain.layers import LayerKind, layer_kind
from arena.domain.parameters import (
    ResidualBlock,
    parameters_of,
    parameters_of_ends,
    parameters_of_layer,
    residual_blocks,
)
from arena.planner import resnet_parts, transformer_parts
from arena.planner.activations import Operators, kept_by_class_end
from arena.planner.graph import Messages, chain_messages, layer_graph, messages_of
from arena.planner.parts import ParameterCounts, Part, Product, Reductions, counts_at

__all__ = ["ModelCost", "ParameterCounts", "Part", "Product", "Reductions", "model_cost"]

GPU_OPERATORS = Operators(has_fused_rms_norm=True)


@dataclass(frozen=True, kw_only=True, eq=False)
class ModelCost:
    """A whole model.

    Args:
        parts: Its distinct parts: the beginning first, the ending last.
        part_by_unit: Index into ``parts`` for each unit: beginning, layers, ending.
        messages: What stages send that are cut between two units.
    """

    parts: tuple[Part, ...]
    part_by_unit: npt.NDArray[np.int64]
    messages: Messages

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
    first_of: dict[LayerKind, int] = {}
    kinds = [layer_kind(model, layer) for layer in range(model.layers)]
    for layer, kind in enumerate(kinds):
        first_of.setdefault(kind, layer)
    at = {kind: index for index, kind in enumerate(first_of, start=1)}
    ends = tuple(parameters_of_ends(model))
    parts = (
        transformer_parts.beginning(model, counts_at(ends, "first")),
        *(
            transformer_parts.layer(model, kind, counts_at(parameters_of_layer(model, layer), layer), operators)
            for kind, layer in first_of.items()
        ),
        transformer_parts.ending(_of_targets(model), counts_at(ends, "last"), operators),
    )
    return _cost(parts, [0, *(at[kind] for kind in kinds), len(parts) - 1], encoder_layers=model.encoder_layers)


def _of_targets(model: ModelSpec) -> ModelSpec:
    """Return a model whose sequence is the one that it puts out."""
    return model if model.target_len is None else model.model_copy(update={"seq_len": model.target_len})


def _cost(parts: tuple[Part, ...], part_by_unit: list[int], *, encoder_layers: int | None = None) -> ModelCost:
    outputs = [parts[part].output_elements for part in part_by_unit]
    if encoder_layers is None:
        messages = chain_messages(outputs)
    else:
        messages = messages_of(layer_graph(outputs, encoder_layers=encoder_layers))
    return ModelCost(parts=parts, part_by_unit=np.array(part_by_unit, dtype=np.int64), messages=messages)


def _resnet_cost(model: ModelSpec) -> ModelCost:
    # Within a group all blocks but the first are alike.
    reduced = model.model_copy(update={"group_depths": tuple(min(depth, 2) for depth in model.group_depths)})
    parameters = parameters_of(reduced)
    first_of: dict[ResidualBlock, int] = {}
    for layer, block in enumerate(residual_blocks(reduced)):
        first_of.setdefault(block, layer)
    kinds = {block: index for index, block in enumerate(first_of, start=1)}
    blocks = residual_blocks(model)
    kept = kept_by_class_end(blocks[-1])
    parts = (
        resnet_parts.stem(model, counts_at(parameters, "first")),
        *(resnet_parts.block_part(block, counts_at(parameters, layer)) for block, layer in first_of.items()),
        transformer_parts.class_end(model, counts_at(parameters, "last"), kept, blocks[-1].output_channels),
    )
    return _cost(parts, [0, *(kinds[block] for block in blocks), len(parts) - 1])
