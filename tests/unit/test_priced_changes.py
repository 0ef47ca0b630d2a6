"""What changes cost under ``arena``: jobs of seconds, moves of late, a measured pace, priorities."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from typing import Any

import pytest

from arena.domain.history import LengthHistory
from arena.domain.job import JobId
from arena.domain.reason import ReasonCode
from arena.domain.records import JobRecord, JobState, Progress
from arena.errors import SpecError
from arena.policies.base import Snapshot
from arena.policies.priced.changes import ChangeRules, outlook
from arena.policies.priced.market import Tables, market_of
from arena.policies.priced.moves import MOVES_MAX
from arena.policies.registry import make_policy
from tests.builders import (
    allocation_on,
    chosen,
    grid_of,
    holding_of,
    job_record,
    node_info,
    scaling_grid,
    snapshot_of,
    train_spec,
)

GRID = scaling_grid("cpu", [(1,), (2,), (4,)], power=0.9)
NODE = node_info("n1", gpus=4)
HALF = allocation_on(("n1", (0, 1)))


def long_job(name: str, steps: int = 100_000, **fields: Any) -> Any:
    return train_spec(name, stop={"steps": steps}, **fields)


def with_job(snapshot: Snapshot, job_id: str, **changes: Any) -> Snapshot:
    record: JobRecord = replace(snapshot.jobs[JobId(job_id)], **changes)
    return replace(snapshot, jobs={**snapshot.jobs, JobId(job_id): record})


def growing(**fields: Any) -> Snapshot:
    """Job a runs on half of a node whose other half is free; growing pays."""
    held = {"a": holding_of(GRID, HALF)}
    return snapshot_of([NODE], {"a": (long_job("a"), GRID)}, running=held, **fields)


def test_a_long_job_grows_into_what_is_free() -> None:
    assert chosen(make_policy("arena").decide(growing()), "a").group.gpu_count == 4


def test_a_policy_that_takes_changes_for_free_grows_a_job_that_ends_before_it_pays() -> None:
    held = {"a": holding_of(GRID, HALF)}
    short = snapshot_of([NODE], {"a": (long_job("a", steps=50), GRID)}, running=held, restart_s=60.0)
    assert "a" not in make_policy("arena").decide(short).choices
    assert chosen(make_policy("arena", {"grow": 0.0, "again": 0.0}).decide(short), "a").group.gpu_count == 4


@pytest.mark.parametrize(("ago_s", "is_left"), [(600.0, True), (7_200.0, False)])
def test_nobody_is_moved_more_than_so_often_in_an_hour(ago_s: float, is_left: bool) -> None:
    snapshot = growing(now_s=10_000.0)
    launches = tuple(10_000.0 - ago_s + at for at in range(MOVES_MAX))
    often = with_job(snapshot, "a", epoch=MOVES_MAX + 1, launched_at_s=launches)
    assert ("a" not in make_policy("arena").decide(often).choices) is is_left


def test_the_first_launch_is_no_move() -> None:
    snapshot = growing(now_s=10_000.0)
    launches = tuple(9_900.0 + at for at in range(MOVES_MAX))
    fresh = with_job(snapshot, "a", epoch=MOVES_MAX, launched_at_s=launches)
    [contender] = market_of(fresh, Tables()).contenders
    assert contender.recent_moves == MOVES_MAX - 1


def test_a_job_of_seconds_takes_no_more_than_it_needs_while_others_wait() -> None:
    """It would end no sooner on four GPUs: its start is most of its time."""
    grid = scaling_grid("cpu", [(1,), (2,), (3,), (4,)], power=0.9)
    jobs = {"short": (long_job("short", steps=4), grid), "long": (long_job("long"), grid)}
    decision = make_policy("arena").decide(snapshot_of([NODE], jobs, restart_s=60.0))
    assert chosen(decision, "short").group.gpu_count == 1
    assert chosen(decision, "long").group.gpu_count == 3


def test_a_measured_pace_counts_for_the_whole_grid() -> None:
    """A job that runs at a quarter of what was estimated has four times as long to go."""
    snapshot = with_job(growing(), "a", progress=Progress(step=10, step_time_s=4.0 * 1.0 / 2**0.9, reported_at_s=990.0))
    market = market_of(snapshot, Tables())
    estimated = market_of(growing(), Tables())
    assert market.speed == pytest.approx(estimated.speed / 4.0)


def test_priority_decides_between_equals() -> None:
    one_gpu = node_info("n1", gpus=1)
    grid = scaling_grid("cpu", [(1,)])
    jobs = {"a": (long_job("a"), grid), "b": (long_job("b", priority=3), grid)}
    decision = make_policy("arena").decide(snapshot_of([one_gpu], jobs))
    assert chosen(decision, "b").group.gpu_count == 1
    assert "a" not in decision.choices


def test_others_are_expected_where_some_have_followed_others() -> None:
    snapshot = snapshot_of([NODE], {name: (long_job(name), GRID) for name in "abcd"})
    batch = market_of(snapshot, Tables())
    assert outlook(batch, ChangeRules(outlook=0.4)) == 0.0
    stream = snapshot
    for after_s, name in enumerate("bcd", start=1):
        submitted_at_s = snapshot.jobs[JobId("a")].submitted_at_s - after_s
        stream = with_job(stream, name, submitted_at_s=submitted_at_s)
    assert outlook(market_of(stream, Tables()), ChangeRules(outlook=0.4)) == pytest.approx(0.3)


def test_a_job_about_to_end_is_not_stopped_for_one_that_wants_all() -> None:
    taken = {"a": holding_of(GRID, allocation_on(("n1", (0,))))}
    jobs = {"a": (long_job("a", steps=3), GRID), "b": (long_job("b", steps=10**9), scaling_grid("cpu", [(4,)]))}
    decision = make_policy("arena").decide(snapshot_of([NODE], jobs, running=taken))
    assert not decision.choices


def test_a_waiting_job_is_looked_at_again_when_it_has_waited_long_enough() -> None:
    taken = {"a": holding_of(grid_of(*GRID.cells[:1]), allocation_on(("n1", (0,))))}
    jobs = {"a": (long_job("a", steps=3), GRID), "b": (long_job("b", steps=10**9), scaling_grid("cpu", [(4,)]))}
    decision = make_policy("arena", {"wait_max_s": 500.0}).decide(snapshot_of([NODE], jobs, running=taken))
    assert "b" not in decision.choices
    assert decision.look_again_at_s == pytest.approx(990.0 + 500.0 + 6 * 500.0)  # it says that it is very long


@pytest.mark.parametrize(
    ("restart_s", "lasting_s"), [(0.0, 1e-9), (1.0, 50.0), (12.0, 600.0), (60.0, 600.0), (240.0, 1200.0), (6e3, 6e3)]
)
def test_a_change_lasts_longer_where_restarts_are_dear_but_not_as_many_of_them(
    restart_s: float, lasting_s: float
) -> None:
    assert ChangeRules().lasting_s(restart_s) == pytest.approx(lasting_s)
    assert ChangeRules(horizon_s=300.0).lasting_s(restart_s) == 300.0


@pytest.mark.parametrize("option", ["grow", "shrink", "swap", "suspend", "again", "wait_max_s", "horizon_s"])
def test_options_out_of_range_are_refused(option: str) -> None:
    with pytest.raises(SpecError, match=option):
        ChangeRules(**{option: -1.0})


@pytest.mark.parametrize("option", [field.name for field in fields(ChangeRules)])
@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_options_must_be_numbers_that_can_be_calculated_with(option: str, value: float) -> None:
    with pytest.raises(SpecError, match=f"policy option {option} must be .*"):
        ChangeRules(**{option: value})


def test_fairness_has_a_most_and_decisions_can_be_made_with_it() -> None:
    """Of a job of minutes that came long ago, and before all others by its priority."""
    with pytest.raises(SpecError, match="fairness must be at least 0 and at most 8"):
        make_policy("arena", {"fairness": 8.5})
    jobs = {"a": (long_job("a", steps=300, priority=1000), GRID), "b": (long_job("b"), GRID)}
    snapshot = with_job(snapshot_of([NODE], jobs, now_s=1e9), "a", submitted_at_s=0.0)
    decision = make_policy("arena", {"fairness": 8.0, "wait_max_s": 1e12}).decide(snapshot)
    assert chosen(decision, "a").group.gpu_count == 4
    assert math.isfinite(decision.numbers["value"])


def test_jobs_that_run_at_the_estimated_pace_are_not_touched_by_noise() -> None:
    snapshot = growing()
    noisy = with_job(snapshot, "a", state=JobState.RUNNING, progress=Progress(step=1, step_time_s=1.0001 / 2**0.9))
    assert (market_of(noisy, Tables()).speed == market_of(snapshot, Tables()).speed).all()


def test_a_measured_pace_is_that_of_its_own_job_alone() -> None:
    """Which of two jobs of one grid is slower than estimated makes no difference to what both are worth together."""
    nodes = [node_info("n1", gpus=4), node_info("n2", gpus=4)]
    held = {"a": holding_of(GRID, HALF), "b": holding_of(GRID, allocation_on(("n2", (0, 1))))}
    both = snapshot_of(nodes, {"a": (long_job("a"), GRID), "b": (long_job("b"), GRID)}, running=held)
    slow = Progress(step=10, step_time_s=4.0 / 2**0.9, reported_at_s=990.0)
    fast = Progress(step=10, step_time_s=1.0 / 2**0.9, reported_at_s=990.0)
    policy = make_policy("arena")
    first = policy.decide(with_job(with_job(both, "a", progress=slow), "b", progress=fast)).numbers
    second = policy.decide(with_job(with_job(both, "a", progress=fast), "b", progress=slow)).numbers
    assert first["bound"] == pytest.approx(second["bound"], rel=1e-6)


@pytest.mark.parametrize("same_grid", [True, False])
def test_a_running_job_is_not_displaced_for_being_measured_while_its_equal_is_not(*, same_grid: bool) -> None:
    """Estimates are as wrong for the one that waits, of its kind or another."""
    grid, other = scaling_grid("cpu", [(1,)]), scaling_grid("cpu", [(1,)])
    jobs = {"a": (long_job("a"), grid), "b": (long_job("b"), grid if same_grid else other)}
    held = {"a": holding_of(grid, allocation_on(("n1", (0,))))}
    snapshot = snapshot_of([node_info("n1", gpus=1)], jobs, running=held)
    slow = with_job(
        snapshot, "a", state=JobState.RUNNING, progress=Progress(step=10, step_time_s=3.0, reported_at_s=990.0)
    )
    assert not make_policy("arena").decide(slow).choices


def test_how_much_faster_a_job_gets_is_told_at_its_own_pace() -> None:
    """Both groups are as far off the estimates."""
    slow = Progress(step=10, step_time_s=4.0 / 2**0.9, reported_at_s=990.0)
    decision = make_policy("arena").decide(with_job(growing(), "a", progress=slow))
    assert chosen(decision, "a").cause.numbers["speedup"] == pytest.approx(2**0.9)


def test_a_job_that_is_worth_as_much_as_the_one_that_runs_is_not_told_that_it_is_outbid() -> None:
    grid = scaling_grid("cpu", [(1,)])
    jobs = {name: (long_job(name), grid) for name in ("a", "b")}
    decision = make_policy("arena").decide(snapshot_of([node_info("n1", gpus=1)], jobs))
    [waits] = jobs.keys() - decision.choices.keys()
    assert [one.code for one in decision.reasons[JobId(waits)]] == [ReasonCode.TIED]


def long_history() -> LengthHistory:
    """Ten jobs of the same user ran for a day each."""
    found = LengthHistory()
    for at in range(10):
        ran = job_record(f"h{at}", train_spec("a", stop={}), state=JobState.SUCCEEDED, ended_at_s=float(at))
        found = found.after(replace(ran, progress=Progress(step=10**6), gpu_seconds=86_400.0))
    return found


def test_a_job_without_an_end_runs_for_as_long_as_its_budget_lasts() -> None:
    """What jobs like it took before is no reason not to begin."""
    endless = train_spec("a", stop={}, budget_usd=0.01)
    seen = snapshot_of([NODE], {"a": (endless, GRID)}, usd_per_hour={"cpu": 1.0}, history=long_history())
    assert chosen(make_policy("arena").decide(seen), "a").group.gpu_count >= 1


def test_a_job_without_an_end_is_offered_nothing_when_its_budget_is_spent_to_the_cent() -> None:
    """Also where a start takes no time, and so costs nothing."""
    endless = train_spec("a", stop={}, budget_usd=0.01)
    seen = snapshot_of([NODE], {"a": (endless, GRID)}, usd_per_hour={"cpu": 1.0}, restart_s=0.0)
    decision = make_policy("arena").decide(with_job(seen, "a", spent_usd=0.01))
    assert decision.choices == {}
    assert [one.code for one in decision.reasons[JobId("a")]] == [ReasonCode.BUDGET_TOO_SMALL]
