"""What is searched together costs and is the same as what is searched alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from arena.domain.allocation import GpuGroup
from arena.domain.grid import Cell
from arena.domain.job import ParallelLimits, TrainSpec
from arena.planner.bulk import batches_of
from arena.planner.hardware import catalog
from arena.planner.holdings import holdings
from arena.planner.layout_space import LayoutSpace
from arena.planner.memory import memory_by_stage, memory_kind, operators_of, peaks_by_stage
from arena.planner.model import model_cost
from arena.planner.search import Search
from tests.builders import train_spec

GPT = {"family": "gpt", "layers": 12, "hidden": 1024, "heads": 16, "vocab_size": 50304, "seq_len": 1024}
MIXTURE = {**GPT, "family": "moe", "layers": 4, "expert_count": 8, "vocab_size": 32000}
RESNET = {
    "family": "wide_resnet",
    "layers": 8,
    "group_depths": (2, 3, 2, 1),
    "hidden": 160,
    "norm_groups": 8,
    "image_size": 224,
    "class_count": 1000,
}
WANTED = [
    (catalog()[name], GpuGroup.of(name, counts))
    for name in ("a100-80", "t4", "h100", "cpu")
    for counts in ((1,), (3,), (8,), (4, 4), (6, 5), (8, 8, 8))
]
ALL = ParallelLimits(schedules=("1f1b", "gpipe", "interleaved"))


def train_of(model: dict[str, Any]) -> TrainSpec:
    train = train_spec(model=model, train={"global_batch": 48, "precision": "bf16"}).train
    assert train is not None
    return train


@pytest.mark.parametrize("model", [GPT, MIXTURE, RESNET])
def test_a_cell_is_the_same_alone_as_among_places_of_other_types_and_shapes(model: dict[str, Any]) -> None:
    search = Search(train=train_of(model), limits=ParallelLimits())
    together, counts = search.cells(WANTED)
    alone = [search.cells([place]) for place in WANTED]
    assert counts.judged == sum(one.judged for _, one in alone)
    assert counts.timed == sum(one.timed for _, one in alone)
    for cell, ((expected,), _) in zip(together, alone, strict=True):
        if not isinstance(expected, Cell):
            assert cell == expected
            continue
        assert isinstance(cell, Cell)
        assert (cell.group, cell.best.plan) == (expected.group, expected.best.plan)
        times = [one.estimate.iter_time_s for one in (cell.best, *cell.others)]
        assert times == pytest.approx([one.estimate.iter_time_s for one in (expected.best, *expected.others)])


@pytest.mark.parametrize("model", [GPT, MIXTURE, RESNET])
def test_types_of_one_memory_kind_need_the_same_as_each_for_itself(model: dict[str, Any]) -> None:
    train = train_of(model)
    space = LayoutSpace(train=train, limits=ALL)
    gpu_types = [catalog()[name] for name in ("v100-16", "t4", "h100", "b200", "cpu")]
    kinds = {memory_kind(gpu_type): gpu_type for gpu_type in gpu_types}
    for batch in batches_of(space.layouts(GpuGroup.of("t4", [12]))):
        for gpu_type in gpu_types:
            cost = model_cost(train.model, operators_of(gpu_type))
            held = holdings(cost, batch.candidates)
            expected = memory_by_stage(cost, train, gpu_type, batch.candidates, held).total
            like = kinds[memory_kind(gpu_type)]
            found = peaks_by_stage(model_cost(train.model, operators_of(like)), train, like, batch.candidates)
            assert np.allclose(found, expected, rtol=1e-12)
