"""What a layer needs to know beside its input: its parameters, its ranks, and which samples it works on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch.distributed as dist
from torch import Tensor, nn

from arena.domain.job import ModelSpec
from arena.domain.parallel import Recompute
from arena_agent.worker.collectives import TensorGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertGroup:
    """This rank among those that spread a layer's experts; alone it holds all of them.

    Args:
        group: None when experts are not spread.
        size, index: Expert-parallel degree and this rank's place in it.
    """

    group: dist.ProcessGroup | None = None
    size: int = 1
    index: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """Where a module is built.

    Args:
        spec: Shape of the whole model.
        parameters: This rank's parameters by their names in the whole model.
        prefix: What the module's names begin with, a dot at its end.
        tensor, expert: The rank's groups.
        recompute: What the backward pass recomputes.
    """

    spec: ModelSpec
    parameters: Mapping[str, nn.Parameter]
    prefix: str = ""
    tensor: TensorGroup
    expert: ExpertGroup
    recompute: Recompute

    def within(self, name: str) -> Environment:
        """Return the environment of a part."""
        return replace(self, prefix=f"{self.prefix}{name}.")

    def take(self, name: str) -> nn.Parameter:
        """Return one of the module's parameters."""
        return self.parameters[self.prefix + name]

    def take_if_any(self, name: str) -> nn.Parameter | None:
        """Return one of the module's parameters where the model has it."""
        return self.parameters.get(self.prefix + name)


@dataclass(slots=True, kw_only=True)
class StepRecord:
    """What layers note during a step, by (layer, micro-batch), so that recomputing a layer notes the same again.

    Args:
        load: Share of the routed tokens that each expert had in the step before, ``[layers, experts]``.
        token_count: Tokens of the global batch.
        routed: Tokens sent to each expert.
        balance: This rank's part of the balance loss.
    """

    load: Tensor | None = None
    token_count: int = 0
    routed: dict[tuple[int, int], Tensor] = field(default_factory=dict)
    balance: dict[tuple[int, int], Tensor] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """The samples of a micro-batch.

    Args:
        keys: One key per sample, ``[rows]``, for what is random about it.
        micro_batch: Index of the micro-batch in its step.
        is_training: Whether dropout applies.
        is_counted: False for a stand-in that only keeps ranks in step.
        record: Where layers note what the step needs to know.
    """

    keys: Tensor
    micro_batch: int
    is_training: bool
    is_counted: bool
    record: StepRecord
