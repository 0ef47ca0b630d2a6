"""What people are shown of a job beyond its record."""

from __future__ import annotations

from dataclasses import replace

import pytest

from arena.domain.reason import Reason, ReasonCode, reason
from arena.domain.records import AttemptState
from arena.rpc.views import job_view
from arena_scheduler.job_views import as_asked, with_live_time
from tests.builders import scaling_grid
from tests.fakes import cluster_of_views as canned

BEGAN_S = canned.TRAINING.launched_at_s + 2.0
TRAINING = replace(canned.TRAINING, first_step_at_s=BEGAN_S)
GRID = scaling_grid("cpu", [(1,), (2,), (2, 2)])


def test_what_runs_now_counts_for_run_time_and_gpu_time() -> None:
    job = canned.training_job()
    later = with_live_time(job_view(job, TRAINING, private=True), TRAINING, BEGAN_S + 100.0)
    assert later.run_time_s == pytest.approx(job.run_time_s + 100.0)
    assert later.gpu_seconds == pytest.approx(job.gpu_seconds + 102.0 * TRAINING.allocation.gpu_count)


def test_what_is_over_or_has_not_begun_adds_nothing() -> None:
    job = canned.training_job()
    view = job_view(job, TRAINING, private=True)
    assert with_live_time(view, None, 1e9) == view
    assert with_live_time(view, replace(TRAINING, state=AttemptState.ENDED), 1e9) == view
    assert with_live_time(view, canned.TRAINING, 1e9).run_time_s == job.run_time_s
    assert with_live_time(view, TRAINING, 0.0).run_time_s == job.run_time_s, "no clock takes time away"


def short(needed: int) -> Reason:
    return reason(ReasonCode.INSUFFICIENT_GPUS, needed=needed, gpu_type="cpu", free=2, total=4)


def test_a_policy_that_gives_what_is_asked_is_not_mistaken_for_a_need() -> None:
    held = reason(ReasonCode.HELD, by="ann")
    (asked, other) = as_asked((short(4), held), "fcfs", GRID)
    assert (
        str(asked)
        == "policy fcfs gives it the 4 cpu GPUs that it asks for and no fewer, though 1 would do: 2 of 4 free"
    )
    assert other is held


@pytest.mark.parametrize(("policy", "needed", "grid"), [("fcfs", 1, GRID), ("elastic", 4, GRID), ("fcfs", 4, None)])
def test_a_need_stays_a_need(policy: str, needed: int, grid: object) -> None:
    assert as_asked((short(needed),), policy, grid) == (short(needed),)  # type: ignore[arg-type]
