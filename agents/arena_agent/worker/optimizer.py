"""The optimizer over what a rank owns, the gradient's norm and clipping.

AdamW and SGD work element by element, so it makes no difference that they see runs of elements instead of tensors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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


class Optimizer:
    """AdamW or SGD with its state in place from the start, so that a checkpoint can be loaded into it.

    The kernels are torch's; its optimizer classes would load ``torch._dynamo``, of no use here, which takes as long as
    all of torch besides, in every process that trains.

    Args:
        runs: What the rank owns; may be nothing.
        spec: What the job asks for.
    """

    def __init__(self, runs: Sequence[Run], spec: OptimizerSpec) -> None:
        self._spec = spec
        self._lr = spec.lr
        self._runs = tuple(runs)
        self._moments: dict[Tensor, dict[str, Tensor]] = {
            run.value: {name: torch.zeros_like(run.value) for name in moment_names(spec)} for run in runs
        }
        # The number of the coming step, where the kernel reads it.
        self._step = torch.tensor(1.0, device=runs[0].value.device if runs else None)

    def moments(self, run: Run) -> Mapping[str, Tensor]:
        """Return the state of a run by name; what is a function of the step is left out."""
        return self._moments[run.value]

    def set_step(self, *, step: int, lr: float) -> None:
        """Say how many steps are done and the rate of the next."""
        self._lr = lr
        self._step.fill_(float(step + 1))

    @torch.no_grad()
    def step(self) -> None:
        """Change all values by their gradients."""
        for is_decayed in (True, False):
            runs = [run for run in self._runs if run.share.parameter.is_decayed is is_decayed]
            runs = [run for run in runs if run.value.grad is not None]
            weight_decay = self._spec.weight_decay if is_decayed else 0.0
            if runs and self._spec.name == "sgd":
                self._step_sgd(runs, weight_decay)
            elif runs:
                self._step_adamw(runs, weight_decay)

    def _step_sgd(self, runs: Sequence[Run], weight_decay: float) -> None:
        values: list[Tensor] = [run.value for run in runs]
        changes = _gradients(runs)
        if weight_decay:
            changes = list(torch._foreach_add(changes, values, alpha=weight_decay))
        if self._spec.momentum:
            buffers = self._all(runs, "momentum_buffer")
            torch._foreach_mul_(buffers, self._spec.momentum)
            torch._foreach_add_(buffers, changes)
            changes = buffers
        torch._foreach_add_(values, changes, alpha=-self._lr)

    def _step_adamw(self, runs: Sequence[Run], weight_decay: float) -> None:
        torch._fused_adamw_(
            [run.value for run in runs],
            _gradients(runs),
            self._all(runs, "exp_avg"),
            self._all(runs, "exp_avg_sq"),
            [],
            [self._step] * len(runs),
            amsgrad=False,
            lr=self._lr,
            beta1=self._spec.beta1,
            beta2=self._spec.beta2,
            weight_decay=weight_decay,
            eps=self._spec.eps,
            maximize=False,
        )

    def _all(self, runs: Sequence[Run], name: str) -> list[Tensor]:
        return [self._moments[run.value][name] for run in runs]


def moment_names(spec: OptimizerSpec) -> tuple[str, ...]:
    """Return what an optimizer keeps of each element, by torch's names."""
    if spec.name == "adamw":
        return ("exp_avg", "exp_avg_sq")
    return ("momentum_buffer",) if spec.momentum else ()


def _gradients(runs: Sequence[Run]) -> list[Tensor]:
    return [run.value.grad for run in runs if run.value.grad is not None]


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
