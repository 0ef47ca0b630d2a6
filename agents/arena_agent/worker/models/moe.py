"""Experts without a capacity limit: every token reaches all experts it is routed to.

The balance loss follows Fedus et al. 2021 (Switch Transformers, eq. 4), weight * E * sum_e f_e P_e, with P_e over the
global batch and f_e, the share of tokens that expert e received, over the global batch of the step before. So its
gradient is a sum over tokens with constants known beforehand, the same however the batch is cut; f_e of a part of
the batch would make the result depend on the layout.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 - torch's own idiom
from torch import Tensor, nn

from arena_agent.worker.collectives import exchanged
from arena_agent.worker.models.environment import Environment, Rows


class Expert(nn.Module):
    """One SwiGLU feed-forward layer, or this rank's part of it."""

    def __init__(self, env: Environment) -> None:
        super().__init__()
        self.w_gate, self.w_in, self.w_out = (_Weight(env.within(name)) for name in ("w_gate", "w_in", "w_out"))

    def forward(self, x: Tensor) -> Tensor:
        """Map tokens ``[n, hidden]`` to this rank's part of the output."""
        inner = F.silu(F.linear(x, self.w_gate.weight)) * F.linear(x, self.w_in.weight)
        return torch.matmul(inner, self.w_out.weight)


class _Weight(nn.Module):
    def __init__(self, env: Environment) -> None:
        super().__init__()
        self.weight = env.take("weight")


class MixtureOfExperts(nn.Module):
    """Routes each token to its best experts and sums what they return, weighted by the router's softmax over them."""

    def __init__(self, env: Environment, layer: int) -> None:
        super().__init__()
        spec = env.spec
        self.layer, self.tensor, self.expert = layer, env.tensor, env.expert
        self.expert_count = spec.expert_count or 0
        self.choice_count = spec.experts_per_token
        self.balance_weight = spec.balance_loss_weight
        self.router = _Weight(env.within("router"))
        own = self.expert_count // env.expert.size
        first = own * env.expert.index
        self.experts = nn.ModuleDict(
            {str(index): Expert(env.within(f"experts.{index}")) for index in range(first, first + own)}
        )

    def forward(self, x: Tensor, rows: Rows) -> Tensor:
        """Map ``[rows, own seq, hidden]`` to itself."""
        scores = F.linear(x.float(), self.router.weight.float())
        best, chosen = scores.topk(self.choice_count, dim=-1)
        balance = self._balance(scores, chosen, rows)
        gates = self.tensor.enter(torch.softmax(best, dim=-1)).flatten(0, 1)
        chosen = self.tensor.gathered_plain(chosen).flatten(0, 1)
        tokens = self.tensor.enter(x)
        y = self._routed(tokens.flatten(0, 1), gates, chosen).view(tokens.shape)
        y = self.tensor.leave(y)
        return y if balance is None else _Attached.apply(y, balance)  # type: ignore[no-untyped-call]

    def _routed(self, tokens: Tensor, gates: Tensor, chosen: Tensor) -> Tensor:
        """Send ``[n, hidden]`` tokens to their ``[n, k]`` chosen experts and sum the gated results."""
        order = chosen.flatten().argsort(stable=True)
        source = order // self.choice_count
        counts = torch.bincount(chosen.flatten(), minlength=self.expert_count)
        outputs = self._computed(tokens[source], counts)
        weighted = outputs * gates.flatten()[order].type_as(outputs).unsqueeze(-1)
        return torch.zeros_like(tokens).index_add(0, source, weighted)

    def _computed(self, tokens: Tensor, counts: Tensor) -> Tensor:
        """Return the experts' outputs for tokens sorted by expert."""
        if self.expert.group is None:
            return self._by_expert(tokens, counts.tolist())
        size, own = self.expert.size, self.expert_count // self.expert.size
        theirs = torch.empty_like(counts)
        dist.all_to_all_single(theirs, counts, group=self.expert.group)
        sent, received = counts.view(size, own).sum(1).tolist(), theirs.view(size, own).sum(1).tolist()
        arrived = exchanged(tokens, sent, received, self.expert.group)
        # They come sorted by sender and then expert; experts want them the other way round.
        labels = torch.arange(own, device=tokens.device).repeat(size).repeat_interleave(theirs)
        order = labels.argsort(stable=True)
        outputs = self._by_expert(arrived[order], theirs.view(size, own).sum(0).tolist())
        returned = torch.empty_like(outputs).index_copy(0, order, outputs)
        return exchanged(returned, received, sent, self.expert.group)

    def _by_expert(self, tokens: Tensor, counts: list[int]) -> Tensor:
        parts = torch.split(tokens, counts)
        return torch.cat([expert(part) for expert, part in zip(self.experts.values(), parts, strict=True)])

    def _balance(self, scores: Tensor, chosen: Tensor, rows: Rows) -> Tensor | None:
        """Note the routing of a counted micro-batch and return its part of the balance loss."""
        if not rows.is_counted:
            return None
        record, key = rows.record, (self.layer, rows.micro_batch)
        if self.tensor.is_sequence_split or self.tensor.index == 0:
            record.routed[key] = torch.bincount(chosen.flatten(), minlength=self.expert_count)
        if not rows.is_training or not self.balance_weight or record.load is None:
            return None
        mean_share = torch.softmax(scores, dim=-1).flatten(0, 1).sum(0) / record.token_count
        balance = self.balance_weight * self.expert_count * (record.load[self.layer] * mean_share).sum()
        if self.tensor.is_sequence_split or self.tensor.index == 0:
            record.balance[key] = balance.detach()
        return balance


class _Attached(torch.autograd.Function):
    """Hands activations through and adds a loss of its own to the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, loss: Tensor) -> Tensor:
        ctx.like = loss
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        return gradients[0], torch.ones_like(ctx.like)
