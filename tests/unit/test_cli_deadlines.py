"""How it stands with a job's deadline, and reasons that were given long before they are read."""

from __future__ import annotations

from dataclasses import replace

import pytest

from arena.domain.reason import Reason, ReasonCode, reason
from arena.domain.records import JobRecord, JobState
from tests.builders import job_record, train_spec
from tests.fakes.command_line import Arena
from tests.fakes.scheduler_server import FakeScheduler

pytestmark = pytest.mark.usefixtures("asks_fake")

DUE = "1970-01-01 00:17:30"
LATE = reason(ReasonCode.DEADLINE_LATE, left_s=27.0, late_s=60.0)


def due(**fields: object) -> JobRecord:
    """A job that came at 1,000 s and is due at 1,050 s."""
    return job_record("j-9", train_spec("due", deadline_s=50.0), submitted_at_s=1000.0, **fields)


def told(arena: Arena, label: str) -> str:
    lines = (line for line in arena("job", "due").out.splitlines() if line.startswith(label))
    return next(lines).removeprefix(label).strip()


@pytest.mark.parametrize(
    ("fields", "now_s", "expected"),
    [
        ({"is_deadline_promised": True}, 1049.0, "promised"),
        ({"is_deadline_promised": True, "is_promise_broken": True}, 1049.0, "promised, cannot be kept"),
        ({"is_deadline_promised": True, "is_promise_broken": True}, None, "promised, cannot be kept"),
        ({"is_deadline_promised": True, "is_promise_broken": True}, 1051.0, "promised, missed"),
        ({}, 1049.0, "not promised"),
        ({}, 1051.0, "not promised, missed"),
        ({"state": JobState.SUCCEEDED, "ended_at_s": 1040.0}, 2000.0, "not promised, met"),
        ({"state": JobState.SUCCEEDED, "ended_at_s": 1060.0}, 2000.0, "not promised, missed"),
        ({"state": JobState.FAILED, "ended_at_s": 1040.0}, 1041.0, "not promised, missed"),
        ({"state": JobState.CANCELLED, "ended_at_s": 1040.0}, 2000.0, "not promised"),
    ],
)
def test_what_became_of_a_deadline_is_told_as_soon_as_it_is_known(
    arena: Arena, fake: FakeScheduler, fields: dict[str, object], now_s: float | None, expected: str
) -> None:
    fake.now_s = now_s
    fake.add_job(due(**fields))
    assert told(arena, "deadline") == f"{DUE}, {expected}"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (LATE, f"its deadline at {DUE} cannot be met without breaking promises: the earliest end is 60 s later"),
        (
            reason(ReasonCode.DEADLINE_KEPT, left_s=30.0, from_s=10.0, group="cpu 1"),
            (
                f"its deadline at {DUE} can be met: cpu 1 is kept for it from 1970-01-01 00:17:10 on, "
                "unless it has ended by then"
            ),
        ),
        (
            reason(ReasonCode.RESERVED, group="cpu 2", nodes="n1", start_s=30.0),
            "nodes n1 are kept for it: it starts there on cpu 2 at 1970-01-01 00:17:20 at the latest",
        ),
        (
            reason(ReasonCode.STARTED_OFTEN, count=4, rest_s=30.0),
            (
                "it was started again 4 times within an hour: it rests until 1970-01-01 00:17:20, unless its deadline "
                "presses before"
            ),
        ),
        (
            reason(ReasonCode.BACKOFF, retry=1, retries_max=3, wait_s=5.0, error="in 5 s"),
            "retry 1 of 3 at 1970-01-01 00:17:05 after: in 5 s",
        ),
    ],
    ids=lambda one: one.code.value if isinstance(one, Reason) else "",
)
def test_times_that_an_older_reason_counts_from_its_own_instant_are_told_as_instants(
    arena: Arena, fake: FakeScheduler, given: Reason, expected: str
) -> None:
    fake.add_job(due(reasons=(given,), evaluated_at_s=1010.0, not_before_s=1025.0))
    assert told(arena, "why") == expected
    assert f"  {expected}  [{given.code.value}" in arena("why", "due").out


def test_what_the_policy_says_now_of_a_deadline_takes_the_place_of_all_it_said_before(
    arena: Arena, fake: FakeScheduler
) -> None:
    fake.add_job(due(reasons=(LATE, reason(ReasonCode.STARTED, group="cpu 2"))))
    fake.explanation = [reason(ReasonCode.DEADLINE_PASSED)]
    assert told(arena, "why") == "started on cpu 2; its deadline has passed, so it is served as if it had none"
    fake.explanation = [replace(LATE, numbers={"left_s": 20.0, "late_s": 67.0})]
    assert told(arena, "why").startswith("started on cpu 2; its deadline in 20 s cannot be met")


def test_a_deadline_that_came_too_soon_is_told_by_its_instant_later(arena: Arena, fake: FakeScheduler) -> None:
    cause = reason(ReasonCode.DEADLINE_TOO_SOON, needed_s=60.0, group="cpu 2", left_s=50.0)
    fake.add_job(due(deadline_cause=cause))
    assert told(arena, "deadline").endswith(f"counted), and is due at {DUE}")
