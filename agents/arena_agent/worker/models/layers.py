"""Building blocks: norms, linear layers split over ranks, attention, feed-forward."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own idiom
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from arena.domain.job import SWIGLU_FAMILIES, ModelFamily, ModelSpec
from arena_agent.worker.dropout import dropped, dropped_heads
from arena_agent.worker.models.environment import Environment, Rows


class Norm(nn.Module):
    """RMSNorm where the family has it, else LayerNorm, over the last dimension."""

    def __init__(self, env: Environment) -> None:
        super().__init__()
        self.weight = env.take("weight")
        self.bias = env.take_if_any("bias")
        self.eps = env.spec.norm_eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalise ``[..., hidden]``."""
        if self.bias is None:
            return F.rms_norm(x, self.weight.shape, self.weight, self.eps)
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)


class SplitLinear(nn.Module):
    """A linear layer of which this rank computes some outputs."""

    def __init__(self, env: Environment) -> None:
        super().__init__()
        self.weight = env.take("weight")
        self.bias = env.take_if_any("bias")

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[..., inputs]`` to ``[..., own outputs]``."""
        return F.linear(x, self.weight, self.bias)


class SummingLinear(nn.Module):
    """A linear layer of which this rank has some inputs; the ranks' parts are summed."""

    def __init__(self, env: Environment) -> None:
        super().__init__()
        self.weight = env.take("weight")
        self.bias = env.take_if_any("bias")
        self.tensor = env.tensor

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[rows, seq, own inputs]`` to the residual stream."""
        if self.tensor.group is None:
            return F.linear(x, self.weight.t(), self.bias)
        y = self.tensor.leave(torch.matmul(x, self.weight))
        return y if self.bias is None else y + self.bias


class Attention(nn.Module):
    """Self-attention over this rank's heads; grouped-query where there are fewer key/value heads."""

    def __init__(self, env: Environment, layer: int) -> None:
        super().__init__()
        spec = env.spec
        self.head_size = spec.hidden // spec.heads
        self.is_causal = spec.family in {ModelFamily.GPT, ModelFamily.LLAMA, ModelFamily.MOE}
        self.first_head = env.tensor.index * (spec.heads // env.tensor.size)
        self.dropout, self.site = spec.attention_dropout, f"attention.{layer}"
        self.tensor = env.tensor
        self.wq, self.wk, self.wv = (SplitLinear(env.within(name)) for name in ("wq", "wk", "wv"))
        self.wo = SummingLinear(env.within("wo"))

    def forward(self, x: Tensor, rope: Tensor | None, rows: Rows) -> Tensor:
        """Attend; ``x`` is ``[rows, own seq, hidden]``, ``rope`` the table of ``rotation_table``."""
        x = self.tensor.enter(x)
        q, k, v = (self._heads(projection(x)) for projection in (self.wq, self.wk, self.wv))
        if rope is not None:
            q, k = rotated(q, rope), rotated(k, rope)
        is_dropping = self.dropout > 0 and rows.is_training
        out = self._attended_dropping(q, k, v, rows) if is_dropping else self._attended(q, k, v)
        y: Tensor = self.wo(out.transpose(1, 2).flatten(2))
        return y

    def _attended(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        is_grouped = q.shape[1] != k.shape[1]
        return F.scaled_dot_product_attention(q, k, v, is_causal=self.is_causal, enable_gqa=is_grouped)

    def _attended_dropping(self, q: Tensor, k: Tensor, v: Tensor, rows: Rows) -> Tensor:
        """Attend with every weight at hand: fused attention has random numbers of its own."""
        group_size = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(group_size, dim=1), v.repeat_interleave(group_size, dim=1)
        scores = torch.matmul(q, k.transpose(2, 3)) / math.sqrt(self.head_size)
        if self.is_causal:
            mask = torch.ones(scores.shape[2:], dtype=torch.bool, device=scores.device).triu(1)
            scores = scores.masked_fill(mask, -math.inf)
        weights = torch.softmax(scores.float(), dim=-1).type_as(v)
        weights = dropped_heads(weights, self.dropout, rows.keys, first_head=self.first_head, site=self.site)
        return torch.matmul(weights, v)

    def _heads(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:-1], -1, self.head_size).transpose(1, 2)


class FeedForward(nn.Module):
    """Two linear layers with GELU between, or SwiGLU (Shazeer 2020)."""

    def __init__(self, env: Environment) -> None:
        super().__init__()
        self.tensor = env.tensor
        self.w_gate = SplitLinear(env.within("w_gate")) if env.spec.family in SWIGLU_FAMILIES else None
        self.w_in = SplitLinear(env.within("w_in"))
        self.w_out = SummingLinear(env.within("w_out"))

    def forward(self, x: Tensor, rows: Rows) -> Tensor:
        """Map ``[rows, own seq, hidden]`` to itself."""
        x = self.tensor.enter(x)
        inner = F.gelu(self.w_in(x)) if self.w_gate is None else F.silu(self.w_gate(x)) * self.w_in(x)
        y: Tensor = self.w_out(inner)
        return y


class ResidualDropout(nn.Module):
    """Dropout of what is written to the residual stream; a rank may hold a run of the sequence."""

    def __init__(self, env: Environment, site: str) -> None:
        super().__init__()
        self.share, self.site, self.tensor = env.spec.dropout, site, env.tensor
        self.sequence_length = env.spec.sequence_length

    def forward(self, x: Tensor, rows: Rows) -> Tensor:
        """Drop elements of ``[rows, own seq, hidden]``."""
        if not self.share or not rows.is_training:
            return x
        first = self.tensor.own_run(self.sequence_length).start * x.shape[2]
        return dropped(x, self.share, rows.keys, first=first, site=self.site)


def recomputed(function: Callable[..., Any], *arguments: Any) -> Any:
    """Run a function now and again in the backward pass, keeping only its arguments in between."""
    return checkpoint(function, *arguments, use_reentrant=False, preserve_rng_state=False)


@lru_cache(maxsize=4)
def rotation_table(spec: ModelSpec, device: torch.device) -> Tensor:
    """Return cosines and sines of the rotary embedding (Su et al. 2021), ``[2, seq, head_size / 2]`` in float32."""
    half = spec.hidden // spec.heads // 2
    frequencies = spec.rope_theta ** (-torch.arange(half, device=device, dtype=torch.float32) / half)
    angles = torch.outer(torch.arange(spec.seq_len, device=device, dtype=torch.float32), frequencies)
    return torch.stack((angles.cos(), angles.sin()))


def rotated(x: Tensor, table: Tensor) -> Tensor:
    """Rotate the halves of each head, ``x`` of shape ``[rows, heads, seq, head_size]``."""
    cos, sin = table.unbind()
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, first * sin + second * cos), dim=-1).type_as(x)
