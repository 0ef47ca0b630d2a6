"""What commands say of deadlines, doubts and prices, against a scheduler that serves canned values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from arena.cli.words import short_text
from arena.domain.reason import Reason, ReasonCode, reason
from arena.domain.records import JobState, Wish
from arena.rpc import codec
from arena.rpc.v1 import job_service_pb2 as pb
from arena.rpc.views import DecisionView, TenantShare, job_view
from tests.builders import command_spec, job_record, train_spec
from tests.fakes import cluster_of_views as canned
from tests.fakes.command_line import Arena
from tests.fakes.scheduler_server import FakeScheduler

SPEC = "name: mine\ntrain:\n  model: {family: gpt, layers: 2, hidden: 8, heads: 2}\n  global_batch: 4\n"
CAUSE = reason(ReasonCode.DEADLINE_BEHIND_PROMISES, needed_s=40.0, group="cpu 2", jobs="j-1, j-2", left_s=50.0)


@pytest.fixture
def fake() -> Iterator[FakeScheduler]:
    with FakeScheduler() as server:
        yield server


@pytest.fixture(autouse=True)
def _job_file(asks_fake: None, tmp_path: Path) -> None:
    """A job file lies where command lines run."""
    (tmp_path / "job.yaml").write_text(SPEC)


def test_a_deadline_that_is_not_promised_says_what_is_in_the_way_and_when_it_could_be(
    arena: Arena, fake: FakeScheduler
) -> None:
    cause = codec.reason_to_proto(CAUSE)
    fake.deadline = pb.DeadlineAnswer(deadline_at_s=1050.0, earliest_end_at_s=1075.0, cause=cause)
    done = arena("submit", "job.yaml", "--deadline", "50")
    assert done.out == "j-1\n"
    assert done.err == (
        "warning: deadline 1970-01-01 00:17:30 cannot be promised: the 40 s on cpu 2 that it needs before then are "
        "promised to j-1, j-2, whose deadlines came first; the earliest that can be promised is 1970-01-01 00:17:55\n"
    )
    told = arena("--json", "submit", "job.yaml", "--deadline", "50").document["deadline"]
    assert (told["is_promised"], told["earliest_end_at_s"]) == (False, 1075.0)
    assert (told["cause"]["code"], told["cause"]["numbers"]["needed_s"]) == ("deadline_behind_promises", 40.0)


def test_a_job_says_why_its_deadline_was_not_promised(arena: Arena, fake: FakeScheduler) -> None:
    spec = train_spec("late", deadline_s=50.0)
    fake.add_job(job_record("j-9", spec, submitted_at_s=1000.0, deadline_cause=CAUSE, deadline_earliest_at_s=1075.0))
    line = next(line for line in arena("job", "late").out.splitlines() if line.startswith("deadline"))
    assert line == (
        "deadline    1970-01-01 00:17:30, not promised: the 40 s on cpu 2 that it needs before then are promised to "
        "j-1, j-2, whose deadlines came first; the earliest that could be promised was 1970-01-01 00:17:55"
    )
    found = arena("--json", "job", "late").document["job"]
    assert (found["deadline_cause"]["code"], found["deadline_earliest_at_s"]) == ("deadline_behind_promises", 1075.0)
    fake.add_job(replace(fake.jobs["j-9"], deadline_cause=None, deadline_earliest_at_s=None, is_deadline_promised=True))
    assert "deadline    1970-01-01 00:17:30, promised\n" in arena("job", "late").out


def test_an_instant_that_no_calendar_has_is_told_all_the_same(arena: Arena, fake: FakeScheduler) -> None:
    """A file's deadline has no limit."""
    for index, deadline_s in enumerate((1e11, 1e12, 1e300)):
        fake.add_job(job_record(f"j-{index}", train_spec(f"far-{index}", deadline_s=deadline_s)))
        done = arena("job", f"far-{index}")
        assert (done.code, done.err) == (0, "")
    assert "deadline    beyond the year 9999, not promised\n" in done.out


def test_doubts_about_a_job_are_told_beside_its_id(arena: Arena, fake: FakeScheduler) -> None:
    fake.warnings = [reason(ReasonCode.PROJECT_UNKNOWN, project="visoin", near="vision")]
    done = arena("submit", "job.yaml", "--set", "project=visoin")
    assert (done.code, done.out) == (0, "j-1\n")
    assert done.err == "warning: no job of project visoin is here; is vision meant?\n"
    (told,) = arena("--json", "submit", "job.yaml").document["warnings"]
    assert (told["code"], told["names"]) == ("project_unknown", {"project": "visoin", "near": "vision"})


def test_offers_that_differ_in_kind_are_told_apart_side_by_side(arena: Arena, fake: FakeScheduler) -> None:
    sizes = {
        "cpu 2": (2, 1, 2.0, 0.1, 3.52, 3.34),
        "cpu 1+1": (2, 2, 1.6, 0.1, 2.5, 3.3),
        "t4 1": (1, 1, 1.0, 0.5, 1, 0),
    }
    names = ("gpu_count", "node_count", "steps_per_s", "usd_per_hour", "value", "price")
    codes = (ReasonCode.KEPT, ReasonCode.NEXT_BEST, ReasonCode.NEXT_BEST)
    fake.explanation = [
        reason(code, group=group, **dict(zip(names, map(float, numbers), strict=True)))
        for code, (group, numbers) in zip(codes, sizes.items(), strict=True)
    ]
    fake.explanation[2] = replace(fake.explanation[2], names={"group": "t4 1", "zone": "east"})
    fake.add_job(job_record("w-1", reasons=()))
    lines = arena("why", "w-1").out.splitlines()
    assert lines[1:8] == [
        "  has cpu 2: there it saves all jobs 3.52 s of waiting each second, others would save 3.34 s",
        "",
        "GROUP         GPUS  NODES  SPEED  USD/H  SAVES  OTHERS",
        "cpu 2            2      1  1.00x    0.1   3.52    3.34  has it",
        "cpu 1+1          2      2  0.80x    0.1    2.5     3.3",
        "t4 1 in east     1      1  0.50x    0.5      1       0",
        "SPEED is against cpu 2. SAVES: seconds of waiting that the job there saves all jobs each second, a restart",
    ]
    assert "its next best" not in arena("job", "w-1").out


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (1e-9, "0"),
        (0.723456, "0.723"),
        (1.0, "1"),
        (12.34, "12.3"),
        (123456.0, "123,000"),
        (1e12, "1,000,000,000,000"),
    ],
)
def test_numbers_of_decisions_have_three_digits_and_no_exponent(value: float, text: str) -> None:
    assert short_text(value) == text


def test_a_job_that_is_held_waits_since_it_is_held(arena: Arena, fake: FakeScheduler) -> None:
    held = job_record("w-1", submitted_at_s=100.0, changed_at_s=1_000.0, state=JobState.HELD, wish=Wish.HOLD)
    view = job_view(held, None, private=True)
    fake.status = replace(canned.status(), now_s=1_030.0, active_jobs=(), waiting_jobs=(view,))
    line = next(line for line in arena("status").out.splitlines() if line.startswith("w-1"))
    assert line.split()[4] == "30.0s"


def tenant(project: str, used: int, lent: int = 0, running: int = 0, waiting: int = 0, **share: int) -> TenantShare:
    return TenantShare(
        project=project, guaranteed=share, used=used, lent=lent, running_jobs=running, waiting_jobs=waiting
    )


def test_a_few_shares_are_told_in_lines_that_say_only_what_is_so(arena: Arena, fake: FakeScheduler) -> None:
    shares = (tenant("speech", 4, running=2, cpu=2), tenant("vision", 0, lent=2, any=2), tenant("", 1, waiting=3))
    fake.status = replace(canned.status(), tenants=shares)
    lines = arena("status").out.splitlines()
    first = next(index for index, line in enumerate(lines) if line.startswith("SHARES"))
    assert lines[first : first + 4] == [
        "SHARES speech uses 4 of 2 cpu, 2 borrowed, 2 running",
        "       vision uses 0 of 2 of any type, 2 lent",
        "       (others) uses 1, 3 waiting",
        "",
    ]


def test_many_shares_are_a_table(arena: Arena, fake: FakeScheduler) -> None:
    fake.status = replace(canned.status(), tenants=tuple(tenant(f"p{at}", at, cpu=2) for at in range(5)))
    assert "PROJECT  GUARANTEED  USED  BORROWED  LENT  RUNNING  WAITING" in arena("status").out


def test_a_fact_that_the_sentence_does_not_hold_is_told_beside_it(arena: Arena, fake: FakeScheduler) -> None:
    grew = reason(ReasonCode.GREW, before=2, after=4, speedup=1.2613)
    placed = reason(ReasonCode.STARTED, group="cpu 2", node="n1", free=3)
    fake.add_job(job_record("w-1", reasons=(grew, placed)))
    assert arena("why", "w-1").out.splitlines()[1:] == [
        "  grew from 2 to 4 GPUs, 1.26x faster by its grid  [grew]",
        "  started on cpu 2  [started: free=3, node=n1]",
    ]


def test_prices_of_shares_have_a_legend_of_their_own(arena: Arena, fake: FakeScheduler) -> None:
    prices = {"price cpu/default": 0.5, "price cpu/default by 8": 0.0}
    fake.decisions = [DecisionView(at_s=20.0, numbers={"value": 1.0, **prices})]
    plain = arena("decisions").out
    assert "prices: cpu/default = 0.5\n" in plain
    assert "for good" not in plain
    shared = {"price any for good beside speech, vision": 0.109, **prices}
    fake.decisions = [DecisionView(at_s=20.0, numbers={"value": 1.0, **shared})]
    told = arena("decisions").out
    assert "prices: any for good beside speech, vision = 0.109; cpu/default = 0.5\n" in told
    assert '"for good": what it costs' in told


def test_the_end_of_a_program_that_tells_of_no_steps_is_told_without_any(arena: Arena, fake: FakeScheduler) -> None:
    fake.add_job(job_record("c-1", command_spec("mine"), state=JobState.SUCCEEDED, result="finished"))
    assert arena("wait", "c-1").out == "c-1 succeeded: finished\n"


def test_a_scheduler_that_gives_no_cause_is_understood_as_well(arena: Arena, fake: FakeScheduler) -> None:
    fake.deadline = pb.DeadlineAnswer(deadline_at_s=1050.0)
    due = "warning: deadline 1970-01-01 00:17:30 cannot be promised"
    assert arena("submit", "job.yaml", "--deadline", "50").err == f"{due}: nobody can tell by when it could end\n"
    fake.deadline = pb.DeadlineAnswer(deadline_at_s=1050.0, earliest_end_at_s=1075.0)
    told = arena("submit", "job.yaml", "--deadline", "50").err
    assert told == f"{due}: the earliest that can be promised is 1970-01-01 00:17:55\n"


def test_an_unknown_length_is_told_once(arena: Arena, fake: FakeScheduler) -> None:
    cause = codec.reason_to_proto(reason(ReasonCode.DEADLINE_UNKNOWN, left_s=50.0))
    fake.deadline = pb.DeadlineAnswer(deadline_at_s=1050.0, cause=cause)
    assert arena("submit", "job.yaml", "--deadline", "50").err == (
        "warning: deadline 1970-01-01 00:17:30 cannot be promised: its length is not known (declare stop.steps or "
        "stop.time_limit_s)\n"
    )


def test_a_job_file_is_not_run_as_a_program(arena: Arena, fake: FakeScheduler, tmp_path: Path) -> None:
    done = arena("submit", "job.yaml", "--gpus", "2")
    assert done.code == 4
    assert "job.yaml is a job file" in done.err
    assert "--set 'gpus={count: 2}'" in done.err
    (tmp_path / "job.yaml").chmod(0o755)
    assert arena("submit", "--gpus", "2", "--", "./job.yaml").code == 0


def test_a_deadline_may_have_units_and_a_budget_is_named_as_it_was_given(arena: Arena, fake: FakeScheduler) -> None:
    job_id = arena("submit", "job.yaml", "--deadline", "1h30m").out.strip()
    assert fake.jobs[job_id].spec.deadline_s == 5_400.0
    assert "--budget" in arena("submit", "job.yaml", "--budget", "-1").err


SPENT = reason(ReasonCode.BUDGET_SPENT, budget_usd=0.001, spent_usd=0.0005)
TOO_SMALL = reason(ReasonCode.BUDGET_TOO_SMALL, left_usd=0.0005, needed_usd=0.0021, group="cpu 1")


@pytest.mark.parametrize(
    ("said", "state", "budget"),
    [(SPENT, JobState.HELD, "0.002"), (TOO_SMALL, JobState.QUEUED, "0.0032")],
    ids=["spent", "too small"],
)
def test_a_job_that_its_budget_keeps_from_running_says_how_it_goes_on(
    arena: Arena, fake: FakeScheduler, said: Reason, state: JobState, budget: str
) -> None:
    """Twice as much where nobody knows what it needs, else what it needs in all and a fifth to spare."""
    spec = train_spec("poor", budget_usd=0.001)
    job = job_record("w-1", spec, state=state, reasons=(said,), spent_usd=0.0005)
    fake.add_job(job)
    fake.status = replace(canned.status(), waiting_jobs=(job_view(job, None, private=True),))
    advice = f"to go on: `arena release w-1 --budget {budget}`"
    line = next(line for line in arena("status").out.splitlines() if line.startswith("w-1"))
    assert line.endswith(f"{said}; {advice}")
    assert arena("why", "w-1").out.splitlines()[1:3] == [f"  {said}  [{said.code.value}]", f"  {advice}"]
    assert "\ncost        0.0005 USD so far of a budget of 0.001, 0.0005 left\n" in arena("job", "w-1").out
    assert next(line for line in arena("job", "w-1").out.splitlines() if line.startswith("why")).endswith(advice)


@pytest.mark.parametrize(
    ("said", "aim"), [(SPENT, "to go on"), (TOO_SMALL, "to reach its end")], ids=["spent", "too small"]
)
def test_a_job_whose_end_is_not_known_is_not_said_to_reach_it(
    arena: Arena, fake: FakeScheduler, said: Reason, aim: str
) -> None:
    """What it has spent is told while it is still being stopped, of a job without an end as of any other."""
    spec = train_spec("poor", budget_usd=0.001, stop={})
    fake.add_job(job_record("w-1", spec, state=JobState.PREEMPTING, reasons=(said,), spent_usd=0.0005))
    assert f"{aim}: `arena release w-1" in arena("why", "w-1").out


def test_a_job_with_a_budget_that_is_kept_by_something_else_is_told_nothing_of_it(
    arena: Arena, fake: FakeScheduler
) -> None:
    held = reason(ReasonCode.HELD, by="ann")
    fake.add_job(job_record("w-1", train_spec("x", budget_usd=1.0), state=JobState.HELD, reasons=(held,)))
    assert "--budget" not in arena("why", "w-1").out


def test_who_waits_for_a_job_is_told_that_it_is_held_for_its_budget(arena: Arena, fake: FakeScheduler) -> None:
    spec = train_spec("poor", budget_usd=0.001)
    fake.add_job(job_record("w-1", spec, state=JobState.HELD, wish=Wish.HOLD, reasons=(SPENT,)))
    done = arena("wait", "w-1", "--timeout", "0.2")
    assert done.code == 124
    assert done.err == f"w-1 is held: {SPENT}; to go on: `arena release w-1 --budget 0.002`\n"


def test_a_job_is_released_with_another_budget(arena: Arena, fake: FakeScheduler) -> None:
    fake.add_job(job_record("w-1", train_spec("poor", budget_usd=0.001), state=JobState.HELD, wish=Wish.HOLD))
    done = arena("release", "poor", "--budget", "0.002", "--json")
    assert (done.document["job"]["budget_usd"], done.err) == (0.002, "")
    fake.knows_budgets = False
    assert "is older and knows no --budget" in arena("release", "poor", "--budget", "0.003").err
    assert arena("release", "poor").err == ""
    assert arena("release", "poor", "--budget", "0").code == 2


@pytest.mark.parametrize(
    ("needed_usd", "shown"), [(0.00232413, "0.0023"), (1.0, "1"), (12.34, "12"), (12345.6, "12000"), (2e-9, "2e-09")]
)
def test_what_is_estimated_is_not_told_as_if_it_were_measured(needed_usd: float, shown: str) -> None:
    said = str(reason(ReasonCode.BUDGET_TOO_SMALL, left_usd=0.5, needed_usd=needed_usd, group="cpu 1"))
    assert said.endswith(f"its cheapest way to the end, cpu 1, is estimated to cost {shown} USD")
