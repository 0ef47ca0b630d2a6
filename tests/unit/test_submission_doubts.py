"""Of which new jobs their users are warned: those that cannot get what they ask for, though they are right as such."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from arena.domain.cluster import ClusterShape
from arena.domain.grid import Grid
from arena.domain.job import JobSpec
from arena.domain.paces import PaceHistory, PaceKind, estimator, work_name
from arena.domain.reason import Reason, ReasonCode, reason
from arena.domain.tenants import ANY_TYPE, Guarantee, Guarantees
from arena.engine.state import ClusterState
from arena_scheduler.doubts import Known, doubts, for_good
from tests.builders import command_spec, job_record, node_info, scaling_grid, shape_of_nodes, train_spec

NODES = [node_info("n1", gpus=4, gpu_type="a"), node_info("n2", gpus=4, gpu_type="b")]
SHAPE: ClusterShape = shape_of_nodes(NODES)
HOURLY = {"a": 3_600.0, "b": 36.0}


def warned(
    spec: JobSpec,
    grid: Grid | None = None,
    *,
    tenants: Guarantees | None = None,
    here: tuple[JobSpec, ...] = (),
    paces: PaceHistory | None = None,
) -> list[Reason]:
    state = ClusterState(restart_s=10.0, paces=paces or PaceHistory())
    for number, other in enumerate(here):
        record = job_record(f"j{number}", other)
        state = replace(state, jobs=state.jobs.set(record.job_id, record))
    known = Known(state=state, shape=SHAPE, tenants=tenants or {}, usd_per_hour=HOURLY)
    return list(doubts(spec, known, grid))


def share(**gpus: int) -> Guarantee:
    return Guarantee(gpu_count_by_type=gpus)


def in_project(name: str, **fields: Any) -> JobSpec:
    return train_spec("x", project=name, **fields)


def test_a_budget_below_the_cheapest_way_is_told_with_what_that_costs() -> None:
    grid = Grid(cells=(*scaling_grid("a", [(1,)]).cells, *scaling_grid("b", [(1,)]).cells))
    (told,) = warned(train_spec("x", stop={"steps": 90}, budget_usd=0.999), grid)
    assert (told.code, told.names["group"]) == (ReasonCode.BUDGET_NOT_ENOUGH, "b 1")
    assert told.numbers["needed_usd"] == 1.0  # 90 s and a start of 10 s at 0.01 USD a second
    assert not warned(train_spec("x", stop={"steps": 90}, budget_usd=1.001), grid)
    limited = train_spec("x", stop={"steps": 90, "time_limit_s": 40.0}, budget_usd=0.999)
    assert not warned(limited, grid)
    assert not warned(train_spec("x", stop={}, budget_usd=0.001), grid)  # it runs as long as it lasts


def test_what_a_job_costs_is_told_at_the_pace_that_its_like_have_run() -> None:
    """As `arena why` tells it once the job waits."""
    grid, spec = scaling_grid("b", [(1,)]), train_spec("x", stop={"steps": 90}, budget_usd=1.001)
    paces = PaceHistory().after(PaceKind(estimator(grid), work_name(spec, "ann"), "b"), 0.2, 1.0)
    (told,) = warned(spec, grid, paces=paces)
    assert told.numbers["needed_usd"] == pytest.approx(4.6, rel=1e-4)  # five times 90 s, and a start of 10 s
    limited = train_spec("x", stop={"steps": 90, "time_limit_s": 40.0}, budget_usd=0.501)
    assert not warned(limited, grid, paces=paces)


def test_a_project_that_nobody_knows_is_told_with_the_name_that_was_meant() -> None:
    (told,) = warned(in_project("visoin"), here=(in_project("vision"),))
    assert (told.code, told.names["near"]) == (ReasonCode.PROJECT_UNKNOWN, "vision")
    (told,) = warned(in_project("speach"), tenants={"speech": share(a=1)})
    assert (told.code, told.names["near"]) == (ReasonCode.PROJECT_UNKNOWN, "speech")
    (told,) = warned(in_project("defualt"))
    assert told.names["near"] == "default"
    (told,) = warned(in_project("robots"), tenants={"speech": share(a=1)})
    assert told.code is ReasonCode.PROJECT_WITHOUT_SHARE


def test_a_project_that_is_known_or_is_like_no_other_is_left_in_peace() -> None:
    assert not warned(in_project("default"), tenants={"speech": share(a=1)})
    assert not warned(in_project("speech"), tenants={"speech": share(a=1)})
    assert not warned(in_project("robots"), here=(in_project("robots"),), tenants={"speech": share(a=1)})
    assert not warned(in_project("first"))  # nobody says yet what projects there are


def test_who_may_not_be_stopped_is_warned_of_shares_that_never_leave_enough() -> None:
    tenants = {"speech": share(a=3), "vision": share(b=1)}
    grid = scaling_grid("a", [(2,), (4,)])
    program = command_spec("x", count=2, preemptible=False)
    (told,) = warned(program, grid, tenants=tenants)
    assert (told.code, told.names["group"], told.numbers["left"]) == (ReasonCode.NEVER_BESIDE_SHARES, "a 2", 1.0)
    assert not warned(command_spec("x", count=2, preemptible=True), grid, tenants=tenants)
    assert not warned(program.model_copy(update={"project": "speech"}), grid, tenants=tenants)
    assert not warned(program, scaling_grid("b", [(2,)]), tenants=tenants)
    assert not warned(program, scaling_grid("a", [(1,)]), tenants=tenants)


def test_shares_of_any_type_leave_what_is_beyond_all_of_them() -> None:
    program = command_spec("x", count=2, preemptible=False)
    grid = scaling_grid("a", [(2,)])
    assert not warned(program, grid, tenants={"speech": share(**{ANY_TYPE: 6})})
    (told,) = warned(program, grid, tenants={"speech": share(**{ANY_TYPE: 7})})
    assert told.numbers["left"] == 1.0


def test_a_job_that_never_starts_beside_shares_says_so_with_its_remedy_for_as_long_as_it_waits() -> None:
    tenants = {"speech": share(a=3)}
    grid, program = scaling_grid("a", [(2,), (4,)]), command_spec("x", count=2, preemptible=False)
    of_offers = (
        ReasonCode.BEYOND_SHARE,
        ReasonCode.OUTBID,
        ReasonCode.TIED,
        ReasonCode.INDIVISIBLE,
        ReasonCode.NEXT_BEST,
    )
    said = (*(reason(code, group="a 2") for code in (*of_offers, ReasonCode.DISPLACES)), reason(ReasonCode.SHARE))
    never, other = for_good(said, program, grid, tenants, SHAPE)
    assert (never.code, other) == (ReasonCode.NEVER_BESIDE_SHARES, said[-1]), "no offer that it never gets"
    assert str(never).endswith(
        "leaves 1 such GPU: as the cluster is it never starts (with preemptible: true it may borrow)"
    )
    assert for_good((), program, grid, tenants, SHAPE) == (never,), "whatever else the policy says"
    assert for_good(said, program, None, tenants, SHAPE) == said
    assert for_good(said, program, grid, {"speech": share(a=2)}, SHAPE) == said, "others may end"
    assert for_good(said, command_spec("x", count=2, preemptible=True), grid, tenants, SHAPE) == said
