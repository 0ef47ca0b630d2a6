"""A grid without the plans that ran out of memory."""

from __future__ import annotations

from dataclasses import replace

from arena.domain.allocation import GpuGroup
from arena.domain.grid import Cell, Estimate, Grid, PlanEstimate
from arena.domain.parallel import ParallelPlan
from arena.domain.struck import StruckPlan, without

TWO, FOUR = GpuGroup.of("a100", [2]), GpuGroup.of("a100", [4])


def plan(dp: int, tp: int, time_s: float, memory_gb: float) -> PlanEstimate:
    layout = ParallelPlan.uniform(layer_count=4, dp=dp, tp=tp)
    return PlanEstimate(
        plan=layout, estimate=Estimate(iter_time_s=time_s, memory_bytes_by_stage=(int(memory_gb * 1e9),))
    )


FAST, FULLER, LEAN = plan(2, 1, 1.0, 70.0), plan(2, 1, 1.5, 75.0), plan(1, 2, 3.0, 40.0)
GRID = Grid(
    cells=(
        Cell(group=TWO, best=FAST, others=(FULLER, LEAN)),
        Cell(group=GpuGroup.of("v100", [2]), best=plan(1, 2, 2.0, 20.0)),
        Cell(group=FOUR, best=plan(4, 1, 0.5, 60.0)),
    )
)


def struck(group: GpuGroup, one: PlanEstimate, error: str = "rank 1: CUDA out of memory") -> StruckPlan:
    return StruckPlan(group=group, plan=one.plan, memory_bytes=one.estimate.memory_bytes, error=error, at_s=1.0)


def test_the_fastest_plan_that_needs_less_takes_the_place() -> None:
    left = without(GRID, [struck(TWO, FAST)])
    assert [str(cell.group) for cell in left.cells] == ["v100 2", "a100 2", "a100 4"], "by count, then by time"
    cell = left.cell(TWO)
    assert cell is not None
    assert (cell.best, cell.others) == (LEAN, ()), "one that needs more memory cannot fit either"


def test_other_groups_keep_the_same_plan() -> None:
    left = without(GRID, [struck(FOUR, FAST)])
    assert left.cell(TWO) == GRID.cell(TWO)


def test_a_group_without_a_plan_is_infeasible_and_says_why() -> None:
    left = without(GRID, [struck(TWO, FAST), struck(TWO, LEAN)])
    assert left.cell(TWO) is None
    [gone] = left.infeasible
    assert gone.group == TWO
    assert str(gone.reason) == (
        f"{LEAN.plan} on a100 2 is not tried again, it ran out of memory: rank 1: CUDA out of memory"
    )


def test_a_group_over_several_types_stays_among_those_and_goes_with_its_last_plan() -> None:
    both = GpuGroup(parts=(*TWO.parts, *GpuGroup.of("v100", [2]).parts))
    wide = replace(GRID, mixed=(Cell(group=both, best=FAST, others=(LEAN,)),))

    left = without(wide, [struck(both, FAST)])
    assert (left.cells, [cell.best for cell in left.mixed]) == (GRID.cells, [LEAN])
    gone = without(left, [struck(both, LEAN)])
    assert (gone.cells, gone.mixed) == (GRID.cells, ())
    assert [item.group for item in gone.infeasible] == [both]


def test_where_no_plan_is_named_the_group_goes() -> None:
    cells = [
        Cell(group=group, best=PlanEstimate(plan=None, estimate=Estimate(iter_time_s=1.0))) for group in (TWO, FOUR)
    ]
    left = without(Grid(cells=tuple(cells)), [struck(TWO, cells[0].best, error="")])
    assert [cell.group for cell in left.cells] == [FOUR]
    assert str(left.infeasible[0].reason) == "a100 2 is not tried again, it ran out of memory: out of memory"


def test_nothing_struck_is_the_same_grid() -> None:
    assert without(GRID, ()) is GRID
