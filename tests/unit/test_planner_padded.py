"""Batches that a replica count divides badly: micro-batches of which the last is not full are looked at as well."""

from __future__ import annotations

import pytest

from arena.domain.allocation import GpuGroup
from arena.domain.grid import Cell
from arena.domain.job import ParallelLimits
from arena.domain.parallel import ParallelPlan
from arena.planner.candidates import candidate_of
from arena.planner.cost import evaluate
from arena.planner.hardware import catalog
from arena.planner.search import Search
from tests.builders import train_spec

MODEL = {"family": "llama", "layers": 22, "hidden": 2048, "heads": 32, "vocab_size": 32000, "seq_len": 1024}
SIMPLER_SHARE = 1.03
"""The search prefers a simpler plan that is at most so much slower."""


@pytest.mark.parametrize(("dp", "counts"), [(3, [3]), (5, [5]), (7, [4, 3])])
@pytest.mark.parametrize("global_batch", [64, 256, 257])
def test_no_replicated_plan_beats_the_cell(dp: int, counts: list[int], global_batch: int) -> None:
    train = train_spec(model=MODEL, train={"global_batch": global_batch, "precision": "bf16"}).train
    assert train is not None
    gpu_type, group = catalog()["h100"], GpuGroup.of("h100", counts)
    ((cell,), _) = Search(train=train, limits=ParallelLimits()).cells([(gpu_type, group)])
    assert isinstance(cell, Cell)
    for size in (1, 2, 4, 8, 16):
        plan = ParallelPlan.uniform(layer_count=22, dp=dp, micro_batch_size=size)
        found = evaluate(train, gpu_type, group, candidate_of(plan, global_batch))
        if found.memory_bytes_by_stage.max() <= 0.9 * gpu_type.memory_bytes:
            assert cell.best.estimate.iter_time_s <= SIMPLER_SHARE * float(found.iter_time_s[0])
