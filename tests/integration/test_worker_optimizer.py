"""The worker's optimizer takes torch's own steps bit by bit; what it recomputes is what autograd would have kept."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from arena.domain.job import ModelFamily
from arena.domain.optimizer import OptimizerSpec
from arena.domain.parameters import parameters_of
from arena_agent.worker.models.recomputation import recomputed
from arena_agent.worker.optimizer import Optimizer
from arena_agent.worker.placement import Share
from arena_agent.worker.units import Run
from tests.covering_plans import train

pytestmark = pytest.mark.slow

STEPS = 3


def drawn(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def make_runs() -> list[Run]:
    """One run of a decayed parameter and one of another, and one of each without a gradient."""
    parameters = parameters_of(train(ModelFamily.GPT).model)
    decayed = next(one for one in parameters if one.is_decayed)
    other = next(one for one in parameters if not one.is_decayed)
    runs = []
    for index, parameter in enumerate((decayed, other, decayed, other)):
        share = Share(parameter=parameter, start=0, stop=1, ranks=(0,), spans_stages=False, gradient_weight=1.0)
        value = nn.Parameter(drawn(7 + index, seed=index), requires_grad=False)
        value.grad = torch.zeros_like(value) if index < 2 else None
        runs.append(Run(share=share, start=0, stop=1, value=value, is_counted=True, is_written=True))
    return runs


def torchs_own(runs: list[Run], spec: OptimizerSpec) -> torch.optim.Optimizer:
    decayed = [run.value for run in runs if run.share.parameter.is_decayed]
    others = [run.value for run in runs if not run.share.parameter.is_decayed]
    groups: list[dict[str, Any]] = [
        {"params": decayed, "weight_decay": spec.weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    if spec.name == "sgd":
        return torch.optim.SGD(groups, lr=spec.lr, momentum=spec.momentum)
    return torch.optim.AdamW(groups, lr=spec.lr, betas=(spec.beta1, spec.beta2), eps=spec.eps, fused=True)


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize(
    "words",
    [
        {"name": "adamw"},
        {"name": "adamw", "eps": 1e-3, "beta1": 0.5},
        {"name": "sgd"},
        {"name": "sgd", "momentum": 0.9},
    ],
    ids=str,
)
def test_steps_are_those_of_torchs_own_optimizers(words: dict[str, Any], weight_decay: float) -> None:
    spec = OptimizerSpec.model_validate({**words, "weight_decay": weight_decay})
    ours, theirs = make_runs(), make_runs()
    optimizer, reference = Optimizer(ours, spec), torchs_own(theirs, spec)
    for step in range(STEPS):
        rate = spec.lr * (1 + step)
        for index, run in enumerate([*ours, *theirs]):
            if run.value.grad is not None:
                run.value.grad.copy_(drawn(*run.value.shape, seed=100 * step + index % len(ours)))
        optimizer.set_step(step=step, lr=rate)
        optimizer.step()
        for group in reference.param_groups:
            group["lr"] = rate
        reference.step()
    for index, (own, other) in enumerate(zip(ours, theirs, strict=True)):
        assert torch.equal(own.value, other.value)
        assert torch.equal(own.value, drawn(7 + index, seed=index)) == (own.value.grad is None)
        for name, value in optimizer.moments(own).items():
            kept = reference.state[other.value].get(name, torch.zeros_like(value))
            assert torch.equal(value, kept), name


def test_an_optimizer_of_nothing_takes_steps() -> None:
    optimizer = Optimizer([], OptimizerSpec())
    optimizer.set_step(step=3, lr=0.1)
    optimizer.step()


class Block(nn.Module):
    """Counts its runs, and how many tensors autograd would keep of them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (nn.Parameter(drawn(6, 6, seed=seed)) for seed in (1, 2))
        self.began, self.ended = 0, 0

    def forward(self, x: Tensor, factor: float, mask: Tensor) -> Tensor:
        self.began += 1
        y = torch.tanh(x @ self.first).masked_fill(mask, 0.0)
        z: Tensor = torch.sigmoid(y @ self.second * factor) * y
        self.ended += 1
        return z


def gradients_of(block: Block, x: Tensor, *, is_recomputed: bool) -> list[Tensor]:
    mask = drawn(5, 6, seed=9) > 1
    y: Tensor = x * 2
    for _ in range(2):
        y = recomputed(block, y, 0.5, mask) if is_recomputed else block(y, 0.5, mask)
    y.square().sum().backward()  # type: ignore[no-untyped-call]
    leaves = [x, block.first, block.second]
    found = [leaf.grad for leaf in leaves if leaf.grad is not None]
    assert len(found) == len(leaves)
    return found


def test_a_recomputed_part_has_the_gradients_of_one_that_is_kept() -> None:
    kept, again = (
        gradients_of(Block(), drawn(5, 6, seed=3).requires_grad_(), is_recomputed=choice) for choice in (False, True)
    )
    assert all(torch.equal(one, other) for one, other in zip(kept, again, strict=True))


def test_a_part_runs_once_more_no_further_than_it_must_and_keeps_nothing_in_between() -> None:
    block, x = Block(), drawn(5, 6, seed=3).requires_grad_()
    saved: list[Tensor] = []

    def note(tensor: Tensor) -> Tensor:
        saved.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        y = recomputed(block, x, 0.5, torch.zeros(5, 6, dtype=torch.bool))
    assert (block.began, block.ended, saved) == (1, 1, [])
    y.sum().backward()
    assert (block.began, block.ended) == (2, 1)


def test_without_gradients_a_part_runs_once() -> None:
    block = Block()
    with torch.no_grad():
        recomputed(block, drawn(5, 6, seed=3), 0.5, torch.zeros(5, 6, dtype=torch.bool))
    assert block.began == 1


def test_a_part_that_does_less_the_second_time_is_an_error() -> None:
    runs: list[int] = []

    def fickle(x: Tensor) -> Tensor:
        runs.append(1)
        return torch.sigmoid(torch.tanh(x)) if len(runs) == 1 else torch.tanh(x)

    y = recomputed(fickle, drawn(4, seed=1).requires_grad_())
    with pytest.raises(RuntimeError, match="fewer tensors"):
        y.sum().backward()
