"""Jobs with deadlines under `arena`: those that were promised theirs end in time, whatever else comes."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from arena.domain.allocation import GpuGroup
from arena.domain.job import JobId, JobSpec, WorkloadSpec
from arena.domain.records import JobRecord
from arena.domain.tenants import Guarantee
from arena.engine.ports import Step
from arena.planner.tables import TableGrids
from arena.policies.priced.policy import PricedPolicy
from arena.policies.registry import make_policy
from arena.sim.costs import ConstantRestart, SimCosts
from arena.sim.ledger import JobOutcome
from arena.sim.replay import REPLAY_CONFIG, Replay, ReplayJob
from arena.sim.world import Fate
from tests.builders import (
    allocation_on,
    cell,
    command_spec,
    grid_of,
    holding_of,
    node_info,
    shape,
    snapshot_of,
    train_spec,
)

RESTART_S = 10.0
WIDE = WorkloadSpec(name="wide__1B", global_batch=8)
SMALL = WorkloadSpec(name="small__1B", global_batch=8)
GRIDS = TableGrids(
    name="hand",
    iter_time_s={
        WIDE: {GpuGroup.of("cpu", [count]): 1.0 / count**0.8 for count in (1, 2, 4)},
        SMALL: {GpuGroup.of("cpu", [1]): 1.0},
    },
)


def submitted(name: str, at_s: float, workload: WorkloadSpec, steps: int, **fields: object) -> ReplayJob:
    spec = JobSpec.model_validate(
        {"name": name, "kind": "malleable", "workload": workload, "stop": {"steps": steps}, **fields}
    )
    return ReplayJob(job_id=JobId(name), submitted_at_s=at_s, spec=spec, fate=Fate(step_count=steps))


def replayed(
    jobs: list[ReplayJob], *, gpus: int = 4, nodes: int = 2, **shares: int
) -> tuple[dict[str, JobOutcome], set[str]]:
    """Run jobs on nodes of so many GPUs; return how they ended, and who was promised a deadline.

    Args:
        shares: GPUs that are guaranteed, by project.
    """
    tenants = {name: Guarantee(gpu_count_by_type={"cpu": count}) for name, count in shares.items()}
    restart = ConstantRestart(first_s=RESTART_S, again_s=RESTART_S)
    replay = Replay(
        shape=shape(("cpu", gpus, nodes)),
        policy=make_policy("arena"),
        grids=GRIDS,
        costs=SimCosts(start_s=0.0, restart=restart, save_s=0.0, exit_s=0.0),
        config=replace(REPLAY_CONFIG, decide_after_s=0.0, restart_s=RESTART_S, tenants=tenants),
        check=True,
    )
    promised: set[str] = set()

    def watch(step: Step) -> None:
        promised.update(job.job_id for job in step.jobs if isinstance(job, JobRecord) and job.is_deadline_promised)

    ledger = replay.run(sorted(jobs, key=lambda job: job.submitted_at_s), watch=watch)
    return {one.job_id: one for one in ledger.outcomes}, promised


def flood(until_s: float, *, every_s: float = 25.0, **fields: object) -> list[ReplayJob]:
    """Short jobs that fill eight GPUs one and a half times over."""
    return [submitted(f"s{at:04}", every_s * at, SMALL, 300, **fields) for at in range(int(until_s / every_s))]


@pytest.mark.parametrize("deadline_s", [1_500.0, 3_000.0])
def test_a_long_job_that_shortest_first_would_starve_meets_its_deadline(deadline_s: float) -> None:
    jobs = flood(6_000.0)
    without, _ = replayed([*jobs, submitted("long", 100.0, WIDE, 1_000)])
    assert without["long"].completion_s > 1.5 * deadline_s
    found, promised = replayed([*jobs, submitted("long", 100.0, WIDE, 1_000, deadline_s=deadline_s)])
    assert "long" in promised
    assert found["long"].completion_s <= deadline_s
    assert found["long"].restart_count <= 6


def test_who_cannot_be_in_time_is_one_as_any_other() -> None:
    jobs = flood(3_000.0)
    found, promised = replayed([*jobs, submitted("long", 100.0, WIDE, 1_000, deadline_s=200.0)])
    without, _ = replayed([*jobs, submitted("long", 100.0, WIDE, 1_000)])
    assert "long" not in promised
    assert found == without


def test_a_promise_is_not_broken_by_programs_that_may_not_be_stopped() -> None:
    jobs = flood(4_000.0, preemptible=False)
    found, promised = replayed([*jobs, submitted("long", 100.0, WIDE, 1_000, deadline_s=1_500.0)])
    assert "long" in promised
    assert found["long"].completion_s <= 1_500.0
    assert all(one.ended_at_s is not None for one in found.values())


def short_ones_beside(deadline_s: float | None) -> tuple[float, JobOutcome]:
    """Run a long job on one GPU, and bursts of short ones that come later; return their mean time and how it ended."""
    rigid = {"kind": "rigid", "gpus": {"count": 1}}
    bursts = [at_s + 0.1 * place for at_s in (200.0, 1_000.0, 1_800.0, 2_600.0) for place in range(8)]
    jobs = [submitted(f"s{at:02}", at_s, SMALL, 60, **rigid) for at, at_s in enumerate(bursts)]
    long = submitted("long", 0.0, SMALL, 1_500, deadline_s=deadline_s, **rigid)
    found, promised = replayed([*jobs, long], gpus=1, nodes=1)
    assert promised == (set() if deadline_s is None else {"long"})
    ended = found.pop("long")
    return sum(one.completion_s for one in found.values()) / len(found), ended


def test_until_its_deadline_presses_a_running_job_is_stopped_for_others_as_one_without() -> None:
    without_s, _ = short_ones_beside(None)
    for deadline_s in (5_000.0, 1e6):
        far_s, _ = short_ones_beside(deadline_s)
        assert far_s <= without_s
    through_s, _ = short_ones_beside(1_700.0)  # never stopped
    near_s, long = short_ones_beside(3_000.0)
    assert near_s < 0.6 * through_s
    assert long.completion_s <= 3_000.0


@settings(max_examples=6, deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))  # shrinking takes hours
@given(
    asked=st.lists(
        st.tuples(st.floats(0.0, 2_000.0), st.integers(50, 1_500), st.floats(1.05, 6.0)), min_size=1, max_size=12
    )
)
def test_all_that_were_promised_end_in_time(asked: list[tuple[float, int, float]]) -> None:
    late, _ = late_and_promised(asked, preemptible=True)
    assert late == set()


@pytest.mark.parametrize("seed", [1, 2, 5, 15])
def test_promises_beside_many_that_may_not_be_stopped_are_kept(seed: int) -> None:
    """Eight GPUs are one and a half times overbooked; most jobs may not be stopped. In each of these one was late."""
    rng = random.Random(seed)
    asked = [(rng.uniform(0.0, 2_000.0), rng.randint(50, 1_500), rng.uniform(1.05, 6.0)) for _ in range(12)]
    late, promised = late_and_promised(asked, preemptible=False)
    assert len(promised) >= 9
    assert late == set()


@pytest.mark.slow
def test_few_promises_of_rigid_jobs_beside_many_that_may_not_be_stopped_break() -> None:
    """Draws of which none was chosen or worked on: two of 56 were late when this was written."""
    late_count = promised_count = 0
    for seed in range(110, 116):
        rng, jobs, due_s = random.Random(seed), flood(1_000.0, preemptible=False), dict[str, float]()
        for name in [f"d{at}" for at in range(10)]:
            count, steps = rng.choice([1, 2, 4]), rng.randint(50, 1_200)
            due_s[name] = rng.uniform(1.1, 6.0) * (RESTART_S + steps / count**0.8)
            fields = {"kind": "rigid", "gpus": {"count": count}, "deadline_s": due_s[name]}
            jobs.append(submitted(name, rng.uniform(0.0, 1_000.0), WIDE, steps, **fields))
        found, promised = replayed(jobs)
        late_count += sum(found[name].completion_s > due_s[name] for name in promised)
        promised_count += len(promised)
    assert promised_count >= 50
    assert late_count <= promised_count / 10


@pytest.mark.parametrize(("red", "is_promised"), [(8, False), (7, False), (6, True), (4, True)])
@pytest.mark.parametrize("comes_s", [0.0, 50.0])
def test_a_deadline_is_promised_on_what_nobody_else_is_guaranteed(red: int, is_promised: bool, comes_s: float) -> None:
    """Two GPUs are enough, one is not; red has work for all eight, before or after the job comes."""
    others = [submitted(f"r{at}", 20.0, SMALL, 3_000, project="red") for at in range(8)]
    found, promised = replayed([*others, submitted("long", comes_s, WIDE, 1_000, deadline_s=700.0)], red=red)
    assert promised == ({"long"} if is_promised else set())
    assert (found["long"].completion_s <= 700.0) is is_promised


@pytest.mark.parametrize("project", ["red", "blue"])
def test_tenants_promises_use_their_own_shares_and_what_is_nobodys(project: str) -> None:
    """Blue has two GPUs, red four, two are nobody's: each of blue's jobs needs two, each of red's four."""
    steps, names = {"red": 1_600, "blue": 1_000}[project], ("a", "b", "c")
    jobs = [submitted(name, 0.0, WIDE, steps, deadline_s=700.0, project=project) for name in names]
    others = [submitted(f"o{at}", 20.0, SMALL, 3_000, project="blue" if project == "red" else "red") for at in range(8)]
    found, promised = replayed([*jobs, *others], red=4, blue=2)
    assert len(promised) == {"red": 1, "blue": 2}[project]
    assert all(found[name].completion_s <= 700.0 for name in promised)


def mixed(seed: int) -> list[ReplayJob]:
    """Wide and small jobs with deadlines from hardly possible to easy, a minute apart: more than can be done."""
    rng, jobs = random.Random(seed), list[ReplayJob]()
    for at in range(60):
        workload, steps = rng.choice([WIDE, WIDE, SMALL]), rng.choice([100, 300, 1_000, 2_000])
        alone_s = steps / (3.0 if workload is WIDE else 1.0) + 2.0 * RESTART_S
        deadline_s = rng.choice([1.2, 1.5, 2.0, 4.0, 8.0]) * alone_s
        jobs.append(submitted(f"j{at:02}", 60.0 * at, workload, steps, deadline_s=deadline_s))
    return jobs


@pytest.mark.parametrize("seed", [1, 9, 11, 14])
def test_no_promise_is_broken_for_the_sake_of_jobs_that_have_time_left(seed: int) -> None:
    jobs = mixed(seed)
    found, promised = replayed(jobs)
    due_s = {job.job_id: job.spec.deadline_s or 0.0 for job in jobs}
    assert len(promised) >= 40
    assert {name for name in promised if found[name].completion_s > due_s[JobId(name)]} == set()


def late_and_promised(asked: list[tuple[float, int, float]], *, preemptible: bool) -> tuple[set[str], set[str]]:
    """Run jobs with deadlines, each a multiple of what it needs alone, among a flood."""
    jobs, due_s = flood(2_000.0, preemptible=preemptible), dict[str, float]()
    for at, (at_s, steps, tightness) in enumerate(asked):
        due_s[f"d{at}"] = tightness * (RESTART_S + steps / 4**0.8)
        jobs.append(submitted(f"d{at}", at_s, WIDE, steps, deadline_s=due_s[f"d{at}"]))
    found, promised = replayed(jobs)
    return {name for name in promised if found[name].completion_s > due_s[name]}, promised


@pytest.mark.parametrize(("used", "is_promised"), [((3, 3, 3), (False, False)), ((2, 3, 3), (True, False))])
def test_no_deadline_is_promised_on_gpus_that_are_never_together(
    used: tuple[int, ...], is_promised: tuple[bool, bool]
) -> None:
    """Two jobs of two GPUs on one node, one after the other, beside others that have no end that is known."""
    nodes = [node_info(f"n{at}", gpus=4, gpu_type="a") for at in range(len(used))]
    pair = grid_of(cell("a", (2,), 1.0))
    due = {
        name: (train_spec(name, kind="rigid", gpus={"count": 2}, stop={"steps": 100}, deadline_s=170.0), pair)
        for name in ("d0", "d1")
    }
    lasting = {
        f"l{at}": (command_spec(f"l{at}", count=count, preemptible=False), grid_of(cell("a", (count,), 1.0)))
        for at, count in enumerate(used)
    }
    running = {
        f"l{at}": holding_of(lasting[f"l{at}"][1], allocation_on((f"n{at}", tuple(range(count)))))
        for at, count in enumerate(used)
    }
    snapshot, policy = snapshot_of(nodes, {**lasting, **due}, running=running, now_s=0.0), PricedPolicy()
    for name, expected in zip(due, is_promised, strict=True):
        answer = policy.admission(snapshot, JobId(name))
        assert answer is not None
        assert answer.is_promised is expected
        promised = replace(snapshot.jobs[JobId(name)], is_deadline_promised=expected)
        snapshot = replace(snapshot, jobs={**snapshot.jobs, promised.job_id: promised})
