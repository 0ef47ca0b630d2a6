"""Replays against hand computations: rounds, restarts, true ends, gathered decisions, the account."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from arena.domain.allocation import GpuGroup
from arena.domain.cluster import ClusterShape
from arena.domain.grid import GridSource
from arena.domain.job import JobId, JobSpec, WorkloadSpec
from arena.domain.records import JobState
from arena.engine.ports import Step
from arena.planner.tables import TableGrids
from arena.policies.arena_greedy import ArenaGreedy, GreedyRules
from arena.policies.registry import make_policy
from arena.sim.costs import ConstantRestart, SimCosts
from arena.sim.ledger import JobOutcome, Ledger
from arena.sim.metrics import summarise
from arena.sim.replay import REPLAY_CONFIG, Replay, ReplayJob
from arena.sim.world import Fate
from tests.builders import shape

FREE = SimCosts(start_s=0.0, restart=ConstantRestart(first_s=0.0, again_s=0.0), save_s=0.0, exit_s=0.0)
WORKLOAD = WorkloadSpec(name="net__1B", global_batch=8)


def table(times: Mapping[tuple[str, tuple[int, ...]], float]) -> TableGrids:
    """A table of one workload from {(type, GPUs by node): seconds per step}."""
    rows = {GpuGroup.of(gpu_type, counts): time_s for (gpu_type, counts), time_s in times.items()}
    return TableGrids(name="hand", iter_time_s={WORKLOAD: rows})


def job(name: str, at_s: float, steps: int, *, count: int = 1, fate: Fate | None = None, **fields: Any) -> ReplayJob:
    spec = JobSpec.model_validate(
        {
            "name": name,
            "kind": "rigid",
            "workload": WORKLOAD,
            "stop": {"steps": steps},
            "gpus": {"count": count},
            **fields,
        }
    )
    return ReplayJob(job_id=JobId(name), submitted_at_s=at_s, spec=spec, fate=fate or Fate(step_count=steps))


def run(cluster: ClusterShape, grids: GridSource, *jobs: ReplayJob, costs: SimCosts = FREE) -> dict[str, JobOutcome]:
    replay = Replay(shape=cluster, policy=make_policy("fcfs"), grids=grids, costs=costs, check=True)
    return {one.job_id: one for one in replay.run(jobs).outcomes}


def test_two_jobs_share_one_gpu_by_hand() -> None:
    """One GPU, a step a second: a (100 steps) at 10 s, b (50 steps) at 20 s, each with 5 s to come up."""
    costs = replace(FREE, restart=ConstantRestart(first_s=5.0, again_s=7.0))
    grids = table({("cpu", (1,)): 1.0})
    found = run(shape(("cpu", 1, 1)), grids, job("a", 10.0, 100), job("b", 20.0, 50), costs=costs)
    assert (found["a"].ended_at_s, found["b"].ended_at_s) == (115.0, 170.0)
    assert (found["a"].waiting_s, found["b"].waiting_s) == (0.0, 95.0)
    assert (found["a"].gpu_seconds, found["a"].lost_gpu_seconds) == (105.0, 5.0)
    assert found["a"].restart_count == 0


def test_who_leaves_makes_room_for_who_arrives_at_the_same_instant() -> None:
    found = run(shape(("cpu", 1, 1)), table({("cpu", (1,)): 1.0}), job("a", 0.0, 100), job("b", 100.0, 50))
    assert found["b"].waiting_s == 0.0


def test_rounds_take_in_late_and_let_go_late() -> None:
    costs = replace(FREE, round_s=300.0)
    found = run(shape(("cpu", 1, 1)), table({("cpu", (1,)): 1.0}), job("a", 10.0, 300), job("b", 301.0, 1), costs=costs)
    assert (found["a"].submitted_at_s, found["a"].ended_at_s) == (300.0, 600.0)
    assert (found["b"].submitted_at_s, found["b"].ended_at_s) == (600.0, 900.0)


def test_a_job_ends_by_its_fate_and_not_by_what_it_declares() -> None:
    grids = table({("cpu", (1,)): 1.0})
    early = job("early", 0.0, 1000, fate=Fate(step_count=10))
    killed = job("killed", 0.0, 1000, fate=Fate(step_count=20, is_cancelled=True))
    found = run(shape(("cpu", 2, 1)), grids, early, killed)
    assert (found["early"].state, found["early"].ended_at_s) == (JobState.SUCCEEDED, 10.0)
    assert (found["killed"].state, found["killed"].ended_at_s) == (JobState.CANCELLED, 20.0)


def test_events_of_one_instant_are_decided_together() -> None:
    """Four submissions at once: one decision where events are gathered, and the same ends."""
    grids = table({("cpu", (1,)): 1.0})
    jobs = [job(f"j{index}", 5.0, 10 + index) for index in range(4)]
    ends, counts = [], []
    for after_s in (None, 0.0):
        decided: list[float] = []

        def watch(step: Step, decided: list[float] = decided) -> None:
            if step.decision is not None and step.decision.choices:
                decided.append(step.at_s)

        replay = Replay(
            shape=shape(("cpu", 4, 1)),
            policy=make_policy("fcfs"),
            grids=grids,
            costs=FREE,
            config=replace(REPLAY_CONFIG, decide_after_s=after_s),
            check=True,
        )
        ledger = replay.run(jobs, watch=watch)
        ends.append({one.job_id: one.ended_at_s for one in ledger.outcomes})
        counts.append(decided)
    assert ends[0] == ends[1]
    assert counts[0] == [5.0] * 4
    assert counts[1] == [5.0]


def test_a_gathered_decision_waits_its_time() -> None:
    replay = Replay(
        shape=shape(("cpu", 1, 1)),
        policy=make_policy("fcfs"),
        grids=table({("cpu", (1,)): 1.0}),
        costs=FREE,
        config=replace(REPLAY_CONFIG, decide_after_s=30.0),
    )
    later = replay.run([job("a", 0.0, 10), job("b", 500.0, 10)]).outcomes[-1]
    assert later.first_started_at_s == 530.0


def test_a_look_that_the_policy_wished_for_is_gathered_like_any_event() -> None:
    """Nodes come at -1 s, so a starts at 29 s and passes 50 GPU-seconds at 79 s; 30 s later b takes its place.

    What is gathered from then on is decided on at 139 s, when b's 10 s are long over and 20 steps of a are left.
    """
    replay = Replay(
        shape=shape(("cpu", 1, 1)),
        policy=make_policy("tiresias", {"first_gpu_s": 50.0}),
        grids=table({("cpu", (1,)): 1.0}),
        costs=FREE,
        config=replace(REPLAY_CONFIG, decide_after_s=30.0),
    )
    steps: list[Step] = []
    outcomes = replay.run([job("a", 0.0, 100), job("b", 35.0, 10)], watch=steps.append).outcomes
    ended_at_s = {str(one.job_id): one.ended_at_s for one in outcomes}
    assert ended_at_s == pytest.approx({"b": 119.0, "a": 159.0}, abs=0.01)
    assert len(steps) < 100


def test_figures_of_a_run_by_hand() -> None:
    """a holds its GPU 0-100, b waits 100 and holds it 100-150."""
    ledger = Ledger()
    replay = Replay(
        shape=shape(("cpu", 1, 1)), policy=make_policy("fcfs"), grids=table({("cpu", (1,)): 1.0}), costs=FREE
    )
    ledger = replay.run([job("a", 0.0, 100), job("b", 0.0, 50)])
    summary = summarise(ledger, submitted_count=2, gpu_count=1)
    assert summary.avg_jct_s == 125.0
    assert summary.queue_s == 50.0
    assert summary.makespan_s == 150.0
    assert summary.utilisation == pytest.approx(1.0)
    assert summary.avg_bounded_slowdown == pytest.approx((1.0 + 3.0) / 2)
    assert ledger.busy[-1] == (150.0, 0)


def test_a_table_offers_what_was_measured_and_the_cluster_has() -> None:
    times = {("a100", (1,)): 4.0, ("a100", (4,)): 1.5, ("a100", (2, 2)): 1.7, ("v100", (4,)): 2.0, ("v100", (16,)): 1.0}
    spec = job("a", 0.0, 1, kind="malleable", gpus={}).spec
    grid = table(times).grid(spec, shape(("a100", 4, 1), ("v100", 4, 2)))
    assert [str(cell.group) for cell in grid.cells] == ["a100 1", "a100 4", "v100 4"]
    narrow = spec.model_copy(update={"gpus": spec.gpus.model_copy(update={"types": ("v100",)})})
    assert [str(cell.group) for cell in table(times).grid(narrow, shape(("v100", 4, 2))).cells] == ["v100 4"]


def ends(policy: str, cluster: ClusterShape, grids: GridSource, *jobs: ReplayJob, **options: float) -> dict[str, float]:
    replay = Replay(shape=cluster, policy=make_policy(policy, options), grids=grids, costs=FREE, check=True)
    return {str(one.job_id): one.ended_at_s for one in replay.run(jobs).outcomes}


def test_srtf_stops_the_longer_job_and_lets_it_go_on() -> None:
    """a has 80 of 100 s left when b of 10 s comes: b ends at 30, a at 110; c of 85 s had to wait for both."""
    grids = table({("cpu", (1,)): 1.0})
    jobs = (job("a", 0.0, 100), job("b", 20.0, 10), job("c", 20.0, 85))
    assert ends("srtf", shape(("cpu", 1, 1)), grids, *jobs) == {"b": 30.0, "a": 110.0, "c": 195.0}


def test_tiresias_favours_who_has_had_least() -> None:
    """With a limit of 50 GPU-seconds a falls behind at 50 s; b, there since 40 s, runs 50-80, a goes on to 130."""
    grids = table({("cpu", (1,)): 1.0})
    found = ends("tiresias", shape(("cpu", 1, 1)), grids, job("a", 0.0, 100), job("b", 40.0, 30), first_gpu_s=50.0)
    assert found["b"] == pytest.approx(80.0, abs=1.5)
    assert found["a"] == pytest.approx(130.0, abs=1.5)


def test_easy_lets_pass_only_who_delays_nobody() -> None:
    """h waits for both GPUs until 100 s; c (50 s) passes it, d (200 s) may not."""
    grids = table({("cpu", (1,)): 1.0, ("cpu", (2,)): 1.0})
    jobs = (job("a", 0.0, 100), job("h", 1.0, 10, count=2), job("d", 2.0, 200), job("c", 3.0, 50))
    cluster = shape(("cpu", 2, 1))
    assert ends("fcfs", cluster, grids, *jobs) == {"a": 100.0, "h": 110.0, "c": 160.0, "d": 310.0}
    assert ends("fcfs-easy", cluster, grids, *jobs) == {"c": 53.0, "a": 100.0, "h": 110.0, "d": 310.0}


def test_easy_lets_long_jobs_take_what_the_first_will_not_need() -> None:
    """Of four GPUs h will need two at 100 s; e, who runs for ever, may have one of the other two now, f not a third."""
    grids = table({("cpu", (1,)): 1.0, ("cpu", (2,)): 1.0, ("cpu", (3,)): 1.0})
    jobs = (job("a", 0.0, 100, count=2), job("h", 1.0, 10, count=3), job("e", 2.0, 500), job("f", 3.0, 500))
    found = ends("fcfs-easy", shape(("cpu", 4, 1)), grids, *jobs)
    assert (found["e"], found["h"]) == (502.0, 110.0)
    assert found["f"] == 610.0


GREEDY = table({("a", (1,)): 4.0, ("a", (2,)): 2.0, ("b", (1,)): 6.0, ("b", (2,)): 3.0})
"""Type a is half as fast again as type b, and two GPUs are twice as fast as one."""


def greedy(*jobs: ReplayJob, asks: dict[str, tuple[str, int]], **rules: bool) -> dict[str, float]:
    policy = ArenaGreedy(rules=replace(GreedyRules(), **rules), asks={JobId(name): ask for name, ask in asks.items()})
    replay = Replay(shape=shape(("a", 2, 1), ("b", 2, 1)), policy=policy, grids=GREEDY, costs=FREE, check=True)
    return {str(one.job_id): one.ended_at_s for one in replay.run(jobs).outcomes}


def wide(name: str, at_s: float, steps: int) -> ReplayJob:
    return job(name, at_s, steps, kind="malleable", gpus={})


def test_greedy_doubles_a_job_that_is_alone_and_not_where_it_may_not() -> None:
    """100 steps asked for on one GPU of type a: 400 s as asked, 200 s doubled."""
    asks = {"x": ("a", 1)}
    assert greedy(wide("x", 0.0, 100), asks=asks) == {"x": 200.0}
    assert greedy(wide("x", 0.0, 100), asks=asks, scaling=False) == {"x": 400.0}
    assert greedy(wide("x", 0.0, 100), asks={"x": ("b", 2)}) == {"x": 200.0}
    assert greedy(wide("x", 0.0, 100), asks={"x": ("b", 2)}, type_change=False) == {"x": 300.0}


def test_greedy_makes_room_by_the_step_that_costs_least() -> None:
    """x has both GPUs of type a when y asks for them: moving x to b loses a third of it, halving it would lose half.

    y then runs 100 steps in 200 s on a; x has done 50 by 100 s and goes on at 3 s a step until y leaves at 300 s,
    then moves back: 66 steps on b, and the rest on a.
    """
    asks = {"x": ("a", 2), "y": ("a", 2)}
    found = greedy(wide("x", 0.0, 150), wide("y", 100.0, 100), asks=asks)
    assert found["y"] == 300.0
    assert found["x"] == pytest.approx(300.0 + (150 - 50 - 66) * 2.0, abs=4.0)


def test_who_cannot_pay_on_gives_up_also_where_nobody_watches() -> None:
    """A GPU costs a dollar a second: 300 of them do not buy 500 steps of a second each."""
    replay = Replay(
        shape=shape(("cpu", 1, 1)),
        policy=make_policy("fcfs"),
        grids=table({("cpu", (1,)): 1.0}),
        costs=FREE,
        config=replace(REPLAY_CONFIG, usd_per_hour={"cpu": 3600.0}),
        check=True,
    )
    jobs = [job("poor", 0.0, 500, budget_usd=300.0), job("next", 1.0, 10)]
    found = {one.job_id: one for one in replay.run(jobs).outcomes}
    assert {name: one.state for name, one in found.items()} == {"poor": JobState.CANCELLED, "next": JobState.SUCCEEDED}
    assert found["poor"].gpu_seconds <= 300.0
