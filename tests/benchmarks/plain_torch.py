"""A training loop of the same models as one writes it by hand, with torch's own modules, DDP, ZeRO optimizer and FSDP2.

What the worker is measured against, so it is written to be fast: gradients in DDP's buckets, fused AdamW, gradients
exchanged with the last micro-batch alone, one reduction of the loss a step.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 - torch's own idiom
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_

from arena.domain.job import ModelFamily, ModelSpec, TrainSpec
from arena.domain.parameters import parameters_of
from arena_agent.worker.weights import initial_weight


class Attention(nn.Module):
    def __init__(self, spec: ModelSpec, *, bias: bool) -> None:
        super().__init__()
        self.head_size = spec.hidden // spec.heads
        self.wq = nn.Linear(spec.hidden, spec.hidden, bias=bias)
        self.wk = nn.Linear(spec.hidden, spec.kv_head_count * self.head_size, bias=bias)
        self.wv = nn.Linear(spec.hidden, spec.kv_head_count * self.head_size, bias=bias)
        self.wo = nn.Linear(spec.hidden, spec.hidden, bias=bias)

    def forward(self, x: Tensor, rope: tuple[Tensor, Tensor] | None) -> Tensor:
        rows, length, hidden = x.shape
        q, k, v = (
            linear(x).view(rows, length, -1, self.head_size).transpose(1, 2) for linear in (self.wq, self.wk, self.wv)
        )
        if rope is not None:
            q, k = _rotated(q, *rope), _rotated(k, *rope)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])
        return self.wo(out.transpose(1, 2).reshape(rows, length, hidden))


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, first * sin + second * cos), dim=-1)


class FeedForward(nn.Module):
    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        is_llama = spec.family is ModelFamily.LLAMA
        self.w_gate = nn.Linear(spec.hidden, spec.ffn_width, bias=False) if is_llama else None
        self.w_in = nn.Linear(spec.hidden, spec.ffn_width, bias=not is_llama)
        self.w_out = nn.Linear(spec.ffn_width, spec.hidden, bias=not is_llama)

    def forward(self, x: Tensor) -> Tensor:
        if self.w_gate is None:
            return self.w_out(F.gelu(self.w_in(x)))
        return self.w_out(F.silu(self.w_gate(x)) * self.w_in(x))


def _norm(spec: ModelSpec) -> nn.Module:
    norm = nn.RMSNorm if spec.family is ModelFamily.LLAMA else nn.LayerNorm
    return norm(spec.hidden, eps=spec.norm_eps)


class Layer(nn.Module):
    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.attn_norm, self.mlp_norm = _norm(spec), _norm(spec)
        self.attn = Attention(spec, bias=spec.family is ModelFamily.GPT)
        self.mlp = FeedForward(spec)

    def forward(self, x: Tensor, rope: tuple[Tensor, Tensor] | None) -> Tensor:
        x = x + self.attn(self.attn_norm(x), rope)
        return x + self.mlp(self.mlp_norm(x))


class Model(nn.Module):
    """GPT or Llama."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        is_gpt = spec.family is ModelFamily.GPT
        self.embed = nn.Embedding(spec.vocab_size, spec.hidden)
        self.positions = nn.Embedding(spec.seq_len, spec.hidden) if is_gpt else None
        self.layers = nn.ModuleList(Layer(spec) for _ in range(spec.layers))
        self.final_norm = _norm(spec)
        self.head = nn.Linear(spec.hidden, spec.vocab_size, bias=False)
        half = spec.hidden // spec.heads // 2
        frequencies = spec.rope_theta ** (-torch.arange(half, dtype=torch.float32) / half)
        angles = torch.outer(torch.arange(spec.seq_len, dtype=torch.float32), frequencies)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = self.embed(tokens)
        if self.positions is not None:
            x = x + self.positions.weight
        rope = None if self.positions is not None else (self.cos, self.sin)
        for layer in self.layers:
            x = layer(x, rope)
        logits = self.head(self.final_norm(x))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def initialised(spec: ModelSpec, seed: int) -> Model:
    """Return the model with the job's initial weights."""
    model = Model(spec)
    ours = dict(model.named_parameters())
    with torch.no_grad():
        for parameter in parameters_of(spec):
            value = initial_weight(parameter, seed)
            ours.pop(parameter.name).copy_(value.t() if parameter.is_input_first else value)
    assert not ours, f"no initial values for {sorted(ours)}"
    return model


@dataclass(slots=True, kw_only=True)
class PlainLoop:
    """Trains this rank's share of each global batch.

    Args:
        train: The job.
        tokens: The data, one-dimensional int64.
        batches: Sample ids of this rank's micro-batches of a step.
        is_sharding_weights: FSDP2 instead of DDP.
    """

    train: TrainSpec
    tokens: Tensor
    module: nn.Module
    optimizer: torch.optim.Optimizer

    def one_step(self, batches: list[list[int]]) -> float:
        """Train on this rank's micro-batches and return the loss of the global batch."""
        self.optimizer.zero_grad(set_to_none=True)
        loss = torch.zeros(())
        for index, ids in enumerate(batches):
            inputs, targets = self._read(ids)
            with self._exchanging(is_last=index + 1 == len(batches)):
                part = self.module(inputs, targets) / len(batches)
                part.backward()
            loss += part.detach()
        if self.train.optimizer.clip_norm is not None:
            clip_grad_norm_(self.module.parameters(), self.train.optimizer.clip_norm)
        self.optimizer.step()
        dist.all_reduce(loss)
        return float(loss) / dist.get_world_size()

    def _read(self, ids: list[int]) -> tuple[Tensor, Tensor]:
        length = self.train.model.seq_len
        rows = torch.stack([self.tokens[index * length : (index + 1) * length + 1] for index in ids])
        return rows[:, :-1], rows[:, 1:]

    def _exchanging(self, *, is_last: bool) -> Any:
        is_ddp = isinstance(self.module, DistributedDataParallel)
        return self.module.no_sync() if is_ddp and not is_last else nullcontext()


def plain_loop(train: TrainSpec, tokens: Tensor, *, zero: int) -> PlainLoop:
    """Build what one would write for a ZeRO stage: DDP, DDP with a sharded optimizer, FSDP2; alone nothing of it."""
    model = initialised(train.model, train.seed)
    module = _distributed(model, zero) if dist.get_world_size() > 1 else model
    options = train.optimizer
    settings = {"lr": options.lr, "betas": (options.beta1, options.beta2), "eps": options.eps, "fused": True}
    groups = list(_groups(module, options.weight_decay))
    if zero == 1 and dist.get_world_size() > 1:
        optimizer: torch.optim.Optimizer = ZeroRedundancyOptimizer(
            groups, torch.optim.AdamW, parameters_as_bucket_view=True, **settings
        )
    else:
        optimizer = torch.optim.AdamW(groups, **settings)
    return PlainLoop(train=train, tokens=tokens, module=module, optimizer=optimizer)


def _distributed(model: Model, zero: int) -> nn.Module:
    if zero < 3:
        return DistributedDataParallel(model, gradient_as_bucket_view=True)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    sharded = fully_shard(model, mesh=mesh)
    assert isinstance(sharded, FSDPModule)
    return model


def _groups(module: nn.Module, weight_decay: float) -> Iterator[dict[str, Any]]:
    parameters = list(module.parameters())
    yield {"params": [one for one in parameters if one.ndim > 1], "weight_decay": weight_decay}
    yield {"params": [one for one in parameters if one.ndim == 1], "weight_decay": 0.0}
