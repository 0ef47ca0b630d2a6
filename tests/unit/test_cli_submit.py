"""What `arena submit` makes of files, commands and options, against a scheduler that serves canned values."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from arena.domain.reason import ReasonCode, reason
from arena.errors import RefusedError
from arena.rpc import codec
from arena.rpc.v1 import job_service_pb2 as job_pb
from tests.fakes.command_line import Arena
from tests.fakes.scheduler_server import FakeScheduler

SPEC = "name: mine\ntrain:\n  model: {family: gpt, layers: 2, hidden: 8, heads: 2}\n  global_batch: 4\n"


pytestmark = pytest.mark.usefixtures("asks_fake")


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


@pytest.mark.parametrize("limits", ["{min: 1, max: 4}", "{count: 1}", "{min: 2}"])
def test_what_is_advised_for_a_job_file_with_gpus_works(
    arena: Arena, fake: FakeScheduler, tmp_path: Path, limits: str
) -> None:
    (tmp_path / "job.yaml").write_text(f"{SPEC}gpus: {limits}\n")
    refused = arena("submit", "job.yaml", "--gpus", "2")
    assert refused.code == 4
    advised = re.search(r"Submit it with (--set .*?), or", refused.err)
    assert advised is not None, refused.err
    done = arena("submit", "job.yaml", *shlex.split(advised[1]))
    assert done.code == 0, done.err
    gpus = fake.jobs["j-5"].spec.gpus
    assert (gpus.count, gpus.min, gpus.max) == (2, None, None)


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
    ("name", "text", "run"),
    [
        ("train.py", "import torch\nmodel = torch.nn.Linear(1, 1)\n", "python train.py"),
        ("go", "#!/bin/sh\necho: x: y\n", "go"),
    ],
)
def test_a_program_that_is_given_as_a_job_is_told_how_it_runs(
    arena: Arena, tmp_path: Path, name: str, text: str, run: str
) -> None:
    (tmp_path / name).write_text(text)
    said = arena("submit", name).err
    assert said.startswith(f"error: {name} is no job file: it looks like a program. Run it with")
    assert f"`arena submit --gpus N -- {run}`" in said


def test_every_mistake_of_a_specification_has_its_line(arena: Arena, tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("nam: x\nkind: soft\n")
    lines = arena("submit", "bad.yaml").err.splitlines()
    assert [line.split(": ")[:3] for line in lines] == [
        ["error", "bad.yaml:1:1", "nam"],
        ["error", "bad.yaml:1:1", "name"],
        ["error", "bad.yaml:2:7", "kind"],
    ]


def refused(fake: FakeScheduler, cause: ReasonCode, **details: str) -> None:
    """Have the next submission refused for its strict deadline, in the words of the job's fields."""
    error = RefusedError(
        "the deadline of job 'x' cannot be promised", fix="x", details={"cause": cause.value, **details}
    )
    fake.failures["SubmitJob"] = [error]


STRICT = "deadline_s: 20\nis_deadline_strict: true\n"
COMMAND = ["--gpus", "1", "--no-env", "--", "true"]


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        (["strict.yaml"], "Set deadline_s to 26 or more, or leave out is_deadline_strict"),
        (
            ["job.yaml", "--deadline", "20", "--deadline-strict"],
            "Give --deadline 26 or more, or leave out --deadline-strict",
        ),
        (["strict.yaml", "--deadline", "20"], "Give --deadline 26 or more, or leave out is_deadline_strict"),
        (
            ["job.yaml", "--set", "deadline_s=20", "--set", "is_deadline_strict=true"],
            "Give --set deadline_s=26 or more, or leave out --set is_deadline_strict",
        ),
        (
            ["--deadline", "20", "--deadline-strict", *COMMAND],
            "Give --deadline 26 or more, or leave out --deadline-strict",
        ),
    ],
)
def test_advice_names_what_the_term_was_given_by(
    arena: Arena, fake: FakeScheduler, tmp_path: Path, words: list[str], advice: str
) -> None:
    (tmp_path / "job.yaml").write_text(SPEC)
    (tmp_path / "strict.yaml").write_text(SPEC + STRICT)
    refused(fake, ReasonCode.DEADLINE_TAKEN, earliest_end_s="25.034")
    done = arena("submit", *words)
    assert (done.code, done.out) == (4, "")
    assert done.err == f"error: the deadline of job 'x' cannot be promised. {advice}\n"


def test_a_command_is_told_the_fields_that_it_lacks_as_it_can_give_them(
    arena: Arena, fake: FakeScheduler, tmp_path: Path
) -> None:
    (tmp_path / "strict.yaml").write_text(SPEC + STRICT)
    said = []
    for words in (["strict.yaml"], ["--deadline", "20", "--deadline-strict", *COMMAND]):
        refused(fake, ReasonCode.DEADLINE_UNKNOWN)
        said.append(arena("submit", *words).err.split(". ")[1])
    assert said == [
        "Declare stop.steps or stop.time_limit_s, or leave out is_deadline_strict\n",
        "Give --set stop.time_limit_s=SECONDS, or leave out --deadline-strict\n",
    ]
    fake.warnings = [reason(ReasonCode.NEVER_BESIDE_SHARES, group="cpu 1", left=0)]
    fake.deadline = job_pb.DeadlineAnswer(
        deadline_at_s=20.0, cause=codec.reason_to_proto(reason(ReasonCode.DEADLINE_UNKNOWN, left_s=20.0))
    )
    warnings = arena("submit", "--deadline", "20", *COMMAND).err.splitlines()
    assert warnings[0].endswith("(with --set preemptible=true it may borrow)")
    assert warnings[1].endswith("its length is not known (give --set stop.time_limit_s=SECONDS)")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--deadline", "0"], "error: --deadline: got 0.0; allowed: greater than 0.0"),
        (["--name", ""], "error: --name: must not be empty"),
        (["--set", "deadline_s=0"], "error: --set deadline_s: deadline_s: got 0; allowed: greater than 0.0"),
        (["--deadline-strict"], "error: --deadline-strict needs a deadline. Give --deadline, or deadline_s in"),
    ],
)
def test_a_mistake_in_an_option_is_told_by_its_name(arena: Arena, tmp_path: Path, words: list[str], said: str) -> None:
    (tmp_path / "job.yaml").write_text(SPEC)
    assert arena("submit", "job.yaml", *words).err.startswith(said)
