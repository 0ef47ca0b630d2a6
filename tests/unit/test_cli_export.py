"""``arena export`` against a scheduler that serves canned values: a whole log, or none."""

from __future__ import annotations

import json
import resource
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from rich.progress import Progress

from arena.cli.main import run
from arena.domain.records import JobState
from arena_traces.reading import read_trace
from tests.builders import job_record, train_spec
from tests.fakes import cluster_of_views as canned
from tests.fakes.command_line import Arena, Terminal
from tests.fakes.scheduler_server import FakeScheduler


@pytest.fixture
def fake() -> Iterator[FakeScheduler]:
    with canned.served() as server:
        server.status = replace(canned.status(), restart_s=3.5)
        ended = job_record("old", train_spec("old"), state=JobState.SUCCEEDED, ended_at_s=50.0)
        server.add_job(replace(ended, progress=replace(ended.progress, step=70)))
        yield server


@pytest.fixture
def arena(arena: Arena, fake: FakeScheduler, monkeypatch: pytest.MonkeyPatch) -> Arena:
    monkeypatch.setenv("ARENA_SCHEDULER", fake.address)
    return arena


def test_every_job_of_ours_is_in_the_log_once(arena: Arena, fake: FakeScheduler, tmp_path: Path) -> None:
    file = tmp_path / "log.jsonl"
    told = arena("export", "--out", file, "--json").document
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    names = [line["job_id"] for line in lines if line["kind"] == "job"]
    assert sorted(names) == sorted(fake.jobs)
    assert (told["job_count"], told["live_count"], told["hidden_count"]) == (len(names), len(names) - 1, 6)
    assert fake.status is not None
    assert lines[0]["exported_at_s"] == told["exported_at_s"] == fake.status.now_s
    assert next(job for job in read_trace(file).jobs if job.job_id == "old").step_count == 70
    assert read_trace(file).restart_s == 3.5
    training = next(line for line in lines if line.get("job_id") == canned.training_job().job_id)
    assert [one["epoch"] for one in training["attempts"]] == sorted(
        one.epoch for one in fake.attempts if one.job_id == canned.training_job().job_id
    )


def test_a_person_is_told_what_is_in_the_log(arena: Arena, fake: FakeScheduler, tmp_path: Path) -> None:
    count = len(fake.jobs)
    text = f"{count} jobs, {count - 1} of them not over; 6 of others left out, which an admin may see\n"
    file = tmp_path / "log.jsonl"
    assert arena("export", "-o", file).out == f"{file}: {text}"
    plain = arena("export")
    assert (plain.out, plain.err) == (file.read_text(), text)
    assert arena("export", "--json").out == file.read_text()


def test_a_log_that_breaks_off_is_not_written(arena: Arena, fake: FakeScheduler, tmp_path: Path) -> None:
    file = tmp_path / "log.jsonl"
    assert arena("export", "--out", file).code == 0
    before = file.read_text()
    fake.failures["ExportedJob"] = ["the server is gone"]
    failed = arena("export", "--out", file, "--force")
    assert failed.code != 0
    assert "the server is gone" in failed.err
    assert file.read_text() == before
    assert [path.name for path in tmp_path.iterdir()] == ["log.jsonl"]


def test_a_log_replaces_nothing_unless_that_is_asked_for(arena: Arena, fake: FakeScheduler, tmp_path: Path) -> None:
    file = tmp_path / "log.jsonl"
    file.write_text("years of work")
    fake.requests.clear()
    done = arena("export", "--out", file)
    assert (done.code, done.out) == (4, "")
    assert done.err == f"error: {file} is there already. Name another --out, or add --force to replace it\n"
    assert (file.read_text(), fake.requests) == ("years of work", [])
    assert arena("export", "--out", file, "--force").code == 0
    assert file.read_text() != "years of work"


def test_a_log_whose_directory_is_missing_is_refused_by_that_name(arena: Arena, tmp_path: Path) -> None:
    done = arena("export", "--out", tmp_path / "nowhere" / "log.jsonl")
    assert (done.code, list(tmp_path.iterdir())) == (4, [])
    assert f"there is no directory {tmp_path / 'nowhere'}" in done.err


def test_a_full_disk_leaves_no_half_log(arena: Arena, tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        done = arena("export", "--out", tmp_path / "log.jsonl")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert (done.code, done.out) == (8, "")
    assert list(tmp_path.iterdir()) == []


def test_no_bar_stands_amid_a_log_that_goes_to_the_terminal(
    arena: Arena, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bool] = []

    def shown(*_: object, disable: bool, **__: object) -> Progress:
        seen.append(not disable)
        return Progress(disable=True)

    monkeypatch.setattr("rich.progress.Progress", shown)
    with monkeypatch.context() as patched:
        patched.setattr("sys.stderr", Terminal())
        with monkeypatch.context() as both:
            both.setattr("sys.stdout", Terminal())
            assert run(["export"]) == 0
            assert run(["export", "--out", str(tmp_path / "log.jsonl")]) == 0
        assert run(["export"]) == 0
    assert seen == [False, True, True], "a file, or a pipe, has nothing to do with a bar on the terminal"
