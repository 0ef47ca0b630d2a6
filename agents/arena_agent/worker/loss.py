"""Cross-entropy over a vocabulary that may be split over tensor parallelism, without gathering the logits."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from arena_agent.worker.data import IGNORED_TARGET


def summed_cross_entropy(logits: Tensor, targets: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """Return the sum of the losses of all tokens whose target is not ignored, in float32.

    Args:
        logits: ``[rows, seq, vocabulary / group size]``, this rank's part of the vocabulary.
        targets: ``[rows, seq]``.
        group: Ranks among which the vocabulary is split evenly, in rank order; None when it is whole here.
    """
    if group is None:
        return torch.nn.functional.cross_entropy(
            logits.float().flatten(0, 1), targets.flatten(), ignore_index=IGNORED_TARGET, reduction="sum"
        )
    loss: Tensor = _SplitCrossEntropy.apply(logits, targets, group)  # type: ignore[no-untyped-call]
    return loss


class _SplitCrossEntropy(torch.autograd.Function):
    """Log-sum-exp and target logit are reduced over the group; the gradient, softmax - one-hot, is local."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, group: dist.ProcessGroup) -> Tensor:
        width = logits.shape[-1]
        scores = logits.float()
        peak = scores.amax(dim=-1)
        dist.all_reduce(peak, op=dist.ReduceOp.MAX, group=group)
        scores = scores - peak.unsqueeze(-1)
        local_targets = targets - dist.get_rank(group) * width
        is_here = (local_targets >= 0) & (local_targets < width)
        index = local_targets.clamp(0, width - 1).unsqueeze(-1)
        picked = scores.gather(-1, index).squeeze(-1) * is_here
        exponentials = scores.exp()
        sums = torch.stack((exponentials.sum(dim=-1), picked))
        dist.all_reduce(sums, group=group)
        is_counted = targets != IGNORED_TARGET
        ctx.save_for_backward(exponentials / sums[0].unsqueeze(-1), index, is_here, is_counted)
        ctx.dtype = logits.dtype
        return ((sums[0].log() - sums[1]) * is_counted).sum()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        softmax, index, is_here, is_counted = ctx.saved_tensors
        one_hot = torch.zeros_like(softmax).scatter_(-1, index, is_here.unsqueeze(-1).to(softmax.dtype))
        scale = gradients[0] * is_counted.unsqueeze(-1)
        return ((softmax - one_hot) * scale).to(ctx.dtype), None, None
