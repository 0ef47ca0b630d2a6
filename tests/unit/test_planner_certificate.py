"""The certified plan of a group: the fastest of all layouts, and no split of layers below the bound."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, pairwise

import pytest

from arena.domain.allocation import GpuGroup
from arena.domain.job import ParallelLimits
from arena.domain.parallel import ParallelPlan, Stage
from arena.domain.reason import Reason
from arena.planner.candidates import candidate_of
from arena.planner.certificate import Certified, certified_best
from arena.planner.cost import evaluate
from arena.planner.hardware import catalog
from arena.planner.layout_space import LayoutSpace
from arena.planner.memory import USABLE_SHARE
from arena.planner.search import Search
from tests.builders import train_spec

MODEL = {"family": "gpt", "layers": 7, "hidden": 2048, "heads": 16, "vocab_size": 50304, "seq_len": 1024}
SPEC = train_spec(model=MODEL, train={"global_batch": 16, "precision": "bf16"})
A10 = catalog()["a10"]
GROUP = GpuGroup.of("a10", [4])


def certified(limits: ParallelLimits, gpu_type: str = "a10") -> Certified | Reason:
    assert SPEC.train is not None
    return certified_best(Search(train=SPEC.train, limits=limits), catalog()[gpu_type], GROUP)


def fitting_time_s(plan: ParallelPlan) -> float:
    assert SPEC.train is not None
    alone = evaluate(SPEC.train, A10, GROUP, candidate_of(plan, SPEC.train.global_batch))
    fits = alone.memory_bytes_by_stage.max() <= USABLE_SHARE * A10.memory_bytes
    return float(alone.iter_time_s[0]) if fits else float("inf")


def split_in_all_ways(plan: ParallelPlan) -> list[ParallelPlan]:
    return [
        replace(
            plan,
            stages=tuple(
                Stage(layer_count=end - start, replicas=stage.replicas)
                for stage, (start, end) in zip(plan.stages, pairwise((0, *cuts, 7)), strict=True)
            ),
        )
        for cuts in combinations(range(1, 7), plan.pp - 1)
    ]


def test_it_is_the_fastest_layout_that_fits() -> None:
    assert SPEC.train is not None
    found = certified(ParallelLimits())
    assert isinstance(found, Certified)
    layouts = LayoutSpace(train=SPEC.train, limits=ParallelLimits()).layouts(GROUP)
    least_s = min(fitting_time_s(layouts.plan(index)) for index in range(len(layouts)))
    assert found.best.estimate.iter_time_s == pytest.approx(least_s)
    assert found.plan_count == len(layouts)


def test_no_split_of_the_layers_is_below_its_bound() -> None:
    assert SPEC.train is not None
    limits = ParallelLimits(dp_max=1, tp_max=1, schedules=("1f1b",))
    found = certified(limits)
    assert isinstance(found, Certified)
    assert found.any_split_bound_s is not None
    layouts = LayoutSpace(train=SPEC.train, limits=limits).layouts(GROUP)
    plans = [plan for index in range(len(layouts)) for plan in split_in_all_ways(layouts.plan(index))]
    least_s = min(fitting_time_s(plan) for plan in plans)
    assert found.any_split_bound_s <= least_s <= found.best.estimate.iter_time_s
    assert found.any_split_bound_s > 0.8 * least_s


def test_what_does_not_fit_has_the_reason_of_the_grid() -> None:
    assert SPEC.train is not None
    found = certified(ParallelLimits(dp_max=1, tp_max=2, pp_max=1))
    assert isinstance(found, Reason)
    assert found == Search(train=SPEC.train, limits=ParallelLimits(dp_max=1, tp_max=2, pp_max=1)).best_cell(A10, GROUP)
