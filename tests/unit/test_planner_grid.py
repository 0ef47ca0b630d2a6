"""Grids: which groups, which plans, and why not."""

from __future__ import annotations

import pytest

from arena.domain.capability import unsupported
from arena.domain.grid import Grid
from arena.domain.job import JobSpec
from arena.domain.parallel import ParallelPlan
from arena.domain.reason import ReasonCode
from arena.errors import SpecError
from arena.planner.groups import COUNTS_PER_TYPE_MAX
from arena.planner.source import PlannerGridSource
from tests.builders import command_spec, shape, train_spec

SOURCE = PlannerGridSource()
TWO_BY_TWO = shape(("cpu", 2, 2))
LLAMA_7B = {
    "family": "llama",
    "layers": 32,
    "hidden": 4096,
    "heads": 32,
    "ffn_hidden": 11008,
    "vocab_size": 32000,
    "seq_len": 2048,
}


def groups(grid: Grid) -> list[str]:
    return [str(cell.group) for cell in grid.cells]


def plan_of(cell_group: str, grid: Grid) -> ParallelPlan:
    plan = next(cell.best.plan for cell in grid.cells if str(cell.group) == cell_group)
    assert plan is not None
    return plan


def test_a_small_job_on_two_nodes_of_two():
    grid = SOURCE.grid(train_spec(), TWO_BY_TWO)
    assert groups(grid) == ["cpu 1", "cpu 2", "cpu 1+1", "cpu 2+1", "cpu 2+2"]
    assert grid.infeasible == ()
    assert grid.source == SOURCE.version


def test_more_gpus_are_faster_and_change_the_plan():
    grid = SOURCE.grid(train_spec(), TWO_BY_TWO)
    plans = [plan_of(group, grid) for group in ("cpu 1", "cpu 2", "cpu 2+2")]
    assert len(set(plans)) == 3
    speeds = [cell.steps_per_s for cell in grid.cells if str(cell.group) in {"cpu 1", "cpu 2", "cpu 2+2"}]
    assert speeds == sorted(speeds)


def test_plans_use_all_gpus_of_their_group_and_the_worker_runs_them():
    spec = train_spec(model={"layers": 6, "heads": 12, "hidden": 96}, train={"global_batch": 12})
    for cell in SOURCE.grid(spec, shape(("cpu", 4, 3))).cells:
        for found in (cell.best, *cell.others):
            assert found.plan is not None
            assert found.plan.gpu_count == cell.group.gpu_count
            assert spec.train is not None
            assert unsupported(spec.train, found.plan) is None


def test_other_plans_trade_time_for_memory():
    grid = SOURCE.grid(
        train_spec(model=LLAMA_7B, train={"global_batch": 64, "precision": "bf16"}), shape(("a100-80", 8, 1))
    )
    for cell in grid.cells:
        frontier = sorted(cell.others, key=lambda other: other.estimate.iter_time_s)
        memory = [other.estimate.memory_bytes for other in frontier]
        assert memory == sorted(memory, reverse=True)
        assert len(cell.others) <= 32


def test_parts_of_the_estimate_sum_to_the_whole():
    grid = SOURCE.grid(
        train_spec(model=LLAMA_7B, train={"global_batch": 64, "precision": "bf16"}), shape(("h100", 8, 2))
    )
    for cell in grid.cells:
        estimate = cell.best.estimate
        assert sum(estimate.breakdown_s.values()) == pytest.approx(estimate.iter_time_s)
        assert min(estimate.breakdown_s.values()) >= 0
        assert len(estimate.memory_bytes_by_stage) == (cell.best.plan.pp if cell.best.plan else 0)


def test_what_does_not_fit_says_by_how_much():
    spec = train_spec(model=LLAMA_7B, train={"global_batch": 64, "precision": "bf16"})
    grid = SOURCE.grid(spec, shape(("v100-16", 8, 1)))
    told = next(item.reason for item in grid.infeasible if item.group.gpu_count == 1)
    assert told.code is ReasonCode.MEMORY
    # 16-bit weights, fp32 master weights, gradients and two moments: 18 bytes for each of 6.74e9 parameters
    assert told.numbers["needed_gib"] > 18 * 6.738e9 / 2**30
    assert told.numbers["capacity_gib"] < 16


def test_counts_that_nothing_divides_say_which_values_would_do():
    spec = train_spec(
        model={"layers": 1, "heads": 12, "hidden": 96}, train={"global_batch": 1}, kind="rigid", gpus={"count": 8}
    )
    (item,) = SOURCE.grid(spec, shape(("cpu", 8, 1))).infeasible
    assert item.reason.code is ReasonCode.DIVISIBILITY
    assert "heads = 12: tp in {1, 2, 3, 4, 6, 12}; 8 does not divide" in str(item.reason)
    assert "global batch = 1: dp at most 1" in str(item.reason)
    assert "layers = 1: pp at most 1" in str(item.reason)


def test_a_stage_waits_for_micro_batches_only_where_there_are_too_few_samples():
    spec = train_spec(train={"global_batch": 4})
    for cell in SOURCE.grid(spec, shape(("cpu", 8, 1))).cells:
        for found in (cell.best, *cell.others):
            plan = found.plan
            assert plan is not None
            assert -(-4 // plan.dp) // plan.micro_batch_size >= plan.pp or plan.micro_batch_size == 1


def test_limits_of_the_plan_hold():
    spec = train_spec(
        train={"global_batch": 16},
        parallel={"dp_max": 2, "tp_max": 2, "pp_max": 2, "micro_batch_max": 2, "zero": [3]},
    )
    grid = SOURCE.grid(spec, shape(("cpu", 8, 1)))
    plans = [found.plan for cell in grid.cells for found in (cell.best, *cell.others)]
    assert {plan.zero for plan in plans if plan} == {3}
    assert max(max(plan.dp, plan.tp, plan.pp, plan.micro_batch_size) for plan in plans if plan) == 2
    assert max(cell.group.gpu_count for cell in grid.cells) == 8


@pytest.mark.parametrize("schedule", ["gpipe", "interleaved"])
def test_schedules_other_than_1f1b_are_searched_on_request(schedule: str):
    spec = train_spec(model={"layers": 8}, parallel={"schedules": [schedule], "dp_max": 1, "tp_max": 1})
    grid = SOURCE.grid(spec, shape(("cpu", 2, 1)))
    assert plan_of("cpu 2", grid).schedule.value == schedule


def test_a_pinned_plan_is_the_only_one():
    spec = train_spec(parallel={"plan": "dp2 tp2 pp1 mb1"})
    grid = SOURCE.grid(spec, TWO_BY_TWO)
    assert groups(grid) == ["cpu 2+2"]
    assert str(plan_of("cpu 2+2", grid)) == "dp2 tp2 pp1 mb1"


def test_a_pinned_plan_may_have_stages_of_its_own_and_less_memory_where_it_has_fewer_layers():
    text = "[layers=3 tp1*2 | layers=1 tp2] mb1"
    grid = SOURCE.grid(train_spec(parallel={"plan": text}), TWO_BY_TWO)
    (cell,) = grid.cells
    assert str(cell.best.plan) == text
    first, last = cell.best.estimate.memory_bytes_by_stage
    assert first > last
    assert sum(cell.best.estimate.breakdown_s.values()) == pytest.approx(cell.best.estimate.iter_time_s)


@pytest.mark.parametrize(
    ("plan", "why"),
    [
        ("tp4", "tp4 would span nodes on cpu 2+2"),
        ("[layers=2 tp1 | layers=2 tp3]", "tp3 does not divide model.heads = 4; possible: tp in {1, 2, 4}"),
        ("dp2 tp2 ep2", "no experts"),
    ],
)
def test_a_pinned_plan_that_cannot_run_says_why(plan: str, why: str):
    (item,) = SOURCE.grid(train_spec(parallel={"plan": plan}), TWO_BY_TWO).infeasible
    assert item.reason.code is ReasonCode.DIVISIBILITY
    assert why in str(item.reason)


def test_a_pinned_plan_that_cannot_be_read_is_refused():
    with pytest.raises(SpecError, match="unknown word 'dq2'"):
        SOURCE.grid(train_spec(parallel={"plan": "dq2"}), TWO_BY_TWO)


def test_a_command_is_one_count_on_as_few_nodes_as_possible():
    grid = SOURCE.grid(command_spec(count=3), shape(("cpu", 2, 2), ("other", 4, 1)))
    assert groups(grid) == ["other 3", "cpu 2+1"]
    assert all(cell.best.plan is None and cell.best.estimate.iter_time_s == 1.0 for cell in grid.cells)


def test_types_counts_and_nodes_are_the_users():
    cluster = shape(("cpu", 2, 4), ("a100-80", 8, 1))
    spec = train_spec(train={"global_batch": 32}, gpus={"types": ["cpu"], "min": 2, "max": 6, "nodes_max": 2})
    assert groups(SOURCE.grid(spec, cluster)) == ["cpu 2", "cpu 1+1", "cpu 2+1", "cpu 2+2"]


def test_too_large_a_wish_says_what_the_cluster_has():
    (item,) = SOURCE.grid(command_spec(count=9), TWO_BY_TWO).infeasible
    assert str(item.reason) == "needs at least 9 GPUs, largest feasible now: 4"


def test_a_type_the_cluster_lacks_says_which_it_has():
    (item,) = SOURCE.grid(train_spec(gpus={"types": ["h100"]}), TWO_BY_TWO).infeasible
    assert str(item.reason) == "no h100 GPUs in this cluster (cpu)"


def test_a_type_outside_the_catalog_is_named():
    grid = SOURCE.grid(train_spec(), shape(("abacus", 1, 1)))
    assert grid.cells == ()
    assert "GPU type abacus is not in the catalog" in str(grid.infeasible[0].reason)


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        (train_spec(train={"precision": "fp16"}), "loss scaling"),
        (train_spec(model={"layers": 5000}), "model.layers = 5000 is more than 4096"),
        (train_spec(model={"vocab_size": 100}), "vocab_size of at least 256"),
    ],
)
def test_a_job_that_no_worker_trains_is_refused_before_any_layout_is_made(spec: JobSpec, why: str):
    grid = SOURCE.grid(spec, TWO_BY_TWO)
    assert grid.cells == ()
    assert {item.reason.code for item in grid.infeasible} == {ReasonCode.UNSUPPORTED}
    assert all(why in str(item.reason) for item in grid.infeasible)


def test_an_empty_cluster_has_an_empty_grid():
    assert SOURCE.grid(train_spec(), shape()) == Grid(cells=(), source=SOURCE.version)


def test_groups_stay_in_one_zone():
    grid = SOURCE.grid(train_spec(), shape(("cpu", 2, 1, "east"), ("cpu", 2, 1, "west")))
    assert groups(grid) == ["cpu 1", "cpu 2"]


def test_nodes_of_different_sizes_are_filled_as_they_allow():
    grid = SOURCE.grid(train_spec(train={"global_batch": 12}), shape(("cpu", 4, 1), ("cpu", 2, 1)))
    assert groups(grid)[-2:] == ["cpu 3+2", "cpu 4+2"]


def test_a_job_may_spread_over_the_holes_of_a_few_nodes():
    grid = SOURCE.grid(train_spec(), shape(("cpu", 2, 4)))
    assert {"cpu 1+1+1", "cpu 1+1+1+1", "cpu 2+1+1"} <= set(groups(grid))


def test_the_number_of_groups_is_bounded_on_a_large_cluster():
    spec = train_spec(train={"global_batch": 4096})
    grid = SOURCE.grid(spec, shape(("a100-80", 8, 1250)))
    found = len(grid.cells) + len(grid.infeasible)
    assert found <= 2 * COUNTS_PER_TYPE_MAX
    assert max(item.group.gpu_count for item in (*grid.cells, *grid.infeasible)) == 10_000


def test_two_stages_may_differ_where_the_second_gains_from_more_gpus():
    """Two micro-batches, three GPUs, two layers before a heavy ending: no split into equal stages is as good."""
    model = {"layers": 2, "hidden": 2048, "heads": 16, "vocab_size": 131072, "seq_len": 1024}
    spec = train_spec(model=model, train={"global_batch": 2, "precision": "bf16"}, gpus={"count": 3})
    (cell,) = SOURCE.grid(spec, shape(("a100-80", 4, 1))).cells
    assert str(cell.best.plan) == "[layers=1 tp1 | layers=1 tp2] mb1 sp"


def test_the_stage_with_the_heavy_ending_gets_the_gpus():
    model = {"layers": 2, "hidden": 2048, "heads": 16, "vocab_size": 131072, "seq_len": 1024}
    spec = train_spec(model=model, train={"global_batch": 2, "precision": "bf16"}, gpus={"count": 3})
    turned = spec.parallel.model_copy(update={"plan": "[layers=1 tp2 | layers=1 tp1] mb1 sp"})
    cluster = shape(("a100-80", 4, 1))
    (best,) = SOURCE.grid(spec, cluster).cells
    (other,) = SOURCE.grid(spec.model_copy(update={"parallel": turned}), cluster).cells
    assert best.best.estimate.iter_time_s < other.best.estimate.iter_time_s
