"""The balance loss of experts and its gradient are those of the whole batch, however the batch is cut."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from arena.domain.job import ModelSpec
from arena.domain.parallel import Recompute
from arena.domain.parameters import parameters_of
from arena_agent.worker.collectives import TensorGroup
from arena_agent.worker.models.environment import Environment, ExpertGroup, Rows, StepRecord
from arena_agent.worker.models.moe import MixtureOfExperts

ROWS, LENGTH, WIDTH, EXPERTS = 6, 8, 16, 4
SPEC = ModelSpec.model_validate(
    {
        "family": "moe",
        "layers": 1,
        "hidden": WIDTH,
        "heads": 2,
        "ffn_hidden": 8,
        "expert_count": EXPERTS,
        "balance_loss_weight": 0.3,
    }
)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Tensors this small only wait for threads."""
    count = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(count)


def mixture(*, is_sequence_split: bool = False) -> MixtureOfExperts:
    generator = torch.Generator().manual_seed(4)
    parameters = {
        one.name: nn.Parameter(torch.randn(one.shape, generator=generator) * 0.3) for one in parameters_of(SPEC)
    }
    env = Environment(
        spec=SPEC,
        parameters=parameters,
        prefix="layers.0.mlp.",
        tensor=TensorGroup(group=None, size=1, index=0, is_sequence_split=is_sequence_split),
        expert=ExpertGroup(),
        recompute=Recompute.NONE,
    )
    return MixtureOfExperts(env, 0)


def tokens() -> Tensor:
    return torch.randn(ROWS, LENGTH, WIDTH, generator=torch.Generator().manual_seed(9))


def trained(parts: list[Tensor], load: Tensor, *, is_counted: bool = True) -> tuple[float, Tensor, Tensor]:
    """Return the balance loss, the router's gradient by it alone, and the tokens of each expert."""
    layer = mixture(is_sequence_split=True)
    record = StepRecord(load=load[None], token_count=ROWS * LENGTH)
    for index, part in enumerate(parts):
        rows = Rows(
            keys=torch.zeros(len(part), dtype=torch.int64),
            micro_batch=index,
            is_training=True,
            is_counted=is_counted,
            record=record,
        )
        y = layer(part, rows)
        # Nothing comes from behind, so what reaches the router is the balance loss's own.
        y.backward(torch.zeros_like(y))
    gradient = layer.router.weight.grad
    balance = sum(float(one) for one in record.balance.values())
    routed = sum(record.routed.values(), torch.zeros(EXPERTS, dtype=torch.int64))
    return balance, torch.zeros(EXPERTS, WIDTH) if gradient is None else gradient, routed


loads = st.lists(st.integers(1, 20), min_size=EXPERTS, max_size=EXPERTS).map(
    lambda counts: torch.tensor(counts, dtype=torch.float32) / sum(counts)
)
cuts = st.sets(st.integers(1, ROWS - 1)).map(lambda edges: list(itertools.pairwise([0, *sorted(edges), ROWS])))


@settings(deadline=None, max_examples=25)
@given(load=loads, rows=cuts, tp=st.sampled_from([1, 2, 4]))
def test_cutting_samples_and_the_sequence_changes_nothing(load: Tensor, rows: list[tuple[int, int]], tp: int) -> None:
    x = tokens()
    parts = [part for start, stop in rows for part in x[start:stop].chunk(tp, dim=1)]
    balance, gradient, routed = trained(parts, load)
    whole_balance, whole_gradient, whole_routed = trained([x], load)
    assert abs(balance - whole_balance) < 1e-6
    torch.testing.assert_close(gradient, whole_gradient, rtol=1e-4, atol=1e-7)
    assert torch.equal(routed, whole_routed)
    assert int(routed.sum()) == ROWS * LENGTH * SPEC.experts_per_token


@settings(deadline=None, max_examples=25)
@given(load=loads)
def test_it_is_what_the_paper_says(load: Tensor) -> None:
    """weight * experts * sum over experts of (share of tokens * mean probability), and its gradient by autograd."""
    layer, x = mixture(), tokens()
    weight = layer.router.weight.detach().clone().requires_grad_()
    mean = torch.softmax(x.flatten(0, 1) @ weight.T, dim=-1).mean(0)
    expected = 0.3 * EXPERTS * (load * mean).sum()
    expected.backward()
    balance, gradient, _ = trained([x], load)
    assert abs(balance - float(expected.detach())) < 1e-6
    assert weight.grad is not None
    torch.testing.assert_close(gradient, weight.grad, rtol=1e-4, atol=1e-7)


def test_equal_loads_have_no_gradient_and_unequal_ones_do() -> None:
    equal = trained([tokens()], torch.full((EXPERTS,), 1 / EXPERTS))[1]
    unequal = trained([tokens()], torch.tensor([0.7, 0.1, 0.1, 0.1]))[1]
    assert float(equal.abs().max()) < 1e-7
    assert float(unequal.abs().max()) > 1e-4


def test_a_stand_in_counts_nowhere() -> None:
    balance, gradient, routed = trained([tokens()], torch.tensor([0.7, 0.1, 0.1, 0.1]), is_counted=False)
    assert balance == 0.0
    assert not gradient.any()
    assert int(routed.sum()) == 0
