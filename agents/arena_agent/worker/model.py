"""GPT and Llama transformers, built one pipeline chunk at a time under parameter names that no plan changes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own idiom
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate
from torch.utils.checkpoint import checkpoint

from arena.domain.job import ModelFamily, ModelSpec
from arena.domain.parallel import Recompute


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkSpec:
    """One pipeline chunk: which layers it holds and whether the model's ends belong to it.

    Args:
        stage_index: Position among all chunks of the pipeline.
        stage_count: Chunks of the whole pipeline.
        layers: Global layer indices.
    """

    stage_index: int
    stage_count: int
    layers: range

    @property
    def is_first(self) -> bool:
        """Whether the embedding is here."""
        return self.stage_index == 0

    @property
    def is_last(self) -> bool:
        """Whether the final norm and the head are here."""
        return self.stage_index == self.stage_count - 1


class Attention(nn.Module):
    """Causal self-attention over this rank's heads; grouped-query where ``kv_heads`` is smaller than ``heads``."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.head_size = spec.hidden // spec.heads
        has_bias = spec.family is ModelFamily.GPT
        kv_width = self.head_size * spec.kv_head_count
        self.wq = nn.Linear(spec.hidden, spec.hidden, bias=has_bias)
        self.wk = nn.Linear(spec.hidden, kv_width, bias=has_bias)
        self.wv = nn.Linear(spec.hidden, kv_width, bias=has_bias)
        self.wo = nn.Linear(spec.hidden, spec.hidden, bias=has_bias)

    def forward(self, x: Tensor, rope: Tensor | None) -> Tensor:
        """Attend; ``x`` is ``[rows, seq, hidden]``, ``rope`` the rotation table of ``rotation_table``."""
        q, k, v = (self._heads(projection(x)) for projection in (self.wq, self.wk, self.wv))
        if rope is not None:
            q, k = rotated(q, rope), rotated(k, rope)
        group_size = q.shape[1] // k.shape[1]
        if group_size > 1:
            k, v = k.repeat_interleave(group_size, dim=1), v.repeat_interleave(group_size, dim=1)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        y: Tensor = self.wo(out.transpose(1, 2).flatten(2))
        return y

    def _heads(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:-1], -1, self.head_size).transpose(1, 2)


class GptMlp(nn.Module):
    """Two linear layers with GELU between."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.w_in = nn.Linear(spec.hidden, spec.ffn_width)
        self.w_out = nn.Linear(spec.ffn_width, spec.hidden)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[rows, seq, hidden]`` to itself."""
        y: Tensor = self.w_out(F.gelu(self.w_in(x)))
        return y


class LlamaMlp(nn.Module):
    """SwiGLU: a gated unit with SiLU, without biases."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.w_gate = nn.Linear(spec.hidden, spec.ffn_width, bias=False)
        self.w_in = nn.Linear(spec.hidden, spec.ffn_width, bias=False)
        self.w_out = nn.Linear(spec.ffn_width, spec.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[rows, seq, hidden]`` to itself."""
        y: Tensor = self.w_out(F.silu(self.w_gate(x)) * self.w_in(x))
        return y


class Block(nn.Module):
    """One pre-norm transformer layer."""

    def __init__(self, spec: ModelSpec, recompute: Recompute) -> None:
        super().__init__()
        self.recompute = recompute
        self.attn_norm = _norm(spec)
        self.attn = Attention(spec)
        self.mlp_norm = _norm(spec)
        self.mlp = LlamaMlp(spec) if spec.family is ModelFamily.LLAMA else GptMlp(spec)

    def forward(self, x: Tensor, rope: Tensor | None) -> Tensor:
        """Apply the layer, keeping for the backward pass only what the recomputation setting says."""
        if self.recompute is Recompute.FULL:
            y: Tensor = checkpoint(self._layer, x, rope, use_reentrant=False, preserve_rng_state=False)
            return y
        return self._layer(x, rope)

    def _layer(self, x: Tensor, rope: Tensor | None) -> Tensor:
        x = x + self._attention(self.attn_norm(x), rope)
        y: Tensor = x + self.mlp(self.mlp_norm(x))
        return y

    def _attention(self, x: Tensor, rope: Tensor | None) -> Tensor:
        if self.recompute is Recompute.SELECTIVE:
            y: Tensor = checkpoint(self.attn, x, rope, use_reentrant=False, preserve_rng_state=False)
            return y
        z: Tensor = self.attn(x, rope)
        return z


class Chunk(nn.Module):
    """A run of layers with, at the model's ends, the embedding and the head.

    Args:
        spec: Shape of the whole model.
        chunk: Which part this is.
        recompute: What the backward pass recomputes.
        uses_bf16: Compute in bfloat16 with float32 parameters.
    """

    def __init__(self, spec: ModelSpec, chunk: ChunkSpec, *, recompute: Recompute, uses_bf16: bool) -> None:
        super().__init__()
        self.spec = spec
        self.uses_bf16 = uses_bf16
        self.is_first, self.is_last = chunk.is_first, chunk.is_last
        if chunk.is_first:
            self.embed = nn.Embedding(spec.vocab_size, spec.hidden)
            if spec.family is ModelFamily.GPT:
                self.positions = nn.Embedding(spec.seq_len, spec.hidden)
        self.layers = nn.ModuleDict({str(index): Block(spec, recompute) for index in chunk.layers})
        if chunk.is_last:
            self.final_norm = _norm(spec)
            if not spec.tied_embeddings:
                self.head = nn.Linear(spec.hidden, spec.vocab_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map tokens ``[rows, seq]`` (first chunk) or hidden states to hidden states or logits (last chunk).

        Under tensor parallelism the logits are this rank's part of the vocabulary.
        """
        with torch.autocast(x.device.type, dtype=torch.bfloat16, enabled=self.uses_bf16):
            hidden = self._embedded(x) if self.is_first else x
            rope = self._rope(hidden)
            for block in self.layers.values():
                hidden = block(hidden, rope)
            return self._logits(self.final_norm(hidden)) if self.is_last else hidden

    def _embedded(self, tokens: Tensor) -> Tensor:
        hidden: Tensor = self.embed(tokens)
        if self.spec.family is ModelFamily.GPT:
            hidden = hidden + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        return hidden

    def _rope(self, hidden: Tensor) -> Tensor | None:
        if self.spec.family is not ModelFamily.LLAMA:
            return None
        return rotation_table(self.spec, hidden.shape[1], hidden.device)

    def _logits(self, hidden: Tensor) -> Tensor:
        if not self.spec.tied_embeddings:
            logits: Tensor = self.head(hidden)
            return logits
        weight = self.embed.weight
        if not isinstance(weight, DTensor):
            return F.linear(hidden, weight)
        mesh = weight.device_mesh
        spread = DTensor.from_local(hidden, mesh, [Replicate()], run_check=False)
        tied = F.linear(spread, weight)
        assert isinstance(tied, DTensor)
        return tied.to_local()


def rotation_table(spec: ModelSpec, seq_len: int, device: torch.device) -> Tensor:
    """Return cosines and sines of the rotary embedding (Su et al. 2021), ``[2, seq, head_size / 2]`` in float32."""
    half = spec.hidden // spec.heads // 2
    frequencies = spec.rope_theta ** (-torch.arange(half, device=device, dtype=torch.float32) / half)
    angles = torch.outer(torch.arange(seq_len, device=device, dtype=torch.float32), frequencies)
    return torch.stack((angles.cos(), angles.sin()))


def rotated(x: Tensor, table: Tensor) -> Tensor:
    """Rotate the halves of each head, ``x`` of shape ``[rows, heads, seq, head_size]``."""
    cos, sin = table.unbind()
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, first * sin + second * cos), dim=-1).type_as(x)


def _norm(spec: ModelSpec) -> nn.Module:
    if spec.family is ModelFamily.LLAMA:
        return nn.RMSNorm(spec.hidden, eps=spec.norm_eps)
    return nn.LayerNorm(spec.hidden, eps=spec.norm_eps)


def parameter_names(spec: ModelSpec) -> tuple[str, ...]:
    """Return the names of all parameters of a model, in model order."""
    whole = ChunkSpec(stage_index=0, stage_count=1, layers=range(spec.layers))
    with torch.device("meta"):
        model = Chunk(spec, whole, recompute=Recompute.NONE, uses_bf16=False)
    return tuple(name for name, _ in model.named_parameters())
