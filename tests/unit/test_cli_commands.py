"""What commands write and which exit code they give, against a scheduler that serves canned values."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from arena.domain.allocation import GpuGroup
from arena.domain.cluster import Device
from arena.domain.job import JobId
from arena.domain.launch import DeviceId
from arena.domain.reason import ReasonCode, reason
from arena.domain.records import JobState, Wish
from arena.errors import (
    ArenaError,
    IllegalTransitionError,
    InfeasibleError,
    InternalError,
    PermissionDeniedError,
    ResourceExhaustedError,
    UserError,
)
from arena.rpc.views import DecidedJob, DecisionView
from tests.builders import command_spec, job_record, train_spec
from tests.fakes import cluster_of_views as canned
from tests.fakes.command_line import Arena
from tests.fakes.scheduler_server import FakeScheduler

pytestmark = pytest.mark.usefixtures("asks_fake")


def test_jobs_are_found_by_id_beginning_and_name(arena: Arena, fake: FakeScheduler) -> None:
    for text in ("7k2-3", "big"):
        assert arena("why", text, "--json").document["job_id"] == "7k2-3"
    fake.add_job(job_record("zz-10", train_spec("twin")))
    fake.add_job(job_record("zz-11", train_spec("twin"), state=JobState.FAILED))
    assert arena("why", "zz-10", "--json").document["job_id"] == "zz-10"
    assert arena("why", "twin", "--json").document["job_id"] == "zz-10"
    ambiguous = arena("why", "zz-1")
    assert ambiguous.code == 4
    assert "stands for 2 jobs: zz-11, zz-10" in ambiguous.err
    for short in ("zz", "zz-", "z", ""):
        done = arena("cancel", short)
        assert done.code == 5
        assert f"there is no job {short!r}" in done.err
    assert "from the first digit behind its dash" in arena("why", "zz-").err
    assert not fake.asked("CancelJobs")


def test_a_name_is_no_beginning_of_anothers_id(arena: Arena, fake: FakeScheduler) -> None:
    fake.add_job(job_record("pdd8-1", train_spec("precious")))
    fake.add_job(job_record("pdd8-10", train_spec("pdd8-1x")))
    fake.add_job(job_record("pdd8-2", train_spec("p")))
    assert arena("cancel", "p").out == "pdd8-2 (p) is being cancelled\n"
    assert arena("hold", "pdd8-1x").out.startswith("pdd8-10 (pdd8-1x) is queued")
    assert arena("release", "pdd8-1").out.startswith("pdd8-1 (precious) was not held")


def twins(fake: FakeScheduler, *states: JobState) -> None:
    for number, state in enumerate(states):
        fake.add_job(job_record(f"twin-{number}", train_spec("often"), state=state, submitted_at_s=float(number)))


QUESTIONS = (["job"], ["why"], ["wait", "--timeout", "0"], ["logs"], ["events"])


@pytest.mark.parametrize("words", QUESTIONS, ids=lambda words: words[0])
def test_who_asks_for_a_name_that_was_used_again_is_told_of_the_newest(
    arena: Arena, fake: FakeScheduler, words: list[str]
) -> None:
    twins(fake, JobState.SUCCEEDED, JobState.CANCELLED, JobState.SUCCEEDED)
    done = arena(words[0], "often", *words[1:])
    assert done.code == 0, done.err
    assert done.err.startswith("often stands for 3 jobs: this is the newest, twin-2\n")
    assert "stands for" not in arena(words[0], "often", *words[1:], "--json").err
    assert "stands for" not in arena(words[0], "twin-1", *words[1:]).err


def test_who_asks_for_a_name_of_which_one_job_is_left_is_told_of_that_one(arena: Arena, fake: FakeScheduler) -> None:
    twins(fake, JobState.QUEUED, JobState.FAILED)
    done = arena("why", "often")
    assert done.out.startswith("twin-0 is queued")
    assert done.err == "often stands for 2 jobs: this is the only one that is not over, twin-0\n"
    twins(fake, JobState.QUEUED, JobState.FAILED, JobState.HELD)
    assert "stands for 2 jobs: twin-2, twin-0" in arena("why", "often").err


@pytest.mark.parametrize("verb", ["cancel", "hold", "release"])
def test_only_a_job_that_is_not_over_is_meant_where_something_is_done_to_it(
    arena: Arena, fake: FakeScheduler, verb: str
) -> None:
    twins(fake, JobState.SUCCEEDED, JobState.FAILED)
    assert "stands for 2 jobs" in arena(verb, "often").err
    twins(fake, JobState.QUEUED, JobState.FAILED)
    done = arena(verb, "often")
    assert (done.code, done.out.startswith("twin-0 (often) ")) == (0, True), done.err


def test_of_a_cancelled_job_it_is_said_who_cancelled_it(arena: Arena, fake: FakeScheduler) -> None:
    def why(job_id: str) -> str:
        return next(line for line in arena("job", job_id).out.splitlines() if line.startswith("why"))

    asked = reason(ReasonCode.REQUESTED, by="bob")
    fake.add_job(job_record("c-1", state=JobState.CANCELLED, reasons=(asked,)))
    fake.add_job(job_record("c-2", state=JobState.CANCELLED, reasons=()))
    fake.add_job(job_record("c-3", state=JobState.CANCELLED, reasons=()))
    fake.attempts.append(canned.attempt("c-2", 1, (("n1", (0,)),), None, stop_cause=asked))
    assert [why(f"c-{number}").split(maxsplit=1)[1] for number in (1, 2, 3)] == [
        "cancelled by bob",
        "cancelled by bob",
        "cancelled",
    ]


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
        (
            ["submit", "--gpus", "1", "--deadline", "1e12", "--", "a"],
            2,
            "1e12 is too far off: at most 36500d, a century",
        ),
        (["submit", "--gpus", "1", "--deadline", "99999999999", "--", "a"], 2, "is too far off: at most 36500d"),
        (["submit", "--gpus", "1", "--deadline", "36500d1s", "--", "a"], 2, "write it like 90s, 10m, 1h30m or 2d"),
        (["submit", "--gpus", "1", "--deadline", "1e3", "--", "a"], 2, "1e3 is no length of time"),
        (["drain", "n1", "--why", "x", "--within", "nan"], 2, "nan is no length of time"),
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


@pytest.mark.parametrize(
    ("argv", "why", "of"),
    [
        (("jobs", "--stat", "x"), "No such option '--stat'", "arena jobs"),
        (("jobs", "--state", "x"), "Invalid value for '--state'", "arena jobs"),
        (("job",), "Missing argument 'JOB'", "arena job"),
        (("ckpt", "lst"), "No such command 'lst'", "arena ckpt"),
        (("jbos",), "No such command 'jbos'", "arena"),
    ],
)
def test_a_usage_error_has_as_json_the_fields_of_any_error(
    arena: Arena, argv: tuple[str, ...], why: str, of: str
) -> None:
    done = arena(*argv, "--json")
    assert (done.code, done.out) == (2, "")
    said = json.loads(done.err)["error"]
    assert set(said) == {"code", "message", "what", "why", "fix", "details", "exit_code"}
    assert (said["code"], said["details"], said["exit_code"]) == ("usage", {}, 2)
    assert said["why"].startswith(why), said
    assert (said["message"], said["fix"]) == (said["why"], f"see `{of} --help`")
    assert arena(*of.split()[1:], "--help").code == 0


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
        "7k2-1 (pretrain-a-model-with-a-name-of-forty-chars) is being cancelled",
        "7k2-3 (big) is being cancelled",
        "done-1 was over already",
    ]
    assert len(fake.asked("CancelJobs")) == 1
    assert "7k2-3 (big) is being cancelled\n" in arena("cancel", "--all").out
    assert "7k2-3 (big) is being cancelled\n" in arena("cancel", *["7k2-3"] * 21).out
    assert arena("cancel", "--all", "--json").document["ended"] == ["done-1"]
    assert fake.asked("CancelJobs")[-1].all_mine


def test_a_job_is_held_and_released(arena: Arena, fake: FakeScheduler) -> None:
    assert arena("hold", "big").out == "7k2-3 (big) is queued, wished: hold\n"
    assert fake.jobs["7k2-3"].wish is Wish.HOLD
    assert arena("release", "big", "--json").document["job"]["wish"] == "run"


def test_several_jobs_are_held_and_released_alike(arena: Arena, fake: FakeScheduler) -> None:
    fake.add_job(job_record("w-1", train_spec("first")))
    fake.add_job(job_record("w-2", train_spec("second")))
    held = arena("hold", "first", "w-2")
    assert held.out == "w-1 (first) is queued, wished: hold\nw-2 (second) is queued, wished: hold\n"
    document = arena("release", "w-1", "second", "--json").document
    assert [(job["job_id"], job["wish"]) for job in document["jobs"]] == [("w-1", "run"), ("w-2", "run")]
    assert "job" not in document
    assert arena("hold", "w-1", "--json").document["job"]["job_id"] == "w-1"


def test_where_one_of_several_is_not_known_nothing_is_done_to_any(arena: Arena, fake: FakeScheduler) -> None:
    for verb in ("hold", "release", "cancel"):
        done = arena(verb, "big", "nope")
        assert (done.code, done.out) == (5, "")
    assert not [name for name, _, _ in fake.requests if name in {"HoldJob", "ReleaseJob", "CancelJobs"}]


def test_what_cannot_be_done_to_one_of_several_is_told_and_done_to_the_others(
    arena: Arena, fake: FakeScheduler
) -> None:
    for number in range(3):
        fake.add_job(job_record(f"w-{number}"))
    fake.failures["HoldJob"] = [IllegalTransitionError("job w-0 cannot be held"), UserError("not w-1 either")]
    done = arena("hold", "w-0", "w-1", "w-2")
    assert (done.code, done.out) == (4, "w-2 is queued, wished: hold\n")
    assert sorted(done.err.splitlines()) == ["error: job w-0 cannot be held", "error: not w-1 either"]


def test_a_job_that_was_not_held_is_said_not_to_have_been(arena: Arena, fake: FakeScheduler) -> None:
    fake.add_job(job_record("w-1", train_spec("free")))
    fake.add_job(job_record("w-2", train_spec("parked"), state=JobState.HELD, wish=Wish.HOLD))
    done = arena("release", "free", "parked")
    assert done.err == ""
    assert done.out.splitlines() == [
        "w-1 (free) was not held: it is queued",
        "w-2 (parked) is held, wished: run",
    ]
    again = arena("release", "w-1", "--budget", "2.5")
    assert again.out == "w-1 (free) was not held: it is queued, its budget is 2.5 USD now\n"
    assert arena("release", "w-1", "--json").document["not_held"] == ["w-1"]


def test_a_node_is_drained_with_its_reason(arena: Arena, fake: FakeScheduler) -> None:
    assert arena("drain", "n1", "--why", "fan noise", "--json").document["node"]["drain"]["why"] == "fan noise"
    assert arena("undrain", "n1").out == "n1 is ready\n"


@pytest.mark.parametrize(("within", "seconds"), [("90", 90.0), ("0s", 0.0), ("1h30m", 5400.0), ("1.5m", 90.0)])
def test_a_node_is_to_be_empty_within_a_time(arena: Arena, within: str, seconds: float) -> None:
    done = arena("drain", "n1", "--why", "x", "--within", within, "--json")
    assert done.document["node"]["drain"]["until_s"] == seconds
    assert done.err == ""


@pytest.fixture
def busy(fake: FakeScheduler) -> FakeScheduler:
    """On n1 a training job, a program, one that may be repeated, and one that is over soon; elsewhere others."""
    terms = {"safe": {"preemptible": True}, "retried": {"preemptible": False, "retry": {"restarts_max": 2}}}
    fake.attempts, fake.jobs = [], {}
    for index, name in enumerate(("train", "tool", "safe", "retried", "gone", "elsewhere")):
        own = terms.get(name, {"preemptible": False})
        spec = train_spec(name) if name == "train" else command_spec(name, grace_s=30.0, **own)
        where = (("n2" if name == "elsewhere" else "n1", (index,)),)
        attempt = canned.attempt(f"j-{index}", 1, where, None)
        state = JobState.FINISHING if name == "gone" else JobState.RUNNING
        fake.add_job(job_record(f"j-{index}", spec, state=state, epoch=1, attempt_id=attempt.attempt_id))
        fake.attempts.append(attempt)
    devices = tuple(Device(device_id=DeviceId(f"n1/vgpu-{index}"), index=index) for index in range(6))
    fake.nodes[0] = replace(fake.nodes[0], info=replace(fake.nodes[0].info, devices=devices))
    return fake


def test_a_drain_says_which_jobs_it_moves_and_which_programs_it_ends(arena: Arena, busy: FakeScheduler) -> None:
    ended = "is a program: ended at 1970-01-01 00:09:30 unless it is over by then, and"
    assert arena("drain", "n1", "--why", "x", "--within", "10m").out.splitlines() == [
        "n1 is ready",
        "  j-0 (train) is saved and goes on elsewhere",
        f"  j-1 (tool) {ended} held",
        f"  j-2 (safe) {ended} started anew elsewhere",
        f"  j-3 (retried) {ended} started anew elsewhere",
        "`arena undrain n1` before then leaves them where they are",
    ]
    document = arena("drain", "n1", "--why", "x", "--within", "10m", "--json").document
    assert [document[name] for name in ("moved", "ended", "kept")] == [["j-0"], ["j-1", "j-2", "j-3"], []]


def test_a_drain_without_a_time_says_who_runs_on(arena: Arena, busy: FakeScheduler) -> None:
    for busy.knows_within, within in ((True, ()), (False, ("--within", "10m"))):
        done = arena("drain", "n1", "--why", "x", *within)
        assert done.out.splitlines()[:2] == ["n1 is ready", "  j-0 (train) runs on to its end"]
        assert len(done.out.splitlines()) == 5
        document = arena("drain", "n1", "--why", "x", *within, "--json").document
        assert [document[name] for name in ("moved", "ended", "kept")] == [[], [], ["j-0", "j-1", "j-2", "j-3"]]


def test_a_drain_of_an_idle_node_says_no_more(arena: Arena, busy: FakeScheduler) -> None:
    busy.attempts.clear()
    assert arena("drain", "n1", "--why", "x", "--within", "10m").out == "n1 is ready\n"


def test_a_scheduler_that_knows_no_time_of_a_drain_is_not_taken_to_move_jobs(arena: Arena, fake: FakeScheduler) -> None:
    fake.knows_within = False
    done = arena("drain", "n1", "--why", "x", "--within", "10m")
    assert done.err == "warning: this scheduler is older and knows no --within: what runs there runs to its end\n"
    assert arena("drain", "n1", "--why", "x").err == ""


def test_versions_of_both_sides_are_told(arena: Arena) -> None:
    assert "scheduler 0.1.0" in arena("version").out
    document = arena("version", "--json", "--scheduler", "127.0.0.1:1").document
    assert (document["protocol_version"], document["scheduler"]) == (1, None)
