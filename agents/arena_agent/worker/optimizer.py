"""The optimizer over what a rank owns, the gradient's norm and clipping.

AdamW and SGD work element by element, so it makes no difference that they see runs of elements instead of tensors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

import torch
from torch import Tensor

from arena.domain.optimizer import OptimizerSpec
from arena_agent.worker.units import Run
from arena_agent.worker.weights import initial_weight

_NORM_BLOCK = 4096


@torch.no_grad()
def initialise(runs: Sequence[Run], seed: int) -> None:
    """Give every owned element its initial value, cut from the whole parameter."""
    for _, group in groupby(sorted(runs, key=_name), key=_name):
        own = list(group)
        whole = initial_weight(own[0].share.parameter, seed).flatten()
        for run in own:
            run.value.copy_(whole[run.start : run.stop])


def _name(run: Run) -> str:
    return run.share.parameter.name


def build_optimizer(runs: Sequence[Run], spec: OptimizerSpec) -> torch.optim.Optimizer:
    """Build the optimizer with its state in place, so that a checkpoint can be loaded into it."""
    groups = [
        {"params": [run.value for run in runs if run.share.parameter.is_decayed], "weight_decay": spec.weight_decay},
        {"params": [run.value for run in runs if not run.share.parameter.is_decayed], "weight_decay": 0.0},
    ]
    # Ranks that own nothing still take part in every step.
    groups = [group for group in groups if group["params"]] or [{"params": [torch.zeros(0)], "weight_decay": 0.0}]
    if spec.name == "sgd":
        sgd = torch.optim.SGD(groups, lr=spec.lr, momentum=spec.momentum)
        for run in runs:
            if spec.momentum:
                sgd.state[run.value] = {"momentum_buffer": torch.zeros_like(run.value)}
        return sgd
    adamw = torch.optim.AdamW(groups, lr=spec.lr, betas=(spec.beta1, spec.beta2), eps=spec.eps, fused=True)
    for run in runs:
        adamw.state[run.value] = {
            "step": torch.tensor(0.0, device=run.value.device),
            "exp_avg": torch.zeros_like(run.value),
            "exp_avg_sq": torch.zeros_like(run.value),
        }
    return adamw


def set_step(optimizer: torch.optim.Optimizer, *, step: int, lr: float) -> None:
    """Tell the optimizer how many steps are done and the rate of the next."""
    for group in optimizer.param_groups:
        group["lr"] = lr
    for state in optimizer.state.values():
        if "step" in state:
            state["step"].fill_(float(step))


def moments(optimizer: torch.optim.Optimizer, run: Run) -> Iterator[tuple[str, Tensor]]:
    """Yield the optimizer's tensors for a run, by name; what is a function of the step is left out."""
    for key, value in optimizer.state[run.value].items():
        if key != "step":
            yield key, value


def squared_norm(runs: Sequence[Run]) -> float:
    """Return this rank's share of the squared gradient norm of the whole model."""
    gradients = [run.value.grad for run in runs if run.is_counted and run.value.grad is not None]
    norms = [norm for gradient in gradients for norm in _block_norms(gradient)]
    # Added up where they are, so that a device is waited for once.
    return float(torch.cat(norms).double().square().sum()) if norms else 0.0


def _block_norms(values: Tensor) -> Iterator[Tensor]:
    """Yield norms of short blocks: summed in float32 they are exact to 1e-7, and float64 would have to copy values."""
    whole = len(values) - len(values) % _NORM_BLOCK
    if whole:
        yield torch.linalg.vector_norm(values[:whole].view(-1, _NORM_BLOCK), dim=1)
    if whole < len(values):
        yield torch.linalg.vector_norm(values[whole:]).unsqueeze(0)


def clip(runs: Sequence[Run], *, norm: float, norm_max: float) -> None:
    """Scale all gradients so that the global norm is at most ``norm_max``."""
    if norm > norm_max:
        torch._foreach_mul_([run.value.grad for run in runs if run.value.grad is not None], norm_max / norm)
