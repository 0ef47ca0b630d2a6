"""Cells over several GPU types in a job's grid: what they are worth, what they keep to, and what has none."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from arena.domain.allocation import splits_tensor_parallel_group
from arena.domain.cluster import ClusterShape
from arena.domain.grid import MIXED_CELLS_MAX, Cell, Grid
from arena.domain.job import JobSpec
from arena.planner.hardware import catalog
from arena.planner.heterogeneous.offer import Offered
from arena.planner.mixed import GAIN_MIN, QUESTIONS_MAX, MixedCells, questions
from arena.planner.source import PlannerGridSource
from tests.builders import command_spec, shape, train_spec

MODEL = {"layers": 12, "hidden": 768, "heads": 12, "vocab_size": 50304, "seq_len": 1024}
TWO_TYPES = shape(("a100-40", 2, 1), ("a40", 2, 1))


def gpt(**fields: Any) -> JobSpec:
    return train_spec("j", model=MODEL, train={"precision": "bf16", "global_batch": 256}, **fields)


def widened(spec: JobSpec, of: ClusterShape = TWO_TYPES) -> Grid:
    return PlannerGridSource(mixed=MixedCells()).grid(spec, of)


def counts(cell: Cell) -> Counter[str]:
    found: Counter[str] = Counter()
    for part in cell.group.parts:
        found[part.gpu_type] += part.gpu_count
    return found


def test_two_types_together_beat_each_alone_with_no_more_gpus() -> None:
    grid = widened(gpt())

    assert 0 < len(grid.mixed) <= MIXED_CELLS_MAX
    assert grid.mixed[-1].steps_per_s > max(cell.steps_per_s for cell in grid.cells)
    for one in grid.mixed:
        assert len(counts(one)) == 2
        within = [cell for cell in grid.cells if counts(cell) <= counts(one)]
        assert all(cell.steps_per_s * GAIN_MIN < one.steps_per_s for cell in within)
        plan = one.best.plan
        assert plan is not None
        assert plan.gpu_count == one.group.gpu_count
        assert not splits_tensor_parallel_group(plan, [n for part in one.group.parts for n in part.node_counts])
    assert grid.cell(grid.mixed[0].group) == grid.mixed[0]


def test_ranks_in_order_stand_on_the_types_that_the_plan_names() -> None:
    for one in widened(gpt()).mixed:
        assert one.best.plan is not None
        stages = one.best.plan.stages
        by_rank = [
            stages[stage].replicas[replica].gpu_type
            for stage, replica in one.best.plan.replicas_by_rank
            for _ in range(stages[stage].replicas[replica].tp)
        ]
        assert by_rank == [part.gpu_type for part in one.group.parts for _ in range(part.gpu_count)]


@pytest.mark.parametrize(
    ("gpus", "least", "most"),
    [({"count": 3}, 3, 3), ({"min": 3}, 3, 4), ({"max": 3}, 1, 3), ({"nodes_max": 2}, 1, 4)],
)
def test_cells_keep_to_the_gpus_that_a_job_asks_for(gpus: dict[str, int], least: int, most: int) -> None:
    grid = widened(gpt(gpus=gpus))
    assert grid.mixed
    assert all(least <= cell.group.gpu_count <= most for cell in grid.mixed)


@pytest.mark.parametrize(
    "spec",
    [
        gpt(gpus={"types": ["a40"]}),
        gpt(gpus={"max": 1}),
        gpt(gpus={"nodes_max": 1}),
        gpt(parallel={"plan": "dp2"}),
        gpt(parallel={"zero": [1]}),
        command_spec(count=2),
    ],
    ids=str,
)
def test_jobs_that_rule_them_out_have_none_and_cost_no_search(spec: JobSpec) -> None:
    assert not MixedCells().may_widen(spec, TWO_TYPES)
    assert widened(spec).mixed == ()


def test_a_job_stays_in_one_zone_whichever_has_both_types() -> None:
    apart = shape(("a100-40", 2, 1, "east"), ("a40", 2, 1, "west"))
    twice = shape(*((name, 2, 1, zone) for name in ("a100-40", "a40") for zone in ("east", "west")))

    assert not MixedCells().may_widen(gpt(), apart)
    assert widened(gpt(), twice).mixed == widened(gpt()).mixed
    assert {part.zone for cell in widened(gpt()).mixed for part in cell.group.parts} == {None}


def test_questions_are_bounded_and_about_a_node_of_each_type_comes_first() -> None:
    names = ("a100-40", "a40", "h100", "v100-16")
    offer = {(name, "z"): Offered(gpu_type=catalog()[name], gpu_count=256, gpus_per_node=8) for name in names}
    asked = questions(offer, dict.fromkeys(names, 1.0))

    assert len(asked) == QUESTIONS_MAX
    assert asked[0][0] == offer
    assert [[part.gpu_count for part in share.values()] for share, _ in asked[1:7]] == [[8, 8]] * 6
    scarce = [prices for _, prices in asked if any(prices.values())]
    assert [max(prices, key=lambda key: prices[key]) for prices in scarce] == sorted(offer)


def test_what_is_more_than_a_job_can_use_is_not_asked_for() -> None:
    offer = {(name, "z"): Offered(gpu_type=catalog()[name], gpu_count=64, gpus_per_node=8) for name in ("a40", "t4")}
    shares = [share for share, prices in questions(offer, {}, 12)[1:] if not any(prices.values())]
    assert max(sum(part.gpu_count for part in share.values()) for share in shares) == 12
