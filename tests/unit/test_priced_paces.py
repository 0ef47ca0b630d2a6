"""At which speeds `arena` counts: what was measured of jobs that ended, by what they did and on which GPUs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from arena.domain.allocation import GpuGroup
from arena.domain.job import JobId, JobSpec
from arena.domain.launch import NodeId
from arena.domain.paces import TRUST_S_MIN, PaceHistory, PaceKind, work_name
from arena.domain.reason import ReasonCode
from arena.domain.records import JobState, Progress
from arena.domain.replacing import replace
from arena.policies.base import Holding, Snapshot
from arena.policies.priced.market import Tables, market_of
from arena.policies.priced.pace import PACE_MAX, PACE_TOLERANCE, pace_on
from arena.policies.priced.policy import PricedPolicy
from arena.policies.priced.work_left import runs_until_s
from arena.policies.registry import make_policy, policy_names
from tests.builders import allocation_on, cell, chosen, grid_of, holding_of, node_info, snapshot_of, train_spec

NODES = [node_info("n1", gpus=2, gpu_type="a100"), node_info("n2", gpus=2, gpu_type="t4")]
GRID = grid_of(*(cell(gpu_type, (count,), 1.0 / count) for gpu_type in ("a100", "t4") for count in (1, 2)))
SPEC = train_spec("job", stop={"steps": 10_000})
OTHER = train_spec("other", model={"layers": 9}, stop={"steps": 10_000})
HELD = {"a": holding_of(GRID, allocation_on(("n1", (0,))))}


def kind(gpu_types: str, spec: JobSpec = SPEC, source: str = GRID.source) -> PaceKind:
    return PaceKind(source, work_name(spec, "ann"), gpu_types)


def known(*runs: tuple[PaceKind, float]) -> PaceHistory:
    found = PaceHistory()
    for at_s, (one, pace) in enumerate(runs):
        found = found.after(one, pace, float(at_s))
    return found


def seen(paces: PaceHistory, **fields: Any) -> Snapshot:
    return snapshot_of(NODES, {"a": (SPEC, GRID), "b": (SPEC, GRID), "c": (OTHER, GRID)}, paces=paces, **fields)


def pace_of(snapshot: Snapshot, job_id: str) -> dict[str, float]:
    """By which factor a job is faster than its grid says, on each type."""
    market = market_of(snapshot, Tables())
    [at] = [at for at, one in enumerate(market.contenders) if one.job_id == job_id]
    own = np.flatnonzero((market.job == at) & (market.entry >= 0)).tolist()
    found = {
        (market.group(column).parts[0].gpu_type, market.speed[column] * market.cell(column).best.estimate.iter_time_s)
        for column in own
    }
    rounded = {(gpu_type, round(float(pace), 4)) for gpu_type, pace in found}
    assert len(rounded) == 2, rounded
    return dict(rounded)


def measured(snapshot: Snapshot, job_id: str, pace: float, *, step: int = 10) -> Snapshot:
    progress = Progress(step=step, step_time_s=1.0 / pace, reported_at_s=snapshot.now_s - 1.0)
    job = replace(snapshot.jobs[JobId(job_id)], state=JobState.RUNNING, progress=progress)
    return replace(snapshot, jobs=snapshot.jobs.set(JobId(job_id), job))  # type: ignore[attr-defined]


def test_who_was_measured_on_two_types_is_expected_to_be_as_fast_on_each() -> None:
    paces = known((kind("a100"), 0.5), (kind("t4"), 0.2))
    assert pace_of(seen(paces), "a") == pace_of(seen(paces), "b") == {"a100": 0.5, "t4": 0.2}
    assert pace_of(seen(paces), "c") == {"a100": 1.0, "t4": 1.0}


def test_what_a_job_has_is_as_fast_as_is_expected_there() -> None:
    on_t4 = grid_of(*(one for one in GRID.cells if one.group.parts[0].gpu_type == "t4"))
    held = {**HELD, "b": holding_of(on_t4, allocation_on(("n2", (0,))))}
    market = market_of(seen(known((kind("a100"), 0.5), (kind("t4"), 0.2)), running=held), Tables())
    found = {market.contenders[at].job_id: pace_on(market, int(market.keeping[at])) for at in (0, 1)}
    assert found == {"a": pytest.approx(0.5), "b": pytest.approx(0.2)}


@pytest.mark.parametrize("node_id", ["n1", "n2"])
def test_it_is_as_fast_as_before_while_its_node_may_not_be_used(node_id: str) -> None:
    """It drains, or has not been heard of for some seconds."""
    paces = known((kind("a100"), 0.5), (kind("t4"), 0.1))
    on_t4 = grid_of(*(one for one in GRID.cells if one.group.parts[0].gpu_type == "t4"))
    held = {"a": HELD["a"], "b": holding_of(on_t4, allocation_on(("n2", (0,))))}
    held = {name: replace(one, since_s=-1e9) for name, one in held.items()}
    spare = [node_info("n3", gpus=2, gpu_type="a100"), node_info("n4", gpus=2, gpu_type="t4")]
    jobs = dict.fromkeys(held, (SPEC, GRID))
    usable = snapshot_of([*NODES, *spare], jobs, paces=paces, running=held)
    usable = measured(measured(usable, "a", 0.5), "b", 0.1)
    gone = [one for one in usable.capacity.devices if one == node_id]
    pool = usable.capacity.devices[gone[0]].pool
    away = replace(usable, capacity=usable.capacity.with_devices(gone[0], pool, ()).with_node(gone[0], pool, ()))
    for name in held:
        assert pace_of(away, name) == pace_of(usable, name) == {"a100": 0.5, "t4": 0.1}


def test_on_a_type_where_it_was_not_measured_it_is_off_by_as_much() -> None:
    """Else it would be moved there only for not being known."""
    assert pace_of(seen(known((kind("a100"), 0.5))), "a") == {"a100": 0.5, "t4": 0.5}


def test_what_another_planner_got_wrong_says_nothing_of_this_one() -> None:
    paces = known((kind("a100", source="older"), 0.5))
    assert pace_of(seen(paces), "a") == {"a100": 1.0, "t4": 1.0}


def test_what_was_measured_within_the_tolerance_changes_nothing_at_all() -> None:
    paces = known((kind("a100"), 1.0 + 0.99 * PACE_TOLERANCE), (kind("t4"), 1.0))
    snapshot = seen(PaceHistory())
    market = market_of(snapshot, Tables())
    assert (market_of(replace(snapshot, paces=paces), Tables()).speed == market.speed).all()
    assert PricedPolicy().decide(replace(snapshot, paces=paces)) == PricedPolicy().decide(snapshot)


@pytest.mark.parametrize("pace", [1e-3, 1e3])
def test_what_was_measured_counts_up_to_a_most(pace: float) -> None:
    expected = round(min(max(pace, 1.0 / PACE_MAX), PACE_MAX), 4)
    assert pace_of(seen(known((kind("a100"), pace))), "a") == {"a100": expected, "t4": expected}


def test_a_measurement_of_its_own_counts_the_more_the_longer_it_runs_and_on_all_types() -> None:
    paces = known((kind("a100"), 0.5), (kind("t4"), 0.2))
    new = measured(seen(paces, running={"a": replace(HELD["a"], since_s=1000.0)}), "a", 0.25)
    assert pace_of(new, "a") == {"a100": 0.5, "t4": 0.2}
    old = measured(seen(paces, running={"a": replace(HELD["a"], since_s=-1e9)}), "a", 0.25)
    assert pace_of(old, "a") == {"a100": 0.25, "t4": 0.1}
    assert pace_of(old, "b") == {"a100": 0.5, "t4": 0.2}, "those that ended have measured it for longer"


def test_who_is_of_another_kind_is_off_as_those_that_run() -> None:
    paces = known((kind("a100"), 0.5))
    snapshot = snapshot_of(
        NODES, {"a": (SPEC, GRID), "c": (OTHER, grid_of(*GRID.cells))}, paces=paces, running=HELD, now_s=1e6
    )
    assert pace_of(measured(snapshot, "a", 0.25), "c") == {"a100": 0.25, "t4": 0.25}


@pytest.mark.parametrize("pace", [0.2, 0.5, 2.0])
@pytest.mark.parametrize("now_pace", [0.2, 0.5, 2.0])
def test_who_runs_is_not_displaced_by_its_equal(pace: float, now_pace: float) -> None:
    """Whatever was measured before, and whatever it measures itself, as long as it has only begun."""
    one_gpu, grid = [node_info("n1", gpus=1, gpu_type="a100")], grid_of(cell("a100", (1,), 1.0))
    jobs = {"a": (SPEC, grid), "b": (SPEC, grid)}
    held = {"a": holding_of(grid, allocation_on(("n1", (0,))), since_s=990.0)}
    snapshot = measured(snapshot_of(one_gpu, jobs, running=held, paces=known((kind("a100"), pace))), "a", now_pace)
    assert not PricedPolicy().decide(snapshot).choices


@pytest.mark.parametrize(("pace", "is_promised"), [(1.0, True), (0.25, False)])
def test_a_promise_counts_with_the_pace_of_those_that_have_only_been_started(pace: float, *, is_promised: bool) -> None:
    """The one that is promised its end needs 100 s of the only GPU by its grid, 400 s as was measured of its like."""
    one_gpu, grid = [node_info("n1", gpus=1, gpu_type="a100")], grid_of(cell("a100", (1,), 1.0))
    first = train_spec("a", stop={"steps": 100}, deadline_s=800.0)
    second = train_spec("b", model={"layers": 9}, stop={"steps": 300}, deadline_s=800.0)
    held = {"a": holding_of(grid, allocation_on(("n1", (0,))), movable=False, since_s=999.0)}
    paces = known((kind("a100"), pace))
    snapshot = snapshot_of(one_gpu, {"a": (first, grid), "b": (second, grid)}, running=held, paces=paces)
    starting = replace(snapshot.jobs[JobId("a")], state=JobState.STARTING, is_deadline_promised=True)
    snapshot = replace(snapshot, jobs=snapshot.jobs.set(JobId("a"), starting))  # type: ignore[attr-defined]
    answer = PricedPolicy().admission(snapshot, JobId("b"))
    assert answer is not None
    assert answer.is_promised is is_promised


@pytest.mark.parametrize(("pace", "ends_s"), [(1.0, 100.0), (0.25, 400.0)])
def test_when_one_ends_that_may_not_be_stopped_and_has_only_been_started(pace: float, ends_s: float) -> None:
    grid = grid_of(cell("a100", (1,), 1.0))
    holding = holding_of(grid, allocation_on(("n1", (0,))), movable=False, since_s=999.0)
    spec = train_spec("a", stop={"steps": 100}, preemptible=False)
    snapshot = snapshot_of(NODES, {"a": (spec, grid)}, running={"a": holding}, paces=known((kind("a100"), pace)))
    found = runs_until_s(snapshot, JobId("a"), holding)
    assert found == pytest.approx(snapshot.now_s + ends_s)


@pytest.mark.parametrize(("pace", "deadline_s", "told"), [(0.5, 9e5, True), (1.0, 9e5, False), (0.5, None, False)])
def test_why_says_at_which_pace_a_deadline_is_counted(pace: float, deadline_s: float | None, *, told: bool) -> None:
    spec = train_spec("a", stop={"steps": 10_000}, **({} if deadline_s is None else {"deadline_s": deadline_s}))
    snapshot = snapshot_of(NODES, {"a": (spec, GRID)}, paces=known((kind("a100"), pace), (kind("t4"), 0.2)))
    found = [str(one) for one in PricedPolicy().explain(snapshot, JobId("a")) if one.code is ReasonCode.MEASURED_PACE]
    assert (
        found
        == ["on a100 2 it is counted with 0.5 times the estimated speed, as it, or jobs like it, were measured"] * told
    )


def test_a_job_starts_on_the_type_where_its_like_was_faster() -> None:
    """Both are estimated to be as fast."""
    for fast, slow in (("a100", "t4"), ("t4", "a100")):
        snapshot = snapshot_of(NODES, {"a": (SPEC, GRID)}, paces=known((kind(fast), 1.0), (kind(slow), 0.3)))
        assert chosen(PricedPolicy().decide(snapshot), "a").group.parts[0].gpu_type == fast


def test_what_is_within_the_tolerance_on_one_type_is_left_alone_beside_another() -> None:
    paces = known((kind("a100"), 1.03), (kind("t4"), 0.5))
    assert pace_of(seen(paces), "a") == {"a100": 1.0, "t4": 0.5}


def test_jobs_of_one_grid_that_differ_in_pace_by_type_do_not_share_what_they_can_do() -> None:
    """Which of two kinds is slow on the type that neither has makes no difference to what both are worth together."""
    on_t4 = grid_of(*(one for one in GRID.cells if one.group.parts[0].gpu_type == "t4"))
    held = {name: holding_of(on_t4, allocation_on(("n2", (at,)))) for at, name in enumerate("ab")}
    jobs, found = {"a": (SPEC, GRID), "b": (OTHER, GRID)}, list[float]()
    for slow, fast in ((SPEC, OTHER), (OTHER, SPEC)):
        paces = known(*((kind("t4", spec), 1.0) for spec in (SPEC, OTHER)), (kind("a100", slow), 0.2))
        paces = paces.after(kind("a100", fast), 3.0, 9.0)
        numbers = PricedPolicy().weighed(snapshot_of(NODES, jobs, running=held, paces=paces)).numbers
        found.append(numbers["bound"])
    assert found[0] == pytest.approx(found[1], rel=1e-6)


@pytest.mark.parametrize("type_count", [2, 63, 64, 65, 130])
@pytest.mark.parametrize("is_in_use", [True, False])
def test_types_are_told_apart_however_many_there_are(type_count: int, *, is_in_use: bool) -> None:
    """Also the last of them, where a job is whose node may not be used at present."""
    types = [f"t{at:03}" for at in range(type_count)]
    nodes = [node_info(f"n-{gpu_type}", gpus=2, gpu_type=gpu_type) for gpu_type in types]
    grid = grid_of(*(cell(gpu_type, (1,), 1.0) for gpu_type in (types[0], types[-1])))
    held = Holding(
        group=GpuGroup.of(types[-1], [1]),
        plan=grid.cells[-1].best.plan,
        estimate=grid.cells[-1].best.estimate,
        allocation=allocation_on((f"n-{types[-1]}", (0,))),
        movable=True,
        since_s=0.0,
    )
    paces = known((kind(types[0]), 0.5), (kind(types[-1]), 0.2))
    snapshot = snapshot_of(nodes, {"a": (SPEC, grid), "b": (SPEC, grid)}, running={"a": held}, paces=paces)
    if not is_in_use:
        pool, node_id = (types[-1], "default"), NodeId(f"n-{types[-1]}")
        capacity = snapshot.capacity.with_devices(node_id, pool, ()).with_node(node_id, pool, ())
        snapshot = replace(snapshot, capacity=capacity)
    assert pace_of(snapshot, "a") == pace_of(snapshot, "b") == {types[0]: 0.5, types[-1]: 0.2}
    market = market_of(snapshot, Tables())
    assert market.speed[market.keeping[0]] == pytest.approx(0.2)


@pytest.mark.parametrize("restart_s", [0.0, 1.0])
def test_where_restarts_are_quick_a_minute_of_steps_counts_as_much_as_what_was_expected(restart_s: float) -> None:
    """The first steps are slow however quickly a job starts."""
    held = {"a": replace(HELD["a"], since_s=1000.0 - restart_s - TRUST_S_MIN)}
    paces = known((kind("a100"), 0.8), (kind("t4"), 0.8))
    snapshot = measured(seen(paces, running=held, restart_s=restart_s), "a", 0.2)
    assert pace_of(snapshot, "a") == pytest.approx({"a100": 0.4, "t4": 0.4}, rel=1e-3)


@pytest.mark.parametrize("step_time_s", [-1.0, 0.0, 1e-308, 1e300, float("inf"), float("-inf"), float("nan")])
@pytest.mark.parametrize("stop", [{"steps": 10_000}, {"time_limit_s": 1e5}, {"steps": 10_000, "time_limit_s": 1e5}])
@pytest.mark.parametrize("deadline_s", [None, 1e5])
def test_a_step_time_that_cannot_be_is_as_if_none_had_been_told(
    step_time_s: float, stop: dict[str, float], deadline_s: float | None
) -> None:
    """A program tells it itself, and all others wait for the decision."""
    spec = train_spec("job", stop=stop, deadline_s=deadline_s)
    snapshot = snapshot_of(NODES, {"a": (spec, GRID), "b": (SPEC, GRID)}, running=HELD)
    job = replace(snapshot.jobs[JobId("a")], progress=Progress(step=10, reported_at_s=snapshot.now_s - 1.0))
    told = replace(job, progress=replace(job.progress, step_time_s=step_time_s))
    untold, odd = (replace(snapshot, jobs={**snapshot.jobs, JobId("a"): one}) for one in (job, told))
    for name in policy_names():
        assert make_policy(name).decide(odd) == make_policy(name).decide(untold), name
    assert PricedPolicy().explain(odd, JobId("a")) == PricedPolicy().explain(untold, JobId("a"))
