"""The planner's arrays against the scalar reference, plan by plan."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arena.domain.allocation import GpuGroup
from arena.domain.job import ParallelLimits, TrainSpec
from arena.planner.cost import evaluate
from arena.planner.hardware import catalog
from arena.planner.layout_space import LayoutSpace
from tests.builders import train_spec
from tests.property.train_strategies import trains
from tests.reference_cost import price

ALL = ParallelLimits(zero=(0, 1, 2, 3), schedules=("1f1b", "gpipe", "interleaved"))
LLAMA_7B = {
    "family": "llama",
    "layers": 32,
    "hidden": 4096,
    "heads": 32,
    "ffn_hidden": 11008,
    "vocab_size": 32000,
    "seq_len": 2048,
}
EXACT = 1e-9


def compare(train: TrainSpec, group: GpuGroup, picks: int, seed: int) -> int:
    """Compare some random plans of a group; return how many."""
    gpu_type = catalog()[group.parts[0].gpu_type]
    layouts = LayoutSpace(train=train, limits=ALL).layouts(group)
    if not len(layouts):
        return 0
    estimates = evaluate(train, gpu_type, group, layouts.candidates())
    chosen = random.Random(seed).choices(range(len(layouts)), k=picks)
    for index in chosen:
        plan = layouts.plan(index)
        expected = price(train, plan, gpu_type, group.parts[0].node_counts)
        memory = estimates.memory_bytes_by_stage[index, : plan.pp].tolist()
        assert estimates.iter_time_s[index] == pytest.approx(expected.iter_time_s, rel=EXACT), (str(plan), str(group))
        assert memory == pytest.approx(expected.memory_bytes, rel=EXACT), (str(plan), str(group))
    return len(chosen)


def test_a_thousand_plans_of_llama_7b() -> None:
    train = train_spec(model=LLAMA_7B, train={"global_batch": 512, "precision": "bf16"}).train
    assert train is not None
    shapes = [(1,), (3,), (8,), (4, 4), (7, 6), (8, 8), (8,) * 5, (8,) * 8]
    groups = [GpuGroup.of(name, shape) for name in ("a100-80", "h100", "v100-32", "a10") for shape in shapes]
    assert sum(compare(train, group, 32, seed) for seed, group in enumerate(groups)) >= 1000


@settings(max_examples=25, deadline=None)
@given(
    train=trains,
    name=st.sampled_from(sorted(catalog())),
    shape=st.sampled_from([(1,), (2,), (1, 1), (4,), (2, 2), (3, 1), (8,), (4, 4), (8, 8), (6, 6, 5)]),
    seed=st.integers(0, 2**20),
)
def test_plans_of_every_family(train: TrainSpec, name: str, shape: tuple[int, ...], seed: int) -> None:
    compare(train, GpuGroup.of(name, shape), 8, seed)
