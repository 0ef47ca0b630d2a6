"""When an agent has a share leave a node that goes without being asked."""

from __future__ import annotations

import pytest

from arena.domain.job import JobSpec
from arena.domain.launch import Finishing, Progress, StepPoint, Stopped
from arena_agent.leaving import ends_anyway, leaves_by_itself_boot_s
from arena_agent.notice import Notice
from tests.builders import command_spec, train_spec

TOLD_S = 1000.0


def notice(within_s: float) -> Notice:
    return Notice(notice_id="w", told_boot_s=TOLD_S, gone_boot_s=TOLD_S + within_s, why="the market")


def job(**fields: object) -> JobSpec:
    return train_spec("a", kind="rigid", gpus={"count": 1}, **fields)


@pytest.mark.parametrize(
    ("spec", "within_s", "alone_since_s", "after_s"),
    [
        # Without a session: at once, after some patience.
        (job(), 60.0, TOLD_S - 100.0, 5.0),
        (job(), 12.0, TOLD_S - 100.0, 2.0),
        (job(), 0.0, TOLD_S - 100.0, 0.0),
        (job(), 60.0, TOLD_S + 10.0, 15.0),
        # The session broke late: no later than with one.
        (job(), 60.0, TOLD_S + 58.0, 35.0),
        # The node is there for two hours more: ten minutes before, as the scheduler would ask.
        (job(), 7200.0, TOLD_S - 100.0, 6600.0),
        (job(preemptible=False), 120.0, TOLD_S - 100.0, 60.0),
        (job(preemptible=False), 30.0, TOLD_S - 100.0, 5.0),
        (command_spec("a", count=1), 120.0, TOLD_S - 100.0, 90.0),
        # With a session: when the scheduler would have asked at the latest, after some patience.
        (job(), 30.0, None, 20.0),
        (job(), 60.0, None, 35.0),
        (job(grace_s=10.0), 60.0, None, 45.0),
        (command_spec("a", count=1), 120.0, None, 95.0),
    ],
)
def test_when(spec: JobSpec, within_s: float, alone_since_s: float | None, after_s: float) -> None:
    assert leaves_by_itself_boot_s(spec, notice(within_s), alone_since_s) == pytest.approx(TOLD_S + after_s)


@pytest.mark.parametrize("within_s", [1.0, 10.0, 30.0, 120.0, 7200.0])
@pytest.mark.parametrize("preemptible", [True, False])
@pytest.mark.parametrize("alone_since_s", [TOLD_S - 1.0, TOLD_S + 1e6, None])
def test_there_is_always_time_left_to_save(within_s: float, preemptible: bool, alone_since_s: float | None) -> None:
    at_s = leaves_by_itself_boot_s(job(preemptible=preemptible), notice(within_s), alone_since_s)
    assert TOLD_S + within_s - at_s >= min(within_s / 3, 25.0) - 1e-6


def test_what_exports_its_model_or_has_stopped_ends_anyway() -> None:
    point = StepPoint(step=1, loss=1.0, step_time_s=1.0, tokens_per_s=1.0)
    assert not ends_anyway([Progress(points=(point,))])
    assert ends_anyway([Progress(points=(point,)), Finishing(step=1, condition="steps")])
    assert ends_anyway([Stopped(step=1, durable_step=1)])
