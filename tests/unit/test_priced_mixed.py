"""The policy `arena` weighs groups over several GPU types like others, and seats each part in its pool."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from arena.domain.allocation import GpuGroup, GroupPart
from arena.domain.grid import Cell, Estimate, Grid, PlanEstimate
from arena.domain.job import JobId
from arena.domain.parallel import parse_plan
from arena.domain.reason import ReasonCode
from arena.policies.base import Decision, Holding, Snapshot
from arena.policies.registry import make_policy
from tests.builders import allocation_on, cell, chosen, grid_of, node_info, snapshot_of, train_spec

BOTH = GpuGroup(parts=(GroupPart(gpu_type="a", node_counts=(4,)), GroupPart(gpu_type="b", node_counts=(4, 4))))
NODES = [node_info("a1", gpus=4, gpu_type="a"), *(node_info(f"b{at}", gpus=4, gpu_type="b") for at in (1, 2))]
SEATS = allocation_on(("a1", range(4)), ("b1", range(4)), ("b2", range(4)))


def mixed_cell(iter_time_s: float, group: GpuGroup = BOTH) -> Cell:
    types = ",".join(f"tp1@{part.gpu_type}*{part.gpu_count}" for part in group.parts)
    plan = parse_plan(f"[layers=4 {types}] mb1", layer_count=4)
    return Cell(group=group, best=PlanEstimate(plan=plan, estimate=Estimate(iter_time_s=iter_time_s)))


def grid(both_s: float, a_s: float = 1.0, b_s: float = 1.2) -> Grid:
    alone = grid_of(cell("a", (4,), a_s), cell("b", (4, 4), b_s))
    return replace(alone, mixed=(mixed_cell(both_s),))


def decide(snapshot: Snapshot) -> Decision:
    return make_policy("arena").decide(snapshot)


def test_a_job_that_is_faster_on_two_types_together_gets_both_and_each_part_its_pool() -> None:
    choice = chosen(decide(snapshot_of(NODES, {"j": (train_spec("j"), grid(0.6))})), "j")

    assert choice.group == BOTH
    assert choice.allocation == SEATS
    assert choice.plan is not None
    assert choice.plan.names_gpus
    assert str(choice.cause) == "started on a 4, b 4+4"


@pytest.mark.parametrize("both_s", [0.97, 2.0])
def test_two_jobs_take_a_type_each_where_together_that_does_more(both_s: float) -> None:
    """Hardly faster on both types than on one, a job leaves the other type to the next."""
    jobs = {name: (train_spec(name, stop={"steps": 10_000}), grid(both_s)) for name in ("i", "j")}
    decision = decide(snapshot_of(NODES, jobs))

    assert {str(chosen(decision, name).group) for name in jobs} == {"a 4", "b 4+4"}


def test_who_has_two_types_keeps_them_and_gives_them_up_for_jobs_that_are_worth_more() -> None:
    known = grid(0.6)
    best = known.mixed[0].best
    holding = Holding(group=BOTH, plan=best.plan, estimate=best.estimate, allocation=SEATS, movable=True, since_s=0.0)
    spec = train_spec("j", stop={"steps": 1_000_000})
    alone = snapshot_of(NODES, {"j": (spec, known)}, running={"j": holding})
    assert decide(alone).choices == {}

    short = (train_spec("s", stop={"steps": 100}), grid_of(cell("a", (4,), 1.0)))
    contested = snapshot_of(NODES, {"j": (spec, known), "s": short}, running={"j": holding})
    decision = decide(contested)
    assert str(chosen(decision, "s").group) == "a 4"
    assert str(chosen(decision, "j").group) == "b 4+4"


def test_a_group_that_finds_no_room_in_one_of_its_pools_is_not_given() -> None:
    """Eight GPUs of b are there, but one node has only three of them free together."""
    busy = [NODES[0], NODES[1], node_info("b2", gpus=3, gpu_type="b"), node_info("b3", gpus=1, gpu_type="b")]
    known = replace(grid(0.6), cells=())
    decision = decide(snapshot_of(busy, {"j": (train_spec("j"), known)}))

    assert "j" not in decision.choices
    (told,) = decision.reasons[JobId("j")]
    assert told.code in {ReasonCode.FRAGMENTED, ReasonCode.TIED, ReasonCode.INDIVISIBLE, ReasonCode.INSUFFICIENT_GPUS}


def test_without_such_cells_nothing_is_decided_otherwise() -> None:
    def numbers(jobs: Sequence[str], both_s: float | None) -> Decision:
        known = grid(both_s or 1.0)
        known = known if both_s else replace(known, mixed=())
        return decide(snapshot_of(NODES, {name: (train_spec(name), known) for name in jobs}))

    # A cell that is slower than what has fewer GPUs changes no choice.
    slow, none = numbers(("i", "j"), 5.0), numbers(("i", "j"), None)
    assert slow.choices == none.choices


def test_a_grid_of_mixed_cells_only_is_enough() -> None:
    known = replace(grid(0.6), cells=())
    assert chosen(decide(snapshot_of(NODES, {"j": (train_spec("j"), known)})), "j").group == BOTH
