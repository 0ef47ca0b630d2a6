"""``arena replay`` of a scheduler's log goes by what that scheduler went by: budgets of jobs, the cost of a restart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from arena.domain.job import JobSpec
from arena.domain.records import JobState, Progress
from arena_traces.formats.log_writing import log_job, log_lines
from tests.builders import command_spec, job_record, logged_attempt
from tests.fakes.command_line import Arena

RAN_S, START_S = 1_000.0, 20.0
"""Of every job, at 1 USD a second, after its start."""


def ran(job_id: str, **fields: Any) -> Any:
    """What a log says of a program that ran once to its end."""
    job = job_record(job_id, command_spec(job_id, **fields), state=JobState.SUCCEEDED)
    return log_job(job, job.spec, [logged_attempt(job_id, from_s=START_S, to_s=START_S + RAN_S)])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    jobs = [ran("rich", budget_usd=1_100.0), ran("poor", budget_usd=500.0, grace_s=50.0), ran("free")]
    (tmp_path / "log.jsonl").write_text("".join(log_lines(jobs, exported_at_s=10_000.0, restart_s=25.0)))
    cluster = "nodes: [{type: cpu, count: 3, gpus: 1}]\ngpu_types: {cpu: {usd_per_hour: 3600}}\n"
    (tmp_path / "cluster.yaml").write_text(cluster)
    return tmp_path


def replayed(arena: Arena, folder: Path, *argv: object) -> dict[str, dict[str, Any]]:
    """The figures of a replay by policy."""
    done = arena("replay", folder / "log.jsonl", "--cluster", folder / "cluster.yaml", "--check", "--json", *argv)
    assert done.code == 0, done.err
    return {one["policy"]: one["whole"] for one in done.document["policies"]}


def test_who_cannot_pay_on_is_given_up_where_each_policy_sees_it(arena: Arena, folder: Path) -> None:
    found = replayed(arena, folder, "--policy", "fcfs,arena")
    assert [one["given_up_job_count"] for one in found.values()] == [1, 1]
    fcfs_s, arena_s = (one["gpu_hours"] * 3600 for one in found.values())
    assert arena_s == pytest.approx(2 * (RAN_S + START_S)), "it is never started where it cannot pay for its end"
    assert fcfs_s == pytest.approx(arena_s + 499), "a program is stopped in time for its stop to be paid for"


def test_budgets_can_be_left_aside(arena: Arena, folder: Path) -> None:
    found = replayed(arena, folder, "--policy", "fcfs,arena", "--ignore-budgets")
    for figures in found.values():
        assert figures["given_up_job_count"] == 0
        assert figures["gpu_hours"] * 3600 == pytest.approx(3 * (RAN_S + START_S))


def test_a_start_costs_what_the_log_says_unless_told_otherwise(arena: Arena, folder: Path) -> None:
    told = replayed(arena, folder, "--ignore-budgets", "--restart-s", 5)
    assert told["fcfs"]["gpu_hours"] * 3600 == pytest.approx(3 * (RAN_S + 5))
    done = arena("replay", folder / "log.jsonl", "--cluster", folder / "cluster.yaml")
    assert "start 25 s, as the log says; of programs 20 s, the mean of the log" in done.out
    assert "budgets     2 of the jobs have one; who cannot pay on is given up" in done.out
    assert "BUDGETS" in done.out


def test_in_a_log_that_does_not_say_only_programs_start_as_they_did(arena: Arena, folder: Path) -> None:
    workload = {"name": "net__1B", "global_batch": 8}
    spec = JobSpec.model_validate({"name": "net", "workload": workload, "stop": {"steps": 10}})
    job = job_record("net", spec, state=JobState.QUEUED)
    jobs = [ran("one"), log_job(job, spec, [])]
    (folder / "log.jsonl").write_text("".join(log_lines(jobs, exported_at_s=10_000.0)))
    (folder / "steps.csv").write_text("workload,global_batch,group,step_time_s\nnet__1B,8,cpu 1,7\n")
    figures = replayed(arena, folder, "--grids", folder / "steps.csv")["fcfs"]
    assert figures["gpu_hours"] * 3600 == pytest.approx((RAN_S + START_S) + (10 * 7 + 60))


def test_training_that_is_planned_anew_is_told_beside_what_it_took_there(arena: Arena, folder: Path) -> None:
    workload = {"name": "net__1B", "global_batch": 8}
    spec = JobSpec.model_validate({"name": "net", "workload": workload, "stop": {"steps": 360}})
    done = job_record("net", spec, state=JobState.SUCCEEDED, progress=Progress(step=360))
    unfinished = job_record("more", spec, state=JobState.RUNNING, progress=Progress(step=36))
    attempts = [
        logged_attempt(name, counts=(2,), from_s=20.0, to_s=to_s) for name, to_s in (("net", 740.0), ("more", None))
    ]
    jobs = [ran("one"), log_job(done, spec, attempts[:1]), log_job(unfinished, spec, attempts[1:])]
    (folder / "log.jsonl").write_text("".join(log_lines(jobs, exported_at_s=10_000.0)))
    (folder / "steps.csv").write_text("workload,global_batch,group,step_time_s\nnet__1B,8,cpu 1+1,10\n")
    command = ("replay", folder / "log.jsonl", "--cluster", folder / "cluster.yaml", "--grids", folder / "steps.csv")
    said = (
        "log         its 1 training job that ended trained for {} GPU-hours; replayed at the speed of the table, the "
        "same steps take {} on what they ask for\n"
    )
    assert said.format("0.4", "2") in arena(*command).out
    assert said.format("0.2", "1") in arena(*command, "--steps", 0.5).out
    (folder / "programs.jsonl").write_text("".join(log_lines([ran("one")], exported_at_s=10_000.0)))
    assert "\nlog  " not in arena("replay", folder / "programs.jsonl", "--cluster", folder / "cluster.yaml").out
