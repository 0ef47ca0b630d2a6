"""Checkpoints are complete or invisible, whatever happens while they are written or lie on disk."""

from __future__ import annotations

import json
import random
import shutil
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from arena.cli.main import run
from arena.domain.job import JobSpec
from arena.domain.launch import (
    CheckpointFailed,
    CheckpointSaved,
    Finished,
    Progress,
    Ready,
    Stopped,
    WorkerError,
)
from arena.domain.parallel import ParallelPlan, parse_plan
from arena.domain.parameters import parameters_of
from arena_agent.checkpoints.manifest import read_manifest
from tests.fakes.rank_launcher import Attempt, RankLauncher, make_launch

pytestmark = pytest.mark.slow

ALONE = parse_plan("dp1 mb4", layer_count=2)
PAIR = parse_plan("dp2 mb2", layer_count=2)
ENDLESS = 100_000


def job(
    steps: int, *, interval: int = 2, keep: int = 2, layers: int = 2, hidden: int = 16, batch: int = 4, **data: object
) -> JobSpec:
    model = {"family": "gpt", "layers": layers, "hidden": hidden, "heads": 2, "seq_len": 16}
    return JobSpec.model_validate(
        {
            "name": "job",
            "train": {"model": model, "global_batch": batch, "data": data or {"source": "builtin"}},
            "stop": {"steps": steps},
            "checkpoint": {"interval_steps": interval, "keep": keep},
        }
    )


def newest(directory: Path) -> Path:
    return max((directory / "checkpoints").glob("step-*"))


def ready(attempt: Attempt) -> Ready:
    return attempt.reports_of(Ready)[0]


def failing(
    launcher: RankLauncher, directory: Path, spec: JobSpec, layout: ParallelPlan, epoch: int
) -> list[WorkerError]:
    attempt = launcher.launch(directory, make_launch(directory, spec, layout, epoch=epoch))
    assert set(attempt.wait()) == {1}
    return attempt.reports_of(WorkerError)


def cut_off(checkpoint: Path) -> None:
    shard = min(checkpoint.glob("rank-*.safetensors"))
    shard.write_bytes(shard.read_bytes()[:-7])


def delete_shard(checkpoint: Path) -> None:
    min(checkpoint.glob("rank-*.safetensors")).unlink()


def flip_byte(checkpoint: Path) -> None:
    shard = min(checkpoint.glob("rank-*.safetensors"))
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 0xFF
    shard.write_bytes(content)


def add_shard(checkpoint: Path) -> None:
    (checkpoint / "rank-00007.safetensors").write_bytes(b"of another save")


def old_format(checkpoint: Path) -> None:
    edit_manifest(checkpoint, format=1)


def edit_manifest(checkpoint: Path, **fields: object) -> None:
    path = checkpoint / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def lose_manifest(checkpoint: Path) -> None:
    (checkpoint / "manifest.json").unlink()


def garble_manifest(checkpoint: Path) -> None:
    (checkpoint / "manifest.json").write_text('{"step": ')


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (add_shard, "does not list: rank-00007.safetensors"),
        (old_format, "has format 1, this version reads 2"),
        (cut_off, "bytes, the manifest says"),
        (delete_shard, "lacks its file"),
        (flip_byte, "differs from its digest"),
        (lose_manifest, "has no manifest"),
        (garble_manifest, "unreadable manifest"),
    ],
)
def test_a_damaged_checkpoint_is_passed_over_and_named(
    launcher: RankLauncher, tmp_path: Path, damage: Callable[[Path], None], reason: str
) -> None:
    launcher.run(tmp_path, job(6), ALONE)
    damage(newest(tmp_path))
    resumed = launcher.run(tmp_path, job(8), PAIR, epoch=2)
    assert ready(resumed).resumed_step == 4
    assert list(ready(resumed).skipped) == ["step-00000006"]
    assert reason in ready(resumed).skipped["step-00000006"]
    again = launcher.run(tmp_path, job(10), ALONE, epoch=3)
    assert ready(again).resumed_step == 8
    assert not ready(again).skipped


def test_empty_and_foreign_directories_do_not_count(launcher: RankLauncher, tmp_path: Path) -> None:
    launcher.run(tmp_path, job(4), ALONE)
    root = tmp_path / "checkpoints"
    (root / "step-00999999").mkdir()
    (root / "step-latest").mkdir()
    (root / "notes.txt").write_text("mine")
    shutil.copytree(newest_complete(root), root / "step-00000888")
    resumed = launcher.run(tmp_path, job(6), ALONE, epoch=2)
    assert ready(resumed).resumed_step == 4
    assert set(ready(resumed).skipped) == {"step-00999999", "step-00000888"}
    assert (root / "notes.txt").exists()


def newest_complete(root: Path) -> Path:
    return max(path.parent for path in root.glob("step-*/manifest.json"))


def test_nothing_is_started_afresh_over_damaged_work(launcher: RankLauncher, tmp_path: Path) -> None:
    launcher.run(tmp_path, job(4), ALONE)
    for checkpoint in (tmp_path / "checkpoints").glob("step-*"):
        cut_off(checkpoint)
    [error] = failing(launcher, tmp_path, job(6), ALONE, epoch=2)
    assert error.code == "checkpoint"
    assert "step-00000004" in error.message


@pytest.mark.parametrize(
    ("other", "values"),
    [
        ({"hidden": 32}, ("model.hidden is 16, the job has 32",)),
        ({"batch": 8}, ("global_batch is 4, the job has 8",)),
        ({"source": "text"}, ("data is", "sample_count is")),
    ],
)
def test_a_checkpoint_of_another_job_is_refused_with_both_values(
    launcher: RankLauncher, tmp_path: Path, other: dict[str, object], values: tuple[str, ...]
) -> None:
    launcher.run(tmp_path, job(2), ALONE)
    if "source" in other:
        (tmp_path / "text").write_text("some other text " * 50)
        other["path"] = str(tmp_path / "text")
    errors = failing(launcher, tmp_path, job(4, **other), PAIR, epoch=2)  # type: ignore[arg-type]
    assert {error.code for error in errors} == {"checkpoint"}
    assert all(value in errors[0].message for value in values), errors[0].message


def test_work_that_was_saved_is_not_begun_anew(launcher: RankLauncher, tmp_path: Path) -> None:
    launch = replace(make_launch(tmp_path, job(2), PAIR), durable_step=40)
    attempt = launcher.launch(tmp_path, launch)
    assert set(attempt.wait()) == {1}
    errors = attempt.reports_of(WorkerError)
    assert {error.code for error in errors} == {"checkpoint"}
    assert "no checkpoint is left" in errors[0].message
    assert "step 40" in errors[0].message


def test_a_place_that_is_no_directory_is_named(launcher: RankLauncher, tmp_path: Path) -> None:
    (tmp_path / "checkpoints").write_text("something else")
    errors = failing(launcher, tmp_path, job(2), PAIR, 1)
    assert {error.code for error in errors} == {"checkpoint"}
    assert f"the checkpoint place {tmp_path / 'checkpoints'} cannot be opened" in errors[0].message


def test_a_model_without_a_place_is_written_by_the_next_attempt(launcher: RankLauncher, tmp_path: Path) -> None:
    (tmp_path / "output").write_text("something else")
    errors = failing(launcher, tmp_path, job(2), PAIR, 1)
    assert {error.code for error in errors} == {"checkpoint"}
    assert f"could not be written to {tmp_path / 'output'}" in errors[0].message
    (tmp_path / "output").unlink()
    (finished,) = launcher.run(tmp_path, job(2), PAIR, epoch=2).reports_of(Finished)
    assert Path(finished.output or "").is_file()


def test_only_the_newest_are_kept_and_nothing_temporary(launcher: RankLauncher, tmp_path: Path) -> None:
    root = tmp_path / "checkpoints"
    (root / ".tmp-step-00000002.0").mkdir(parents=True)
    (root / ".tmp-step-00000002.0" / "rank-00000.safetensors").write_bytes(b"left by a killed attempt")
    launcher.run(tmp_path, job(9, interval=2, keep=3), ALONE)
    assert sorted(path.name for path in root.glob("step-*")) == [f"step-0000000{step}" for step in (6, 8, 9)]
    assert not list(root.rglob(".tmp-*"))


def test_an_older_attempt_can_no_longer_save(launcher: RankLauncher, tmp_path: Path) -> None:
    old = launcher.launch(tmp_path, make_launch(tmp_path, job(ENDLESS, interval=1), PAIR, epoch=1))
    old.wait_for(CheckpointSaved)
    (tmp_path / "checkpoints" / "fence.json").write_text('{"epoch": 2}')
    assert set(old.wait()) == {1}
    errors = old.reports_of(WorkerError)
    assert {error.code for error in errors} == {"checkpoint"}
    assert "attempt 2" in errors[0].message
    # Nor can it start again.
    *_, error = failing(launcher, tmp_path, job(ENDLESS), ALONE, epoch=1)
    assert (error.code, error.rank) == ("checkpoint", 0)


def test_a_full_disk_fails_the_save_and_not_the_training(launcher: RankLauncher, tmp_path: Path) -> None:
    spec = job(ENDLESS, interval=5, hidden=64)
    launch = make_launch(tmp_path, spec, PAIR)
    attempt = launcher.launch(tmp_path, launch, target="tests.fakes.worker_targets:run_with_small_disk")
    attempt.wait_for(CheckpointSaved)
    attempt.signal(signal.SIGUSR1, rank=1)
    attempt.wait_for(CheckpointFailed, count=2)
    durable = attempt.reports_of(CheckpointSaved)
    attempt.signal(signal.SIGUSR2, rank=1)
    attempt.wait_for(CheckpointSaved, count=len(durable) + 1)
    attempt.signal(signal.SIGTERM)
    attempt.finish()
    failures = attempt.reports_of(CheckpointFailed)
    assert "File too large" in failures[0].error
    assert attempt.reports_of(Stopped)[0].durable_step > failures[-1].step
    assert not list((tmp_path / "checkpoints").glob(".tmp-*"))


def test_a_failed_last_save_is_said_and_the_older_state_stays(launcher: RankLauncher, tmp_path: Path) -> None:
    spec = job(ENDLESS, interval=5, hidden=64)
    target = "tests.fakes.worker_targets:run_with_small_disk"
    attempt = launcher.launch(tmp_path, make_launch(tmp_path, spec, ALONE), target=target)
    attempt.wait_for(CheckpointSaved)
    attempt.signal(signal.SIGUSR1)
    attempt.wait_for(CheckpointFailed)
    attempt.signal(signal.SIGTERM)
    attempt.finish()
    [stopped] = attempt.reports_of(Stopped)
    assert stopped.durable_step < stopped.step
    resumed = launcher.run(tmp_path, job(stopped.step + 1, hidden=64), PAIR, epoch=2)
    assert ready(resumed).resumed_step == stopped.durable_step


def test_a_final_state_that_cannot_be_saved_says_why(launcher: RankLauncher, tmp_path: Path) -> None:
    launch = make_launch(tmp_path, job(2, interval=100, hidden=64), PAIR)
    attempt = launcher.launch(tmp_path, launch, target="tests.fakes.worker_targets:run_on_full_disk")
    assert set(attempt.wait()) == {1}
    for error in attempt.reports_of(WorkerError):
        assert error.code == "checkpoint"
        assert "the final state of step 2 could not be saved" in error.message
        assert "File too large" in error.message


def test_killed_while_saving_it_always_resumes(launcher: RankLauncher, tmp_path: Path) -> None:
    """Kill all ranks at random moments while they save after every step."""
    moments = random.Random(20)
    last_step = 0
    for epoch in range(1, 13):
        layout = (ALONE, PAIR)[epoch % 2]
        attempt = launcher.launch(tmp_path, make_launch(tmp_path, job(ENDLESS, interval=1), layout, epoch=epoch))
        attempt.wait_for(CheckpointSaved)
        until_s = time.monotonic() + moments.uniform(0.0, 0.15)
        while time.monotonic() < until_s:
            launcher.poll(0.001)
        attempt.signal(signal.SIGKILL)
        attempt.wait()
        assert ready(attempt).resumed_step >= last_step, "went back behind a durable checkpoint"
        last_step = max(report.step for report in attempt.reports_of(CheckpointSaved))
    done = launcher.run(tmp_path, job(last_step + 3), ALONE, epoch=13)
    assert ready(done).resumed_step >= last_step
    assert len(done.reports_of(Finished)) == 1
    assert not list((tmp_path / "checkpoints").rglob(".tmp-*"))


@pytest.mark.parametrize("plan", ["dp1 pp2 mb2", "dp1 pp4 mb2", "dp1 pp2 mb2 interleaved2"])
def test_a_checkpoint_holds_every_tensor_once(launcher: RankLauncher, tmp_path: Path, plan: str) -> None:
    layout, spec = parse_plan(plan, layer_count=4), job(2, layers=4)
    launcher.run(tmp_path, spec, layout)
    manifest = read_manifest(newest(tmp_path))
    assert spec.train is not None
    names = {parameter.name for parameter in parameters_of(spec.train.model)}
    assert {"embed.weight", "layers.0.attn.wq.weight", "layers.1.mlp.w_out.weight", "head.weight"} <= names
    states = [f"optim.{name}.{state}" for name in names for state in ("exp_avg", "exp_avg_sq")]
    assert manifest.tensors.keys() == {f"model.{name}" for name in names} | set(states)
    assert manifest.samples_consumed == 2 * 4
    assert manifest.plan == str(layout)
    assert {"torch", "arena-sched"} <= manifest.versions.keys()
    assert run(["ckpt", "verify", str(tmp_path / "checkpoints")]) == 0


def test_optimizer_state_without_a_place_is_refused_by_name(launcher: RankLauncher, tmp_path: Path) -> None:
    """As another version of the optimizer might have written it."""
    launcher.run(tmp_path, job(2), ALONE)
    tensors = json.loads((newest(tmp_path) / "manifest.json").read_text())["tensors"]
    tensors["optim.head.weight.max_exp_avg_sq"] = tensors["optim.head.weight.exp_avg_sq"]
    edit_manifest(newest(tmp_path), tensors=tensors)
    errors = failing(launcher, tmp_path, job(4), PAIR, epoch=2)
    assert {error.code for error in errors} == {"checkpoint"}
    assert "optim.head.weight.max_exp_avg_sq, which the job has no place for" in errors[0].message


def test_shards_may_be_empty(launcher: RankLauncher, tmp_path: Path) -> None:
    """A width of 6 over 4 replicas leaves the last without a part of most tensors."""
    spread = parse_plan("dp4 mb1 zero3", layer_count=2)
    launcher.run(tmp_path, job(2, hidden=6), ALONE)
    first = launcher.run(tmp_path, job(4, hidden=6), spread, epoch=2)
    last = launcher.run(tmp_path, job(6, hidden=6), parse_plan("dp3 mb2 zero3", layer_count=2), epoch=3)
    whole = launcher.run(tmp_path / "whole", job(6, hidden=6), ALONE)
    expected = {step: loss for step, loss in whole.losses().items() if step > 2}
    assert first.losses() | last.losses() == pytest.approx(expected, abs=1e-6)


def test_progress_is_written_before_what_follows_it(launcher: RankLauncher, tmp_path: Path) -> None:
    done = launcher.run(tmp_path, job(7, interval=3), ALONE)
    seen = 0
    for report in done.reports():
        if isinstance(report, Progress):
            seen = report.points[-1].step
        if isinstance(report, CheckpointSaved):
            assert seen >= report.step  # training went on while it was written
        if isinstance(report, Finished):
            assert seen == report.step


def test_a_taken_port_is_named(launcher: RankLauncher, tmp_path: Path) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        launch = replace(make_launch(tmp_path, job(2), ALONE), master_port=holder.getsockname()[1])
        attempt = launcher.launch(tmp_path, launch)
        assert attempt.wait() == [1]
    [error] = attempt.reports_of(WorkerError)
    assert error.code == "port"
    assert str(launch.master_port) in error.message
