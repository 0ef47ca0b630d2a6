"""What commands write and which exit code they give, against a scheduler that serves canned values."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest

from arena.cli.output import Output
from arena.cli.status import gpu_bar, write_status
from arena.client import LogChunk
from arena.domain.allocation import GpuGroup
from arena.domain.job import EvaluationSpec, JobId
from arena.domain.reason import ReasonCode, reason
from arena.domain.records import EntryKind, HistoryEntry, JobState, Wish
from arena.errors import ArenaError, InfeasibleError, InternalError, PermissionDeniedError, ResourceExhaustedError
from arena.rpc.v1 import common_pb2
from arena.rpc.views import DecidedJob, DecisionView, GpuCounts
from tests.builders import job_record, train_spec
from tests.fakes import cluster_of_views as canned
from tests.fakes.command_line import Arena, in_utc_at
from tests.fakes.scheduler_server import FakeScheduler

GOLDEN = Path(__file__).parents[1] / "golden" / "cli"
ANSI = re.compile(r"\x1b\[")
SPEC = "name: mine\ntrain:\n  model: {family: gpt, layers: 2, hidden: 8, heads: 2}\n  global_batch: 4\n"


@pytest.fixture
def fake() -> Iterator[FakeScheduler]:
    with FakeScheduler() as server:
        server.status = canned.status()
        server.nodes = canned.nodes()
        server.attempts = [canned.BEFORE, canned.TRAINING, canned.COMMAND]
        for job in (*canned.waiting_jobs(), canned.command_job(), canned.training_job()):
            server.add_job(job)
        yield server


@pytest.fixture
def arena(arena: Arena, fake: FakeScheduler, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Arena]:
    """Runs command lines in an empty directory, in UTC, with the fake scheduler in the environment."""
    with in_utc_at(fake.address, tmp_path, monkeypatch):
        yield arena


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


class Terminal(StringIO):
    """A stream that a person reads."""

    def isatty(self) -> bool:
        return True


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
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "xterm-256color")
    stream = Terminal()
    rows = [["7k2-1.3", "succeeded", "758/2000 1.9684", "2026-11-30 11:29:06", "it had to leave its node, " * 4]]
    heads = ["ATTEMPT", "STATE", "STEP", "STARTED", "WHY"]
    Output(json_mode=False, stream=stream).table(heads, rows)
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in stream.getvalue().splitlines()]
    assert lines[0].split() == heads
    assert all(cell in lines[1] for cell in rows[0][:4])
    assert " ".join(" ".join([lines[1].split("11:29:06")[1], *lines[2:]]).split()) == rows[0][4].strip()


def test_a_narrow_terminal_folds_and_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    text = re.sub(r"\x1b\[[0-9;]*m", "", shown_on_terminal(monkeypatch, COLUMNS="100"))
    assert "…" not in text
    name = "pretrain-a-model-with-a-name-of-forty-chars"
    first = next(line for line in text.splitlines() if line.startswith("7k2-1"))
    assert name not in first
    start = text.index("RUNNING")
    letters = [char for line in text[start:].splitlines() for char in line[9:] if char in name]
    assert len(letters) >= len(name)


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


def test_jobs_are_found_by_id_beginning_and_name(arena: Arena, fake: FakeScheduler) -> None:
    for text in ("7k2-3", "big"):
        assert arena("why", text, "--json").document["job_id"] == "7k2-3"
    fake.add_job(job_record("zz-10", train_spec("twin")))
    fake.add_job(job_record("zz-11", train_spec("twin"), state=JobState.FAILED))
    assert arena("why", "zz-10", "--json").document["job_id"] == "zz-10"
    assert arena("why", "twin", "--json").document["job_id"] == "zz-10"
    ambiguous = arena("why", "zz")
    assert ambiguous.code == 4
    assert "stands for 2 jobs: zz-11, zz-10" in ambiguous.err


def test_what_the_policy_says_now_takes_the_place_of_what_it_said_before(arena: Arena, fake: FakeScheduler) -> None:
    old = reason(ReasonCode.OUTBID, group="cpu 2", value=1.0, price=2.0)
    fake.add_job(job_record("w-1", reasons=(old, reason(ReasonCode.HELD, by="ann"))))
    fresh = reason(ReasonCode.OUTBID, group="cpu 1", value=0.5, price=0.75)
    fake.explanation = [fresh, reason(ReasonCode.DISPLACES, group="cpu 1", jobs="w-2 (all of it)", loss=0.25)]
    lines = arena("why", "w-1").out.splitlines()[1:]
    assert [line.split("[")[1].strip("]") for line in lines] == ["held", "outbid", "displaces"]
    assert "save all jobs 0.5 s of waiting each second, but others save 0.75 s" in lines[1]
    assert "displace w-2 (all of it), and all jobs together would lose 0.25 s more" in lines[2]
    document = arena("why", "w-1", "--json").document
    assert [item["code"] for item in document["reasons"]] == ["outbid", "held"]
    assert [item["code"] for item in document["explanation"]] == ["outbid", "displaces"]
    assert "0.25 s more" in arena("job", "w-1").out


def test_decisions_are_told_oldest_first_with_what_they_went_by(arena: Arena, fake: FakeScheduler) -> None:
    assert arena("decisions").out == "no decision yet\n"
    moved = DecidedJob(
        job_id=JobId("w-1"),
        group=GpuGroup.of("cpu", [2]),
        plan=None,
        reasons=(reason(ReasonCode.STARTED, group="cpu 2"),),
    )
    stopped = DecidedJob(job_id=JobId("w-2"), group=None, plan=None, reasons=(reason(ReasonCode.PREEMPTED, job="w-1"),))
    numbers = {"price cpu/default": 0.5, "value": 1.5, "gap": 0.0}
    fake.decisions = [
        DecisionView(at_s=20.0, numbers=numbers, jobs=(moved, stopped), unchanged_count=3),
        DecisionView(at_s=10.0, numbers={"value": 1.0}),
    ]
    first, second, *jobs = arena("decisions").out.splitlines()
    assert first.endswith("  value 1")
    assert second.endswith("  value 1.5, gap 0%; prices: cpu/default = 0.5")
    assert jobs[:3] == [
        "    w-1  cpu 2, own layout: started on cpu 2",
        "    w-2  nothing: preempted by job w-1",
        "    3 left as they were",
    ]
    assert jobs[4].startswith("value: seconds of waiting")
    document = arena("decisions", "--last", "1", "--json").document
    assert [item["at_s"] for item in document["decisions"]] == [20.0]
    assert fake.asked("ListDecisions")[-1].count_max == 1


def test_lists_can_be_narrowed(arena: Arena) -> None:
    listed = arena("jobs", "--state", "held", "--state", "queued", "--json").document["jobs"]
    assert [job["job_id"] for job in listed] == ["7k2-4", "7k2-3"]
    assert len(arena("jobs", "--limit", "1", "--json").document["jobs"]) == 1
    assert arena("jobs", "--user", "nobody").out == "no jobs\n"


def test_a_file_is_submitted_with_replacements(arena: Arena, fake: FakeScheduler, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(SPEC + "output_dir: out\n")
    done = arena("submit", "job.yaml", "--set", "stop.steps=7", "--name", "it's: mine")
    assert (done.code, done.out) == (0, "j-5\n")
    spec = fake.jobs["j-5"].spec
    assert (spec.name, spec.stop.steps, spec.output_dir) == ("it's: mine", 7, str(tmp_path / "out"))


def test_a_command_is_submitted_as_it_is_with_directory_and_environment(
    arena: Arena, fake: FakeScheduler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_VARIABLE", "a b")
    monkeypatch.setenv("ARENA_TOKEN", "secret")
    odd = "a b\n$(x) 日本語 😀"
    done = arena(
        "submit", "--gpus", "2", "--gpu-type", "cpu", "--env", "X=1=2", "--json", "--", "run.sh", odd, "--wait"
    )
    spec = fake.jobs[done.document["job_id"]].spec
    assert spec.command is not None
    assert (spec.name, spec.command.argv, spec.command.cwd) == ("run.sh", ("run.sh", odd, "--wait"), str(tmp_path))
    assert (spec.gpus.count, spec.gpus.types) == (2, ("cpu",))
    assert (spec.command.env["MY_VARIABLE"], spec.command.env["X"]) == ("a b", "1=2")
    assert not [name for name in spec.command.env if name.startswith("ARENA_")]


def test_a_command_may_be_submitted_without_the_environment(arena: Arena, fake: FakeScheduler) -> None:
    arena("submit", "--gpus", "1", "--no-env", "--env", "HOME", "--", "true")
    command = fake.jobs["j-5"].spec.command
    assert command is not None
    assert set(command.env) == {"HOME"}


def test_a_command_runs_to_its_end_unless_its_user_lets_it_be_stopped(arena: Arena, fake: FakeScheduler) -> None:
    words = ("--json", "submit", "--gpus", "1", "--no-env")
    left_alone = arena(*words, "--", "true").document["job_id"]
    stoppable = arena(*words, "--set", "preemptible=true", "--", "true").document["job_id"]
    assert [fake.jobs[job_id].spec.preemptible for job_id in (left_alone, stoppable)] == [False, True]


def test_the_same_request_twice_gives_the_same_job(arena: Arena, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(SPEC)
    first = arena("submit", "job.yaml", "--request-id", "r1", "--json").document
    second = arena("submit", "job.yaml", "--request-id", "r1", "--json").document
    assert (first["job_id"], first["is_new"]) == (second["job_id"], True)
    assert not second["is_new"]


@pytest.mark.parametrize(
    ("argv", "code", "said"),
    [
        (["submit", "gone.yaml"], 4, "error: cannot read gone.yaml: No such file or directory"),
        (["submit", "a", "b"], 4, "a job is one file, got 2 words"),
        (["submit", "bad.yaml"], 4, "error: bad.yaml:1:1: nam: unknown field, did you mean 'name'?"),
        (["submit", "bad.yaml", "--set", "x"], 4, "--set x has no value"),
        (["submit", "bad.yaml", "--no-env"], 4, "belong to a command"),
        (["submit", "--gpus", "1", "--env", "NOT_SET_HERE", "--", "a"], 4, "NOT_SET_HERE is not set here"),
        (["job", "nope"], 5, "error: there is no job 'nope'"),
        (["cancel"], 4, "name jobs, or give --all"),
        (["cancel", "x", "--all"], 4, "got both"),
        (["drain", "n9", "--why", "x"], 5, "there is no node 'n9'"),
        (["drain", "n1"], 2, "Missing option '--why'"),
        (["drain", "n1", "--why", "x", "--within", "soon"], 2, "soon is no length of time; write it like 90s"),
        (["drain", "n1", "--why", "x", "--within", "-5"], 2, "-5 is no length of time"),
        (["drain", "n1", "--why", "x", "--within", "inf"], 2, "inf is no length of time"),
        (["stattus"], 2, "No such command 'stattus'"),
        (["status", "--scheduler", "here"], 4, "scheduler address 'here' is not host:port"),
        (["status", "--scheduler", "127.0.0.1:1"], 3, "no scheduler answers at 127.0.0.1:1"),
    ],
)
def test_an_error_is_said_without_a_traceback(
    arena: Arena, tmp_path: Path, argv: list[str], code: int, said: str
) -> None:
    (tmp_path / "bad.yaml").write_text("nam: x\n")
    done = arena(*argv)
    assert done.code == code
    assert said in done.err
    assert "Traceback" not in done.err
    assert done.out == ""


def test_every_mistake_of_a_specification_has_its_line(arena: Arena, tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("nam: x\nkind: soft\n")
    lines = arena("submit", "bad.yaml").err.splitlines()
    assert [line.split(": ")[:3] for line in lines] == [
        ["error", "bad.yaml:1:1", "nam"],
        ["error", "bad.yaml:1:1", "name"],
        ["error", "bad.yaml:2:7", "kind"],
    ]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InfeasibleError("too large", why="8 > 4", fix="ask for less", details={"needed": "8"}), 4),
        (PermissionDeniedError("not yours"), 6),
        (ResourceExhaustedError("the disk is full"), 8),
        (InternalError("oops"), 70),
    ],
)
def test_errors_of_the_scheduler_keep_their_class_words_and_code(
    arena: Arena, fake: FakeScheduler, error: ArenaError, code: int
) -> None:
    fake.failures["GetStatus"] = [error, error]
    assert (arena("status").code, code) == (code, error.exit_code)
    done = arena("status", "--json")
    assert done.out == ""
    said = json.loads(done.err)["error"]
    assert (said["code"], said["what"], said["details"], said["exit_code"]) == (
        error.code,
        error.what,
        error.details,
        code,
    )


def test_a_usage_error_is_json_too(arena: Arena) -> None:
    done = arena("jobs", "--json", "--stat", "x")
    assert done.code == 2
    assert json.loads(done.err)["error"]["code"] == "usage"


def test_a_fault_of_ours_is_one_line_and_a_traceback_only_on_request(
    arena: Arena, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object) -> None:
        raise ValueError("a bug")

    monkeypatch.setattr("arena.cli.status.write_status", fail)
    done = arena("status")
    assert done.code == 70
    assert len(done.err.splitlines()) == 1
    assert done.err == "error: ValueError: a bug. Run it again with -v for the traceback\n"
    assert "Traceback" in arena("-v", "status").err


def test_jobs_are_cancelled_in_one_call(arena: Arena, fake: FakeScheduler) -> None:
    fake.add_job(job_record("done-1", state=JobState.SUCCEEDED))
    done = arena("cancel", "7k2-1", "big", "done-1")
    assert done.out.splitlines() == [
        "7k2-1 is being cancelled",
        "7k2-3 is being cancelled",
        "done-1 was over already",
    ]
    assert len(fake.asked("CancelJobs")) == 1
    assert arena("cancel", "--all", "--json").document["ended"] == ["done-1"]
    assert fake.asked("CancelJobs")[-1].all_mine


def test_a_job_is_held_and_released(arena: Arena, fake: FakeScheduler) -> None:
    assert arena("hold", "big").out == "7k2-3 is queued, wished: hold\n"
    assert fake.jobs["7k2-3"].wish is Wish.HOLD
    assert arena("release", "big", "--json").document["job"]["wish"] == "run"


def test_a_node_is_drained_with_its_reason(arena: Arena, fake: FakeScheduler) -> None:
    assert arena("drain", "n1", "--why", "fan noise", "--json").document["node"]["drain"]["why"] == "fan noise"
    assert arena("undrain", "n1").out == "n1 is ready\n"


@pytest.mark.parametrize(("within", "seconds"), [("90", 90.0), ("0s", 0.0), ("1h30m", 5400.0), ("1.5m", 90.0)])
def test_a_node_is_to_be_empty_within_a_time(arena: Arena, within: str, seconds: float) -> None:
    done = arena("drain", "n1", "--why", "x", "--within", within, "--json")
    assert done.document["node"]["drain"]["until_s"] == seconds
    assert done.err == ""


def test_a_scheduler_that_knows_no_time_of_a_drain_is_not_taken_to_move_jobs(arena: Arena, fake: FakeScheduler) -> None:
    fake.knows_within = False
    done = arena("drain", "n1", "--why", "x", "--within", "10m")
    assert done.err == "warning: this scheduler is older and knows no --within: what runs there runs to its end\n"
    assert arena("drain", "n1", "--why", "x").err == ""


def test_events_are_lines_of_json(arena: Arena, fake: FakeScheduler) -> None:
    fake.append(
        HistoryEntry(
            index=1,
            at_s=canned.NOW_S,
            kind=EntryKind.PLAN_CHANGED,
            message="grew",
            job_id="7k2-1",
            attempt_id="7k2-1.2",
            data={"cost_s": 2.5},
        )
    )
    fake.append(HistoryEntry(index=2, at_s=canned.NOW_S, kind=EntryKind.DECISION, message="decided"))
    lines = [json.loads(line) for line in arena("events", "--json").out.splitlines()]
    assert lines[0] == {
        "index": 1,
        "at_s": canned.NOW_S,
        "kind": "plan_changed",
        "message": "grew",
        "job_id": "7k2-1",
        "attempt_id": "7k2-1.2",
        "node_id": None,
        "data": {"cost_s": 2.5},
    }
    assert [line["index"] for line in lines] == [1, 2]
    assert arena("events", "7k2-1").out == "     1  2023-11-14 22:13:20  plan_changed            7k2-1.2       grew\n"
    assert arena("events", "--after", "1", "--kind", "decision", "--json").out.count("\n") == 1


def test_steps_are_shown_only_when_asked_for(arena: Arena, fake: FakeScheduler) -> None:
    for index, kind in enumerate((EntryKind.JOB_PROGRESS, EntryKind.JOB_EVALUATED, EntryKind.JOB_PROGRESS), start=1):
        fake.append(HistoryEntry(index=index, at_s=canned.NOW_S, kind=kind, message="evaluated at step 400, loss 3.21"))

    def shown(*options: str) -> list[str]:
        return [line.split()[0] for line in arena("events", *options).out.splitlines()]

    assert shown() == ["2"]
    assert shown("--all") == ["1", "2", "3"]
    assert shown("--kind", "job_progress") == ["1", "3"]
    assert arena("events").out.endswith("job_evaluated                         evaluated at step 400, loss 3.21\n")
    assert arena("events", "--json").out.count("\n") == 3


def test_a_job_says_how_it_is_evaluated_before_and_after_the_first_time(arena: Arena, fake: FakeScheduler) -> None:
    spec = train_spec("new")
    assert spec.train is not None
    train = spec.train.model_copy(update={"evaluation": EvaluationSpec(interval_steps=50)})
    fake.add_job(job_record("new-1", spec.model_copy(update={"train": train})))
    assert "\nevaluation  none yet, every 50 steps\n" in arena("job", "new-1").out
    assert "evaluation" not in arena("job", "7k2-2").out
    evaluation = arena("job", "7k2-1", "--json").document["job"]["progress"]["evaluation"]
    assert (evaluation["step"], evaluation["loss"], evaluation["accuracy"]) == (1200, 2.41009, 0.4512)


def test_logs_of_several_ranks_are_whole_lines_with_their_rank(arena: Arena, fake: FakeScheduler) -> None:
    def piece(rank: int, data: bytes, dropped_bytes: int = 0) -> LogChunk:
        return LogChunk(attempt_id="7k2-1.2", rank=rank, offset_bytes=0, data=data, dropped_bytes=dropped_bytes)

    fake.logs = [
        piece(0, b"one\ntw"),
        piece(1, "é".encode()[:1]),
        piece(0, b"o\nthree"),
        piece(1, "é".encode()[1:], 2048),
    ]
    done = arena("logs", "7k2-1")
    assert done.out == "[0] one\n[0] two\n[0] three\n[1] é\n"
    assert done.err == "... 2.0 KiB of rank 1 were dropped by the log's cap\n"
    assert arena("logs", "7k2-1", "--rank", "0").out == "one\ntwo\nthree\n"
    assert json.loads(arena("logs", "7k2-1", "--json").out.splitlines()[0]) == {
        "attempt_id": "7k2-1.2",
        "rank": 0,
        "offset_bytes": 0,
        "dropped_bytes": 0,
        "text": "one\ntw",
    }


def test_a_job_that_has_written_nothing_is_said_to(arena: Arena) -> None:
    done = arena("logs", "7k2-1")
    assert (done.code, done.out) == (0, "")
    assert done.err.startswith("its processes have written nothing")
    assert arena("logs", "7k2-1", "--json").err == ""


def test_waiting_ends_with_the_job(arena: Arena, fake: FakeScheduler) -> None:
    fake.add_job(job_record("done-1", state=JobState.SUCCEEDED, result="model in /out"))
    fake.add_job(job_record("done-2", state=JobState.FAILED, error="rank 0 exited with code 1"))
    good = arena("wait", "done-1")
    assert (good.code, good.out) == (0, "done-1 succeeded at step 0/1000, loss -: model in /out\n")
    both = arena("wait", "done-1", "done-2", "--json")
    assert both.code == 1
    assert [job["state"] for job in both.document["jobs"]] == ["succeeded", "failed"]


def test_waiting_for_a_state_ends_when_it_is_reached(arena: Arena, fake: FakeScheduler) -> None:
    assert arena("wait", "7k2-1", "--for", "running").code == 0
    fake.append(HistoryEntry(index=1, at_s=0.0, kind=EntryKind.JOB_SUBMITTED, message="", job_id="7k2-3"))
    fake.add_job(replace(fake.jobs["7k2-3"], state=JobState.SUCCEEDED))
    assert arena("wait", "big", "--for", "running").code == 1


def test_waiting_gives_up_when_time_is_up(arena: Arena) -> None:
    assert arena("wait", "big", "--timeout", "0.2").code == 124


def test_versions_of_both_sides_are_told(arena: Arena) -> None:
    assert "scheduler 0.1.0" in arena("version").out
    document = arena("version", "--json", "--scheduler", "127.0.0.1:1").document
    assert (document["protocol_version"], document["scheduler"]) == (1, None)
