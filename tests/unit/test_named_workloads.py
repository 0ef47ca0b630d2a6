"""Models that traces only name have the size that the name says."""

from __future__ import annotations

import re

import pytest

from arena.domain.job import WorkloadSpec
from arena.planner.model import model_cost
from arena.planner.named_workloads import described, known_names

BILLIONS = {"M": 1e-3, "B": 1.0}


@pytest.mark.parametrize("name", known_names())
def test_a_model_is_as_large_as_its_name_says(name: str) -> None:
    train = described(WorkloadSpec(name=name, global_batch=64))
    assert train is not None
    size, unit = re.fullmatch(r"\w+__([0-9.]+)([MB])", name).groups()  # type: ignore[union-attr]
    count = model_cost(train.model).parameter_count / 1e9
    assert count == pytest.approx(float(size) * BILLIONS[unit], rel=0.11)
    assert train.global_batch == 64


@pytest.mark.parametrize("name", ["bert__2B", "moe__1.3", "gpt__1.3B", "bert", ""])
def test_other_names_are_not_guessed(name: str) -> None:
    assert described(WorkloadSpec.model_construct(name=name, global_batch=1)) is None
