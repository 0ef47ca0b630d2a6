"""What a history learns from jobs that end, and from which it learns nothing."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import Any

import pytest

from arena.domain.allocation import GpuGroup
from arena.domain.history import ENDED_JOBS_MAX, LengthHistory, workload_name
from arena.domain.job import JobSpec
from arena.domain.launch import AttemptId
from arena.domain.records import JobRecord, JobState, Predecessor, Progress
from tests.builders import command_spec, job_record, train_spec


def ended(index: int, steps: int, *, declared: int | None = 1000, user: str = "ann", **fields: Any) -> JobRecord:
    stop = {} if declared is None else {"steps": declared}
    found = job_record(
        f"j{index:06}",
        train_spec("job", stop=stop),
        user=user,
        state=JobState.SUCCEEDED,
        ended_at_s=float(index),
        gpu_seconds=4.0 * steps,
        progress=Progress(step=steps),
    )
    return replace(found, **fields)


def after(*jobs: JobRecord) -> LengthHistory:
    history = LengthHistory()
    for job in jobs:
        history = history.after(job)
    return history


def test_bias_and_spread_of_what_users_declare_are_found_again() -> None:
    rng = random.Random(5)
    jobs = [ended(index, max(1, round(1000 * math.exp(rng.gauss(0.4, 0.8))))) for index in range(2000)]
    ratios = after(*jobs).ratios[()]
    assert ratios.job_count == 2000
    assert ratios.mean == pytest.approx(0.4, abs=0.05)
    assert math.sqrt(ratios.variance) == pytest.approx(0.8, abs=0.04)


def test_it_is_kept_of_everybody_of_each_user_and_of_each_kind_of_work() -> None:
    history = after(ended(0, 1000), ended(1, 2000), ended(2, 4000, user="bob"))
    workload = workload_name(train_spec("job"))
    assert {key: found.job_count for key, found in history.ratios.items()} == {
        (): 3,
        ("ann",): 2,
        ("ann", workload): 2,
        ("bob",): 1,
        ("bob", workload): 1,
    }
    assert history.ratios["ann", workload].mean == pytest.approx(math.log(2.0) / 2, abs=1e-5)
    assert history.gpu_s["bob",].mean == pytest.approx(math.log(16000.0), abs=1e-5)
    assert history.steps["bob", workload].mean == pytest.approx(math.log(4000.0), abs=1e-5)


def test_what_declared_nothing_teaches_lengths_but_no_ratio() -> None:
    history = after(ended(0, 500, declared=None))
    assert dict(history.ratios) == {}
    assert history.gpu_s[()].mean == pytest.approx(math.log(2000.0), abs=1e-5)


@pytest.mark.parametrize("state", [JobState.FAILED, JobState.CANCELLED])
def test_a_job_that_did_not_end_by_itself_teaches_nothing(state: JobState) -> None:
    history = after(ended(0, 900))
    assert history.after(ended(1, 10, state=state)) is history


def with_time_limit(declared: int | None, limit_s: float) -> JobSpec:
    stop = {"time_limit_s": limit_s} if declared is None else {"time_limit_s": limit_s, "steps": declared}
    return train_spec("job", stop=stop)


@pytest.mark.parametrize(
    ("declared", "run_time_s", "count"), [(1000, 99.0, 0), (None, 101.0, 0), (300, 101.0, 1), (1000, 50.0, 1)]
)
def test_a_job_cut_by_its_time_limit_before_what_it_declared_teaches_nothing(
    declared: int | None, run_time_s: float, count: int
) -> None:
    job = ended(0, 300, spec=with_time_limit(declared, 100.0), run_time_s=run_time_s)
    assert len(after(job).ended) == count


def test_steps_since_the_last_report_count() -> None:
    last = Predecessor(
        attempt_id=AttemptId("j.1"),
        plan=None,
        group=GpuGroup.of("cpu", [1]),
        decided_at_s=0.0,
        stop_requested_at_s=None,
        stopped_at_s=None,
        ended_at_s=1.0,
        last_step=1000,
        save_s=None,
    )
    assert after(ended(0, 7, predecessor=last)).ratios[()].mean == 0.0


def test_a_program_that_tells_of_no_step_teaches_a_step_for_each_second_that_it_ran() -> None:
    job = ended(0, 0, spec=command_spec("c", stop={"steps": 80}), gpu_seconds=180.0, run_time_s=160.0)
    history = after(job)
    assert history.ratios["ann", "python train.py"].mean == pytest.approx(math.log(2.0), abs=1e-3)
    assert history.steps["ann", "python train.py"].mean == pytest.approx(math.log(160.0), abs=1e-3)
    assert history.gpu_s["ann", "python train.py"].mean == pytest.approx(math.log(180.0), abs=1e-3)


def test_a_program_that_never_ran_teaches_gpu_seconds_alone() -> None:
    history = after(ended(0, 0, spec=command_spec("c"), gpu_seconds=360.0))
    assert (dict(history.steps), dict(history.ratios)) == ({}, {})
    assert history.gpu_s["ann", "python train.py"].job_count == 1


@pytest.mark.parametrize(
    ("argv", "name"),
    [
        (("python", "train.py", "--lr", "0.1"), "python train.py"),
        (("python", "-m", "tool.train", "--depth=3"), "python -m tool.train"),
        (("./run.sh",), "./run.sh"),
    ],
)
def test_options_do_not_make_another_program(argv: tuple[str, ...], name: str) -> None:
    assert workload_name(command_spec("c", command={"argv": argv})) == name


def test_only_the_latest_are_remembered_whatever_their_users_call_themselves() -> None:
    jobs = [ended(index, 100 + index, user=f"user{index}") for index in range(ENDED_JOBS_MAX + 35)]
    history, of_latest = after(*jobs), after(*jobs[35:])
    assert history == of_latest == LengthHistory.of(jobs)
    assert history.ended == of_latest.ended == LengthHistory.of(jobs).ended
    assert len(history.ended) == ENDED_JOBS_MAX
    assert len(history.gpu_s) == 2 * ENDED_JOBS_MAX + 1


def test_a_job_that_is_the_oldest_of_too_many_of_one_instant_teaches_nothing() -> None:
    jobs = [ended(index, 100, ended_at_s=5.0) for index in range(1, ENDED_JOBS_MAX + 1)]
    history = after(*jobs).after(ended(0, 100, ended_at_s=5.0, user="zoe"))
    assert ("zoe",) not in history.gpu_s
    assert history == after(*jobs)
