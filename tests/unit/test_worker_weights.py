"""Initial weights are a function of seed and name, spread as the family says; decay spares vectors."""

from __future__ import annotations

import math

import pytest
import torch

from arena.domain.capability import TRAINED_FAMILIES
from arena.domain.job import ModelFamily
from arena.domain.parameters import Parameter, parameters_of
from arena_agent.worker.weights import initial_weight
from tests.covering_plans import train

ALL = [
    pytest.param(one, id=f"{family}-{one.name}")
    for family in (ModelFamily.GPT, ModelFamily.MOE, ModelFamily.WIDE_RESNET)
    for one in parameters_of(train(family).model)
]


@pytest.mark.parametrize("parameter", ALL)
def test_a_weight_starts_as_its_description_says(parameter: Parameter) -> None:
    value = initial_weight(parameter, 7)
    assert value.shape == parameter.shape
    assert value.dtype == torch.float32
    if parameter.init_std is None:
        assert bool((value == parameter.init_value).all())
        return
    count = parameter.element_count
    assert abs(float(value.mean())) < 5 * parameter.init_std / math.sqrt(count)
    # The sample deviation of n normal values is off by about 1 / sqrt(2 n).
    assert float(value.std()) == pytest.approx(parameter.init_std, rel=5 / math.sqrt(2 * count))


def test_names_and_seeds_have_values_of_their_own_and_asking_twice_changes_nothing() -> None:
    parameters = [one for one in parameters_of(train(ModelFamily.MOE).model) if one.init_std is not None]
    drawn = [(one.name, seed, initial_weight(one, seed)) for one in parameters for seed in (1, 2)]
    starts = {tuple((value.flatten()[:8] / value.std()).tolist()) for _, _, value in drawn}
    assert len(starts) == len(drawn)
    for one in parameters[:3]:
        assert torch.equal(initial_weight(one, 1), initial_weight(one, 1))


@pytest.mark.parametrize("family", TRAINED_FAMILIES)
def test_decay_applies_to_matrices_and_kernels_alone(family: ModelFamily) -> None:
    for one in parameters_of(train(family).model):
        is_vector = one.name.endswith(".bias") or "norm" in one.name
        assert one.is_decayed != is_vector, one.name
