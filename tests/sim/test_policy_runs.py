"""Policies over time, with the production engine on a virtual clock and grids of the planner."""

from __future__ import annotations

import pytest

from arena.domain.events import JobSubmitted, JobWishChanged, NodeRegistered
from arena.domain.job import JobId, JobSpec
from arena.domain.records import EntryKind, JobRecord, JobState
from arena.planner.source import PlannerGridSource
from arena.policies.registry import make_policy
from arena.sim.run import Simulation
from tests.builders import command_spec, node_info, train_spec


def simulation(policy: str, nodes: int, gpus: int, **options: float) -> Simulation:
    sim = Simulation(policy=make_policy(policy, options), grids=PlannerGridSource(), check=True)
    for index in range(nodes):
        sim.at(0.0, NodeRegistered(info=node_info(f"n{index}", gpus=gpus)))
    return sim


def submit(sim: Simulation, at_s: float, job_id: str, spec: JobSpec) -> None:
    event = JobSubmitted(job_id=JobId(job_id), spec=spec, user="ann", request_id=f"request-{job_id}")
    sim.at(at_s, event)


def gpu_counts(sim: Simulation, job_id: str) -> list[int]:
    """GPUs of each attempt of a job, in order."""
    counts: dict[str, int] = {}
    for step in sim.steps:
        counts.update(
            {attempt.attempt_id: attempt.group.gpu_count for attempt in step.attempts if attempt.job_id == job_id}
        )
    return list(counts.values())


def waited_s(job: JobRecord) -> float:
    assert job.first_started_at_s is not None
    return job.first_started_at_s - job.submitted_at_s


def test_a_job_shrinks_for_another_and_grows_again_and_both_finish():
    sim = simulation("elastic", nodes=2, gpus=2)
    submit(sim, 1.0, "a", train_spec("a", stop={"steps": 20_000}))
    submit(sim, 100.0, "b", train_spec("b", stop={"steps": 4_000}))
    sim.run(until_s=5_000.0)
    assert {job.state for job in sim.ended.values()} == {JobState.SUCCEEDED}
    assert gpu_counts(sim, "a") == [4, 2, 4]
    assert gpu_counts(sim, "b") == [2]
    changes = [entry for step in sim.steps for entry in step.history if entry.kind is EntryKind.JOB_PREEMPTED]
    assert changes == []


@pytest.mark.parametrize("policy", ["srtf", "arena"])
def test_who_is_displaced_is_told_for_whom(policy: str) -> None:
    sim = simulation(policy, nodes=1, gpus=2)
    submit(sim, 1.0, "long", train_spec("long", kind="rigid", gpus={"count": 2}, stop={"steps": 50_000}))
    submit(sim, 200.0, "short", train_spec("short", kind="rigid", gpus={"count": 2}, stop={"steps": 100}))
    sim.run(until_s=1_000.0)
    told = [entry for step in sim.steps for entry in step.history if entry.kind is EntryKind.JOB_PREEMPTED]
    assert {(entry.job_id, entry.data["by"]) for entry in told} == {("long", "short")}
    assert all(entry.message.endswith("; its GPUs go to short") for entry in told)


def test_starts_that_its_user_asked_for_are_no_moves():
    """A job that was held and released four times gives way to others like any other."""
    sim = simulation("arena", nodes=1, gpus=4)
    submit(sim, 1.0, "long", train_spec("long", stop={"steps": 1_000_000}))
    for turn in range(5):
        for at_s, wish in ((50.0, "hold"), (80.0, "run")):
            sim.at(100.0 * turn + at_s, JobWishChanged(job_id=JobId("long"), wish=wish, by="ann"))
    submit(sim, 600.0, "short", train_spec("short", stop={"steps": 20}))
    sim.run(until_s=1_200.0)
    assert sim.ended[JobId("short")].state is JobState.SUCCEEDED


def test_a_large_job_is_not_starved_by_a_stream_of_small_ones():
    """Eight GPUs, small jobs without end: the large one waits its bound and one small job, no longer."""
    sim = simulation("elastic", nodes=1, gpus=8, wait_s_max=60.0)
    for index in range(300):
        submit(sim, 1.0 + 2.0 * index, f"s{index:03d}", command_spec(stop={"steps": 20}))
    submit(sim, 30.0, "large", command_spec(count=8, stop={"steps": 20}))
    sim.run(until_s=5_000.0)
    assert len(sim.ended) == 301
    assert waited_s(sim.ended[JobId("large")]) < 60.0 + 20.0 + 30.0


def test_fcfs_starts_jobs_in_the_order_in_which_they_came():
    sim = simulation("fcfs", nodes=1, gpus=4)
    for index in range(20):
        submit(sim, 1.0 + index, f"j{index:02d}", command_spec(count=1 + index % 4, stop={"steps": 30}))
    sim.run(until_s=5_000.0)
    started = sorted(sim.ended.values(), key=lambda job: (job.first_started_at_s or 0.0, job.job_id))
    assert [job.job_id for job in started] == sorted(sim.ended)
    assert all(job.reconfiguration_count == 0 for job in sim.ended.values())


def test_the_same_run_twice_is_the_same():
    runs = []
    for _ in range(2):
        sim = simulation("elastic", nodes=2, gpus=2)
        for index in range(6):
            submit(sim, 1.0 + 40.0 * index, f"j{index}", train_spec(stop={"steps": 3_000}))
        sim.run(until_s=5_000.0)
        runs.append([step.decision for step in sim.steps])
    assert runs[0] == runs[1]
