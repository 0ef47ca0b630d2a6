"""Monotone where the world is: memory, links, peaks; and the same answer each time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from arena.domain.allocation import GpuGroup
from arena.domain.cluster import GpuType
from arena.domain.job import ParallelLimits, TrainSpec
from arena.planner.candidates import candidate_of
from arena.planner.cost import Estimates, evaluate
from arena.planner.hardware import catalog
from arena.planner.layout_space import LayoutSpace
from arena.planner.source import PlannerGridSource
from arena.units import GIB
from tests.builders import shape, train_spec
from tests.property.train_strategies import trains

TYPES = sorted(catalog())
PATCHES = {"image_size": 32, "patch_size": 32, "class_count": 10}
BIG_BEGINNING = TrainSpec.model_validate(
    {"model": {"family": "vit", "layers": 8, "hidden": 64, "heads": 4, **PATCHES}, "global_batch": 3}
)
sized = settings(max_examples=30, deadline=None)
groups = st.sampled_from([(1,), (2,), (1, 1), (4,), (2, 2), (3, 1), (8,), (4, 4), (8, 8)])


def price(train: TrainSpec, gpu_type: GpuType, counts: tuple[int, ...]) -> Estimates | None:
    group = GpuGroup.of(gpu_type.name, counts)
    limits = ParallelLimits(zero=(0, 1, 2, 3), schedules=("1f1b", "gpipe", "interleaved"))
    layouts = LayoutSpace(train=train, limits=limits).layouts(group)
    return evaluate(train, gpu_type, group, layouts.candidates()) if len(layouts) else None


def faster(gpu_type: GpuType, factor: float, *names: str) -> GpuType:
    changes: Mapping[str, Any] = {name: getattr(gpu_type, name) * factor for name in names}
    return replace(gpu_type, **changes)


@sized
@given(train=trains, name=st.sampled_from(TYPES), counts=groups, factor=st.floats(1.0, 100.0))
def test_a_faster_link_never_slows(train: TrainSpec, name: str, counts: tuple[int, ...], factor: float):
    gpu_type = catalog()[name]
    before = price(train, gpu_type, counts)
    for link in ("link_bandwidth_bytes_per_s", "network_bandwidth_bytes_per_s", "memory_bandwidth_bytes_per_s"):
        after = price(train, faster(gpu_type, factor, link), counts)
        if before is None or after is None:
            assert before is after
            continue
        assert np.all(after.iter_time_s <= before.iter_time_s * (1 + 1e-12))


@sized
@given(train=trains, name=st.sampled_from(TYPES), counts=groups, factor=st.floats(1.0, 100.0))
def test_a_longer_latency_never_helps(train: TrainSpec, name: str, counts: tuple[int, ...], factor: float):
    gpu_type = catalog()[name]
    slower = faster(gpu_type, factor, "link_latency_s", "network_latency_s", "launch_latency_s")
    before, after = price(train, gpu_type, counts), price(train, slower, counts)
    assert before is None or after is None or np.all(after.iter_time_s >= before.iter_time_s * (1 - 1e-12))


@sized
@given(train=trains, name=st.sampled_from(TYPES), counts=groups)
def test_estimates_are_finite_positive_and_add_up(train: TrainSpec, name: str, counts: tuple[int, ...]):
    estimates = price(train, catalog()[name], counts)
    if estimates is None:
        return
    assert np.all(np.isfinite(estimates.iter_time_s))
    assert np.all(estimates.iter_time_s > 0)
    parts = np.array(list(estimates.breakdown_s.values()))
    assert np.all(parts >= -1e-12)
    assert np.allclose(parts.sum(axis=0), estimates.iter_time_s)
    assert np.all(estimates.memory_bytes_by_stage.max(axis=1) > 0)


@sized
@given(train=trains, memory_gib=st.floats(0.3, 80.0), more=st.floats(1.0, 10.0))
def test_more_memory_never_makes_a_feasible_group_infeasible_or_slower(
    train: TrainSpec, memory_gib: float, more: float
):
    spec = train_spec().model_copy(update={"train": train})
    cluster = shape(("a100-80", 4, 2))
    grids = []
    for size in (memory_gib, memory_gib * more):
        row = replace(catalog()["a100-80"], memory_bytes=int(size * GIB))
        grids.append(PlannerGridSource(gpu_types={row.name: row}).grid(spec, cluster))
    small, large = grids
    assert {cell.group for cell in small.cells} <= {cell.group for cell in large.cells}


@sized
@given(train=trains)
def test_the_same_question_has_the_same_answer_and_cells_are_in_order(train: TrainSpec):
    spec = train_spec().model_copy(update={"train": train})
    cluster = shape(("a100-80", 4, 2), ("v100-16", 2, 2))
    grid = PlannerGridSource().grid(spec, cluster)
    assert grid == PlannerGridSource().grid(spec, cluster)
    keys = [(cell.group.gpu_count, cell.best.estimate.iter_time_s) for cell in grid.cells]
    assert keys == sorted(keys)
    assert len({cell.group for cell in grid.cells}) == len(grid.cells)


@sized
@given(train=trains, name=st.sampled_from(TYPES))
def test_sequence_parallelism_never_needs_more_time_or_memory(train: TrainSpec, name: str):
    gpu_type = catalog()[name]
    group = GpuGroup.of(name, (8,))
    layouts = LayoutSpace(train=train, limits=ParallelLimits()).layouts(group)
    if not len(layouts):
        return
    estimates = evaluate(train, gpu_type, group, layouts.candidates())
    found = {str(layouts.plan(index)): index for index in range(len(layouts))}
    for text, index in found.items():
        plain = found.get(text.removesuffix(" sp"))
        if text.endswith(" sp") and plain is not None:
            assert estimates.iter_time_s[index] <= estimates.iter_time_s[plain] * (1 + 1e-12)
            assert np.all(
                estimates.memory_bytes_by_stage[index] <= estimates.memory_bytes_by_stage[plain] * (1 + 1e-12)
            )


@sized
@example(train=BIG_BEGINNING, index=201, counts=(8, 8))  # the empty second chunk of a plan without interleaving
@given(train=trains, index=st.integers(0, 10_000), counts=groups)
def test_a_plan_costs_the_same_alone_as_among_all_others(train: TrainSpec, index: int, counts: tuple[int, ...]):
    gpu_type, group = catalog()["h100"], GpuGroup.of("h100", counts)
    limits = ParallelLimits(zero=(0, 1, 2, 3), schedules=("1f1b", "gpipe", "interleaved"))
    layouts = LayoutSpace(train=train, limits=limits).layouts(group)
    if not len(layouts):
        return
    index %= len(layouts)
    among = evaluate(train, gpu_type, group, layouts.candidates())
    plan = layouts.plan(index)
    alone = evaluate(train, gpu_type, group, candidate_of(plan, train.global_batch))
    memory = among.memory_bytes_by_stage[index]
    assert np.allclose(memory[: plan.pp], alone.memory_bytes_by_stage[0])
    assert not memory[plan.pp :].any()
    assert np.isclose(among.iter_time_s[index], alone.iter_time_s[0])
    assert all(np.isclose(part[index], alone.breakdown_s[key][0]) for key, part in among.breakdown_s.items())
