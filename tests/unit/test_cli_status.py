"""What status, lists and one job's report look like: off a terminal, on one, and as JSON."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from arena.cli.output import Output
from arena.cli.status import gpu_bar, write_status
from arena.domain.cluster import NodeState
from arena.domain.job import EvaluationSpec
from arena.domain.reason import Reason, ReasonCode, reason
from arena.domain.records import Drain, JobState
from arena.rpc.v1 import common_pb2
from arena.rpc.views import GpuCounts
from tests.builders import job_record, train_spec
from tests.fakes import cluster_of_views as canned
from tests.fakes.command_line import Arena, Terminal, terminal_of
from tests.fakes.scheduler_server import FakeScheduler

GOLDEN = Path(__file__).parents[1] / "golden" / "cli"
ANSI = re.compile(r"\x1b\[")


pytestmark = pytest.mark.usefixtures("asks_fake")


@pytest.mark.parametrize(
    ("name", "argv"),
    [
        ("status", ["status"]),
        ("jobs", ["jobs"]),
        ("job", ["job", "7k2-1"]),
        ("nodes", ["nodes"]),
        ("devices", ["nodes", "--devices"]),
        ("why", ["why", "big"]),
    ],
)
def test_off_a_terminal_text_is_whole_and_plain(arena: Arena, name: str, argv: list[str]) -> None:
    done = arena(*argv)
    assert done.code == 0
    assert done.out == (GOLDEN / f"{name}.txt").read_text()
    assert not ANSI.search(done.out)


def shown_on_terminal(monkeypatch: pytest.MonkeyPatch, **variables: str) -> str:
    for name in ("NO_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    stream = Terminal()
    write_status(Output(json_mode=False, stream=stream), canned.status())
    return stream.getvalue()


def test_a_terminal_gets_colour_unless_it_wants_none(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ANSI.search(shown_on_terminal(monkeypatch))
    assert "\x1b[31m" not in shown_on_terminal(monkeypatch, NO_COLOR="1")
    assert "\x1b[1;31m" not in shown_on_terminal(monkeypatch, NO_COLOR="1")


@pytest.mark.parametrize("columns", [40, 80, 100])
def test_no_number_state_or_date_is_broken_on_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    stream = terminal_of(columns, monkeypatch)
    rows = [["7k2-1.3", "succeeded", "758/2000 1.9684", "2026-11-30 11:29:06", "it had to leave its node, " * 4]]
    heads = ["ATTEMPT", "STATE", "STEP", "STARTED", "WHY"]
    Output(json_mode=False, stream=stream).table(heads, rows)
    lines = stream.lines
    assert max(map(len, lines)) <= columns
    for cell in rows[0][:4]:
        assert any(cell in line for line in lines), cell
    words = iter(re.findall(r"\S+", " ".join(lines)))
    assert all(word in words for word in rows[0][4].split()), "in this order"


@pytest.mark.parametrize(
    ("columns", "shown", "left_out"),
    [
        (70, "dp2 tp4 pp1 mb4 zero1", ""),
        (100, "a100-80 4+4  1234/5000", "USER, PLAN, ON, LOSS, TOKENS/S, RESTARTS, CHECKPOINT"),
        (145, "dp2 tp4 pp1 mb4 zero1  n1:4 n2:4", "USER, RESTARTS, CHECKPOINT"),
        (190, "42.0s ago", ""),
    ],
)
def test_a_narrow_terminal_cuts_nothing_and_names_what_it_leaves_out(
    monkeypatch: pytest.MonkeyPatch, columns: int, shown: str, left_out: str
) -> None:
    text = re.sub(r"\x1b\[[0-9;]*m", "", shown_on_terminal(monkeypatch, COLUMNS=str(columns)))
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= columns
    for whole in ("pretrain-a-model-with-a-name-of-forty-chars", "1234/5000", "running", shown):
        assert whole in text
    assert re.findall(r"left out: (.*) \(", text) == ([left_out] if left_out else [])


def test_names_cannot_steer_the_terminal(arena: Arena) -> None:
    for argv in (["status"], ["jobs"], ["job", "7k2-2"], ["job", "7k2-1"]):
        out = arena(*argv).out
        assert "\x1b" not in out
        assert "\u202e" not in out


@pytest.mark.parametrize(
    ("counts", "bar"),
    [
        (GpuCounts(gpu_type="a", total=4, used=3, free=1), "###."),
        (GpuCounts(gpu_type="a", total=1000, used=1, free=998, dirty=1), "#x.................."),
        (GpuCounts(gpu_type="a", total=1000, used=999, free=1), "###################."),
        (GpuCounts(gpu_type="a", total=0), ""),
    ],
)
def test_the_bar_rounds_nothing_away(counts: GpuCounts, bar: str) -> None:
    assert gpu_bar(counts) == bar


def test_status_as_json_holds_what_the_text_says(arena: Arena) -> None:
    document = arena("status", "--json").document
    assert document["schema_version"] == 1
    status = document["status"]
    assert status["gpus"][0] == {
        "gpu_type": "a100-80",
        "total": 12,
        "free": 0,
        "used": 9,
        "draining": 2,
        "dirty": 1,
        "down": 0,
    }
    assert status["job_count_by_state"] == {"queued": 7, "held": 1, "running": 2, "succeeded": 14}
    job = status["active_jobs"][0]
    assert (job["plan"]["text"], job["plan"]["dp"], job["plan"]["tp"]) == ("dp2 tp4 pp1 mb4 zero1", 2, 4)
    assert job["group"]["gpu_count"] == 8
    reason = status["waiting_jobs"][0]["reasons"][0]
    assert reason["code"] == "insufficient_gpus"
    assert reason["numbers"] == {"needed": 8.0, "free": 3.0, "total": 16.0}


def test_json_may_be_asked_for_before_and_after_the_command(arena: Arena) -> None:
    assert arena("--json", "jobs").document == arena("jobs", "--json").document


def test_every_field_of_a_job_is_in_its_json(arena: Arena) -> None:
    document = arena("job", "7k2-1", "--json").document
    missing = {field.name for field in common_pb2.Job.DESCRIPTOR.fields} - set(document["job"])
    assert missing == set()
    missing = {field.name for field in common_pb2.Attempt.DESCRIPTOR.fields} - set(document["attempts"][0])
    assert missing == set()


def test_lists_can_be_narrowed(arena: Arena) -> None:
    listed = arena("jobs", "--state", "held", "--state", "queued", "--json").document["jobs"]
    assert [job["job_id"] for job in listed] == ["7k2-4", "7k2-3"]
    assert len(arena("jobs", "--limit", "1", "--json").document["jobs"]) == 1
    assert arena("jobs", "--user", "nobody").out == "no jobs\n"


def test_a_job_says_how_it_is_evaluated_before_and_after_the_first_time(arena: Arena, fake: FakeScheduler) -> None:
    spec = train_spec("new")
    assert spec.train is not None
    train = spec.train.model_copy(update={"evaluation": EvaluationSpec(interval_steps=50)})
    fake.add_job(job_record("new-1", spec.model_copy(update={"train": train})))
    assert "\nevaluation  none yet, every 50 steps\n" in arena("job", "new-1").out
    assert "evaluation" not in arena("job", "7k2-2").out
    evaluation = arena("job", "7k2-1", "--json").document["job"]["progress"]["evaluation"]
    assert (evaluation["step"], evaluation["loss"], evaluation["accuracy"]) == (1200, 2.41009, 0.4512)


@pytest.mark.parametrize(
    ("until_s", "state", "said", "shown"),
    [
        (None, NodeState.DRAINED, "fan (by ann)", "fan (by ann)"),
        (
            canned.NOW_S + 1200.0,
            NodeState.DRAINING,
            "2 attempts left, fan (by ann), empty within 1200 s",
            "2 attempts left, fan (by ann), empty by 2023-11-14 22:33:20",
        ),
        (
            canned.NOW_S + 1200.0,
            NodeState.LOST,
            "silent for 15 s",
            "silent for 15 s; fan (by ann), empty by 2023-11-14 22:33:20",
        ),
    ],
)
def test_a_node_that_goes_says_each_thing_once(
    arena: Arena, fake: FakeScheduler, until_s: float | None, state: NodeState, said: str, shown: str
) -> None:
    drain = Drain(by="ann", at_s=canned.NOW_S, why="fan", until_s=until_s)
    fake.nodes = [replace(canned.nodes()[0], state=state, state_cause=said, drain=drain)]
    assert arena("nodes").out.splitlines()[1].split("  ")[-1].strip() == shown


def test_a_program_says_nothing_of_steps_and_checkpoints_that_it_does_not_tell(
    arena: Arena, fake: FakeScheduler
) -> None:
    shown = arena("job", "7k2-2").out
    for word in ("step", "loss", "checkpoint", "tokens", "?"):
        assert word not in shown, shown
    attempt = next(line for line in shown.splitlines() if line.startswith("7k2-2.1"))
    assert re.search(r" n3:1 +- +2023", attempt), attempt
    fake.add_job(job_record("new-1", train_spec("new")))
    assert "\nprogress    step 0/1000, loss -" in arena("job", "new-1").out


@pytest.mark.parametrize(
    ("said", "text"),
    [
        (
            reason(ReasonCode.INSUFFICIENT_GPUS, needed=1, gpu_type="cpu", free=0, total=4),
            "needs 1 cpu GPU, 0 of 4 free",
        ),
        (
            reason(ReasonCode.INSUFFICIENT_GPUS, needed=2, gpu_type="cpu", free=0, total=4),
            "needs 2 cpu GPUs, 0 of 4 free",
        ),
        (reason(ReasonCode.SHRANK, before=2, after=1, job="j-2"), "shrank from 2 to 1 GPU to make room for j-2"),
        (reason(ReasonCode.EXCEEDS_CLUSTER, largest=0), "exceeds cluster (largest=0.0)"),
    ],
)
def test_what_is_one_is_not_many(said: Reason, text: str) -> None:
    assert str(said) == text


@pytest.mark.parametrize("columns", [None, 40, 80])
def test_a_status_that_counts_failed_jobs_says_how_to_see_them(
    arena: Arena, fake: FakeScheduler, monkeypatch: pytest.MonkeyPatch, columns: int | None
) -> None:
    assert "--state failed" not in arena("status").out
    assert fake.status is not None
    fake.status = replace(fake.status, job_count_by_state={JobState.RUNNING: 2, JobState.FAILED: 1})
    fake.add_job(job_record("7k2-8", train_spec("broken"), state=JobState.FAILED, error="no such file"))
    shown = arena("status").out
    assert "\nJOBS   2 running, 1 failed (see `arena jobs --state failed`)\n" in shown
    if columns is not None:
        terminal = terminal_of(columns, monkeypatch)
        write_status(Output(json_mode=False, stream=terminal), fake.status)
        shown = "\n".join(terminal.lines)
    [command] = re.findall(r"`arena (jobs --state failed)`", shown)
    listed = arena(*command.split())
    assert (listed.code, [line.split()[0] for line in listed.out.splitlines()]) == (0, ["JOB", "7k2-8"])
