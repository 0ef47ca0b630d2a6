"""How an attempt ends: by its stop condition, on request, or with an error that has a name."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest
from safetensors import safe_open

from arena.domain.job import JobSpec
from arena.domain.launch import (
    LAUNCH_JSON,
    REPORT_JSON,
    CheckpointSaved,
    Finished,
    Finishing,
    Progress,
    Ready,
    Stopped,
    WorkerError,
)
from arena.domain.parallel import ParallelPlan, parse_plan
from tests.fakes.rank_launcher import ROOT, RankLauncher, make_launch
from tests.fakes.recorded_samples import samples_by_step

pytestmark = pytest.mark.slow

ALONE = parse_plan("dp1 mb4", layer_count=2)
PAIR = parse_plan("dp2 mb2", layer_count=2)
PIPELINE = parse_plan("pp2 mb1", layer_count=2)
RECORDED = "tests.fakes.worker_targets:run_recorded"


def job(stop: dict[str, object], *, vocab_size: int = 256, **train: object) -> JobSpec:
    model = {"family": "gpt", "layers": 2, "hidden": 16, "heads": 2, "seq_len": 16, "vocab_size": vocab_size}
    return JobSpec.model_validate({"name": "job", "train": {"model": model, "global_batch": 4, **train}, "stop": stop})


def errors(launcher: RankLauncher, directory: Path, spec: JobSpec, layout: ParallelPlan) -> list[WorkerError]:
    attempt = launcher.launch(directory, make_launch(directory, spec, layout))
    assert set(attempt.wait()) == {1}
    return attempt.reports_of(WorkerError)


def token_file(directory: Path, count: int, vocab_size: int = 256) -> dict[str, object]:
    path = directory / "tokens.bin"
    (np.arange(count) % vocab_size).astype("<u2").tofile(path)
    return {"source": "tokens", "path": str(path)}


def test_a_finished_job_leaves_a_durable_model(launcher: RankLauncher, tmp_path: Path) -> None:
    done = launcher.run(tmp_path, job({"steps": 5}), PIPELINE)
    kinds = [report.kind for report in done.reports()]
    assert kinds[0] == "ready"
    assert kinds[-3:] == ["finishing", "checkpoint_saved", "finished"]
    [finished] = done.reports_of(Finished)
    assert finished.output is not None
    with safe_open(finished.output, framework="pt") as model:
        assert {"embed.weight", "positions.weight", "layers.1.mlp.w_out.bias", "head.weight"} <= set(model.keys())
    description = json.loads((tmp_path / "output" / "model.json").read_text())
    assert description["step"] == finished.step == 5
    assert description["loss"] == finished.loss == done.losses()[5]
    assert description["tokens"] == 5 * 4 * 16


def test_a_finished_job_started_again_exports_again(launcher: RankLauncher, tmp_path: Path) -> None:
    launcher.run(tmp_path, job({"steps": 3}), ALONE)
    (tmp_path / "output" / "model.safetensors").unlink()
    again = launcher.run(tmp_path, job({"steps": 3}), PAIR, epoch=2)
    assert again.losses() == {}
    assert again.reports_of(Finished)[0].step == 3
    assert (tmp_path / "output" / "model.safetensors").exists()


def test_a_job_ends_by_tokens(launcher: RankLauncher, tmp_path: Path) -> None:
    done = launcher.run(tmp_path, job({"tokens": 3 * 64 + 1}), ALONE)
    assert done.reports_of(Finished)[0].step == 4


def test_a_job_ends_by_its_loss(launcher: RankLauncher, tmp_path: Path) -> None:
    done = launcher.run(tmp_path, job({"loss": 5.3, "steps": 500}, optimizer={"lr": 1e-2}), PAIR)
    [finishing] = done.reports_of(Finishing)
    losses = done.losses()
    assert losses[finishing.step] <= 5.3
    assert all(losses[step] > 5.3 for step in range(1, finishing.step))
    assert finishing.condition.startswith("loss")


def test_a_job_ends_by_the_time_left(launcher: RankLauncher, tmp_path: Path) -> None:
    launch = replace(make_launch(tmp_path, job({"time_limit_s": 3600}), PAIR), time_left_s=0.2)
    done = launcher.launch(tmp_path, launch).finish()
    assert done.reports_of(Finishing)[0].condition.startswith("time limit")


@pytest.mark.parametrize("rank", [0, 1])
def test_a_polite_stop_of_any_rank_stops_all_at_one_step(launcher: RankLauncher, tmp_path: Path, rank: int) -> None:
    attempt = launcher.launch(tmp_path, make_launch(tmp_path, job({"steps": 100_000}), PIPELINE))
    attempt.wait_for(Ready)
    attempt.signal(signal.SIGTERM, rank=rank)
    attempt.finish()
    [stopped] = attempt.reports_of(Stopped)
    assert stopped.step == stopped.durable_step == max(attempt.losses())
    assert attempt.reports_of(CheckpointSaved)[-1].step == stopped.step


def test_rank_0_listens_on_its_address_alone(launcher: RankLauncher, tmp_path: Path) -> None:
    attempt = launcher.launch(tmp_path, make_launch(tmp_path, job({"steps": 100_000}), PAIR))
    attempt.wait_for(Progress)
    listening = {
        address
        for pid in attempt.pids
        for connection in psutil.Process(pid).net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
        for address in [connection.laddr.ip]
    }
    attempt.signal(signal.SIGTERM)
    attempt.finish()
    assert listening == {"127.0.0.1"}


def test_a_stop_asked_before_the_ranks_meet_is_kept(launcher: RankLauncher, tmp_path: Path) -> None:
    launch = make_launch(tmp_path, job({"steps": 100_000}), PAIR)
    first = launcher.launch(tmp_path, launch, ranks=[0])
    # The port is open once the signal handler is in place.
    first.wait_for_port(launch.master_port)
    first.signal(signal.SIGTERM)
    second = launcher.launch(tmp_path, launch, ranks=[1])
    first.finish()
    second.finish()
    assert first.reports_of(Stopped)[0].step == 1


def test_every_sample_comes_once_an_epoch_whatever_the_plan(launcher: RankLauncher, tmp_path: Path) -> None:
    """Ten samples, four a step: epochs end inside a batch, and a stop falls exactly on an epoch's end."""
    data = token_file(tmp_path, 10 * 16 + 1)
    seen: list[int] = []
    plans = (ALONE, PAIR, PIPELINE, parse_plan("dp3 mb1 zero3", layer_count=2))
    for epoch, (steps, layout) in enumerate(zip((3, 5, 10, 15), plans, strict=True), start=1):
        attempt = launcher.run(tmp_path, job({"steps": steps}, data=data), layout, epoch=epoch, target=RECORDED)
        seen += [sample for step in samples_by_step(attempt, layout, 4) for sample in step]
    epochs = [seen[start : start + 10] for start in range(0, 60, 10)]
    assert len(seen) == 60
    assert all(sorted(ids) == list(range(10)) for ids in epochs)
    assert len({tuple(ids) for ids in epochs}) == 6, "every epoch has its own order"


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_schedule_and_clipping_do_not_notice_a_plan_change(
    launcher: RankLauncher, tmp_path: Path, schedule: str
) -> None:
    """Warm-up, decay and a norm that always clips: the change falls into the warm-up and into the decay."""
    optimizer = {
        "lr": 0.05,
        "clip_norm": 0.05,
        "schedule": {"kind": schedule, "warmup_steps": 4, "decay_steps": 12, "floor_ratio": 0.1},
    }
    whole = launcher.run(tmp_path / "whole", job({"steps": 12}, optimizer=optimizer), ALONE).losses()
    losses: dict[int, float] = {}
    for epoch, (steps, layout) in enumerate(((2, ALONE), (8, PIPELINE), (12, PAIR)), start=1):
        part = launcher.run(tmp_path / "parts", job({"steps": steps}, optimizer=optimizer), layout, epoch=epoch)
        losses |= part.losses()
    assert losses == pytest.approx(whole, abs=5e-6)


def test_a_plan_the_worker_cannot_run_is_a_config_error(launcher: RankLauncher, tmp_path: Path) -> None:
    found = errors(launcher, tmp_path, job({"steps": 2}, precision="fp16"), ALONE)
    assert [(error.code, error.rank) for error in found] == [("config", 0)]
    assert "loss scaling" in found[0].message


def test_missing_data_is_a_data_error(launcher: RankLauncher, tmp_path: Path) -> None:
    data = {"source": "text", "path": str(tmp_path / "none.txt")}
    found = errors(launcher, tmp_path, job({"steps": 2}, data=data), PAIR)
    assert {error.code for error in found} == {"data"}
    assert "none.txt" in found[0].message


def test_a_token_beyond_the_vocabulary_is_a_data_error(launcher: RankLauncher, tmp_path: Path) -> None:
    data = token_file(tmp_path, 400, vocab_size=300)
    found = errors(launcher, tmp_path, job({"steps": 50}, data=data), ALONE)
    assert [error.code for error in found] == ["data"]
    assert "vocab_size" in found[0].message


def test_a_diverging_loss_ends_the_job(launcher: RankLauncher, tmp_path: Path) -> None:
    optimizer = {"name": "sgd", "lr": 1e20, "clip_norm": None}
    found = errors(launcher, tmp_path, job({"steps": 50}, optimizer=optimizer), PAIR)
    assert {error.code for error in found} == {"config"}
    assert "diverged" in found[0].message


def test_a_rank_that_dies_takes_the_others_with_it(launcher: RankLauncher, tmp_path: Path) -> None:
    attempt = launcher.launch(tmp_path, make_launch(tmp_path, job({"steps": 100_000}), PAIR))
    attempt.wait_for(Progress)
    attempt.signal(signal.SIGKILL, rank=1)
    assert attempt.wait() == [1, -signal.SIGKILL]
    assert [(error.code, error.rank) for error in attempt.reports_of(WorkerError)] == [("crash", 0)]


def test_the_module_runs_one_rank(tmp_path: Path) -> None:
    launch = make_launch(tmp_path, job({"steps": 2}), ALONE)
    (tmp_path / "launch.json").write_bytes(LAUNCH_JSON.dump_json(launch))
    environ = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "agents")]),
        "OMP_NUM_THREADS": "1",
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "1",
        "MASTER_ADDR": launch.master_addr,
        "MASTER_PORT": str(launch.master_port),
        "ARENA_LAUNCH": str(tmp_path / "launch.json"),
        "ARENA_REPORT": str(tmp_path / "reports.jsonl"),
    }
    subprocess.run([sys.executable, "-m", "arena_agent.worker"], env=environ, check=True, timeout=120)
    lines = (tmp_path / "reports.jsonl").read_text().splitlines()
    assert isinstance(REPORT_JSON.validate_json(lines[-1]), Finished)


def test_importing_the_worker_leaves_the_process_fit_to_fork() -> None:
    """One thread, no transport library: a forked child inherits neither locks nor half-dead threads."""
    program = (
        "import sys; from pathlib import Path; import arena_agent.worker.main;"
        "print(len(list(Path('/proc/self/task').iterdir())), 'grpc' in sys.modules)"
    )
    environ = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "agents")]),
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }
    output = subprocess.run(
        [sys.executable, "-c", program], env=environ, check=True, timeout=120, capture_output=True
    ).stdout
    assert output.split() == [b"1", b"False"]


def test_gpus_that_torch_does_not_see_are_not_replaced_by_the_cpu(launcher: RankLauncher, tmp_path: Path) -> None:
    launch = replace(make_launch(tmp_path, job({"steps": 1}), PAIR), gpu_type="a100-80")
    blind = launcher.launch(tmp_path / "blind", launch, environ={"CUDA_VISIBLE_DEVICES": "GPU-1,GPU-2"})
    assert set(blind.wait()) == {1}
    assert all("torch sees no GPU" in error.message for error in blind.reports_of(WorkerError))
    assert launcher.launch(tmp_path / "virtual", launch, environ={"CUDA_VISIBLE_DEVICES": ""}).finish().losses()
