"""Transformers: GPT, Llama, BERT, mixture of experts, ViT; their beginning, one layer, and their end."""

from __future__ import annotations

import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 - torch's own idiom
from torch import Tensor, nn

from arena.domain.job import SWIGLU_FAMILIES, ModelFamily
from arena.domain.parallel import Recompute
from arena_agent.worker.models.environment import Environment, Rows
from arena_agent.worker.models.layers import (
    Attention,
    FeedForward,
    Norm,
    ResidualDropout,
    SplitLinear,
    recomputed,
    rotation_table,
)
from arena_agent.worker.models.moe import MixtureOfExperts


class Layer(nn.Module):
    """One transformer layer: pre-norm, or post-norm for BERT (Devlin et al. 2019)."""

    def __init__(self, env: Environment, layer: int) -> None:
        super().__init__()
        env = env.within(f"layers.{layer}")
        self.spec, self.recompute = env.spec, env.recompute
        self.is_post_norm = env.spec.family is ModelFamily.BERT
        self.attn_norm, self.mlp_norm = Norm(env.within("attn_norm")), Norm(env.within("mlp_norm"))
        self.attn = Attention(env.within("attn"), layer)
        is_mixture = env.spec.family is ModelFamily.MOE
        self.mlp = MixtureOfExperts(env.within("mlp"), layer) if is_mixture else FeedForward(env.within("mlp"))
        self.attn_dropout = ResidualDropout(env, f"attn.{layer}")
        self.mlp_dropout = ResidualDropout(env, f"mlp.{layer}")

    def forward(self, x: Tensor, rows: Rows) -> Tensor:
        """Map ``[rows, own seq, hidden]`` to itself, keeping what the recomputation setting says."""
        if self.recompute is Recompute.FULL:
            y: Tensor = recomputed(self._whole, x, rows)
            return y
        return self._whole(x, rows)

    def _whole(self, x: Tensor, rows: Rows) -> Tensor:
        x = recomputed(self._attended, x, rows) if self.recompute is Recompute.SELECTIVE else self._attended(x, rows)
        if self.is_post_norm:
            y: Tensor = self.mlp_norm(x + self.mlp_dropout(self.mlp(x, rows), rows))
            return y
        z: Tensor = x + self.mlp_dropout(self.mlp(self.mlp_norm(x), rows), rows)
        return z

    def _attended(self, x: Tensor, rows: Rows) -> Tensor:
        rope = rotation_table(self.spec, x.device) if self.spec.family in SWIGLU_FAMILIES else None
        if self.is_post_norm:
            y: Tensor = self.attn_norm(x + self.attn_dropout(self.attn(x, rope, rows), rows))
            return y
        z: Tensor = x + self.attn_dropout(self.attn(self.attn_norm(x), rope, rows), rows)
        return z


class TokenBeginning(nn.Module):
    """Token embedding, split over the vocabulary, with learned positions where the family has them."""

    def __init__(self, env: Environment) -> None:
        super().__init__()
        self.tensor, self.hidden = env.tensor, env.spec.hidden
        self.embed = _Table(env.within("embed"))
        self.positions = None if env.spec.family in SWIGLU_FAMILIES else _Table(env.within("positions"))
        self.embed_norm = Norm(env.within("embed_norm")) if env.spec.family is ModelFamily.BERT else None
        self.dropout = ResidualDropout(env, "embed")

    def forward(self, tokens: Tensor, rows: Rows) -> Tensor:
        """Map tokens ``[rows, seq]`` to ``[rows, own seq, hidden]``."""
        x = self.tensor.leave(self._looked_up(tokens))
        if self.positions is not None:
            run = self.tensor.own_run(tokens.shape[1])
            x = x + self.positions.weight[run.start : run.stop]
        if self.embed_norm is not None:
            x = self.embed_norm(x)
        y: Tensor = self.dropout(x, rows)
        return y

    def _looked_up(self, tokens: Tensor) -> Tensor:
        weight = self.embed.weight
        if self.tensor.size == 1:
            return F.embedding(tokens, weight)
        local = tokens - self.tensor.index * len(weight)
        is_here = (local >= 0) & (local < len(weight))
        return F.embedding(local.where(is_here, 0), weight) * is_here.unsqueeze(-1)


class PatchBeginning(nn.Module):
    """A ViT's beginning (Dosovitskiy et al. 2020): patches, a linear layer, learned positions."""

    def __init__(self, env: Environment) -> None:
        super().__init__()
        self.tensor, self.patch_size = env.tensor, env.spec.patch_size or 1
        self.patches = SplitLinear(env.within("patches"))
        self.positions = _Table(env.within("positions"))
        self.dropout = ResidualDropout(env, "embed")

    def forward(self, images: Tensor, rows: Rows) -> Tensor:
        """Map images ``[rows, channels, height, width]`` to ``[rows, own patches, hidden]``."""
        patches = F.unfold(images, self.patch_size, stride=self.patch_size).transpose(1, 2)
        run = self.tensor.own_run(patches.shape[1])
        own = patches[:, run.start : run.stop].type_as(self.patches.weight)
        x = self.patches(own) + self.positions.weight[run.start : run.stop]
        y: Tensor = self.dropout(x, rows)
        return y


class TokenEnd(nn.Module):
    """Final norm and the output projection, split over the vocabulary; BERT's has a layer more."""

    def __init__(self, env: Environment) -> None:
        super().__init__()
        self.tensor = env.tensor
        is_bert = env.spec.family is ModelFamily.BERT
        self.transform = SplitLinear(env.within("transform")) if is_bert else None
        self.final_norm = Norm(env.within("final_norm"))
        self.head = _Head(env)

    def forward(self, x: Tensor, rows: Rows) -> Tensor:
        """Map ``[rows, own seq, hidden]`` to logits ``[rows, seq, own vocabulary]``."""
        if self.transform is not None:
            x = F.gelu(self.transform(x))
        logits: Tensor = self.head(self.tensor.enter(self.final_norm(x)))
        return logits

    @property
    def group(self) -> dist.ProcessGroup | None:
        """Ranks over which the logits are split."""
        return self.tensor.group


class PooledEnd(nn.Module):
    """A ViT's end: final norm, the mean over patches (Zhai et al. 2021, section 3.3), the class head."""

    def __init__(self, env: Environment) -> None:
        super().__init__()
        self.tensor, self.length = env.tensor, env.spec.sequence_length
        self.final_norm = Norm(env.within("final_norm"))
        self.head = SplitLinear(env.within("head"))

    def forward(self, x: Tensor, rows: Rows) -> Tensor:
        """Map ``[rows, own patches, hidden]`` to logits ``[rows, 1, classes]``."""
        pooled = self.final_norm(x).sum(1, keepdim=True) / self.length
        if self.tensor.is_sequence_split:
            pooled = self.tensor.summed(pooled)
        logits: Tensor = self.head(pooled)
        return logits

    @property
    def group(self) -> dist.ProcessGroup | None:
        """Every rank has all classes."""
        return None


class _Table(nn.Module):
    def __init__(self, env: Environment) -> None:
        super().__init__()
        self.weight = env.take("weight")


class _Head(nn.Module):
    """The output projection, by its own weight or by the embedding's."""

    def __init__(self, env: Environment) -> None:
        super().__init__()
        own = env.within("head")
        self.weight = env.take("embed.weight") if env.spec.tied_embeddings else own.take("weight")
        self.bias = own.take_if_any("bias")

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)
