"""One pipeline chunk of a model: a run of layers with, at the model's ends, its beginning and its end."""

from __future__ import annotations

import torch.distributed as dist
from torch import Tensor, nn

from arena.domain.job import ModelFamily
from arena_agent.worker.models.environment import Environment, Rows
from arena_agent.worker.models.resnet import Block, ClassEnd, Stem
from arena_agent.worker.models.transformer import Layer, PatchBeginning, PooledEnd, TokenBeginning, TokenEnd
from arena_agent.worker.placement import ChunkSpec


class Chunk(nn.Module):
    """A run of layers.

    Args:
        env: The rank's parameters and groups.
        chunk: Which part of the model this is.
    """

    def __init__(self, env: Environment, chunk: ChunkSpec) -> None:
        super().__init__()
        self.spec = chunk
        family = env.spec.family
        self.beginning = _beginning(env, family) if chunk.is_first else None
        layer_type = Block if family is ModelFamily.WIDE_RESNET else Layer
        self.layers = nn.ModuleDict({str(layer): layer_type(env, layer) for layer in chunk.layers})
        self.end = _end(env, family) if chunk.is_last else None

    def forward(self, x: Tensor, rows: Rows) -> Tensor:
        """Map samples (first chunk) or activations to activations or logits (last chunk)."""
        if self.beginning is not None:
            x = self.beginning(x, rows)
        for layer in self.layers.values():
            x = layer(x, rows)
        return x if self.end is None else self.end(x, rows)

    def parts(self) -> list[nn.Module]:
        """Return what the chunk runs through, in order."""
        ends = [self.beginning], [self.end]
        return [part for part in (*ends[0], *self.layers.values(), *ends[1]) if part is not None]

    @property
    def logits_group(self) -> dist.ProcessGroup | None:
        """Ranks over which the logits of the last chunk are split; None when they are whole."""
        assert self.end is not None
        return self.end.group


def _beginning(env: Environment, family: ModelFamily) -> nn.Module:
    if family is ModelFamily.WIDE_RESNET:
        return Stem(env)
    return PatchBeginning(env) if family is ModelFamily.VIT else TokenBeginning(env)


def _end(env: Environment, family: ModelFamily) -> TokenEnd | PooledEnd | ClassEnd:
    if family is ModelFamily.WIDE_RESNET:
        return ClassEnd(env)
    return PooledEnd(env) if family is ModelFamily.VIT else TokenEnd(env)
