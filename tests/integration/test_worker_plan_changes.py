"""A job that changes its plan while it trains learns what it would have learned undisturbed."""

from __future__ import annotations

import itertools
import shutil
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest

from arena.domain.job import JobSpec
from arena.domain.launch import CheckpointSaved, Finished, Ready, Stopped
from arena.domain.parallel import ParallelPlan, parse_plan
from tests.equivalence import RECORDED, digest, drift, state_digests
from tests.fakes.rank_launcher import Attempt, RankLauncher, make_launch
from tests.fakes.recorded_samples import samples_by_step
from tests.whole_checkpoints import read_whole

pytestmark = pytest.mark.slow

STEPS = 220
# Each differs from the one before in more than one of dp, tp, pp, schedule and sharding; 3 does not divide 8.
PLANS = (
    "dp1 tp1 pp1 mb8",
    "dp2 tp2 pp1 mb4",
    "dp1 tp1 pp2 mb2 interleaved2",
    "dp3 tp1 pp1 mb3 zero3",
    "dp2 tp1 pp2 mb2 zero2",
)


def job(steps: int, interval_steps: int) -> JobSpec:
    train = {
        "model": {"family": "gpt", "layers": 4, "hidden": 32, "heads": 4, "vocab_size": 256, "seq_len": 32},
        "global_batch": 8,
        "optimizer": {
            "lr": 3e-3,
            "weight_decay": 0.01,
            "clip_norm": 1.0,
            "schedule": {"kind": "cosine", "warmup_steps": 10, "decay_steps": 400, "floor_ratio": 0.1},
        },
        "seed": 7,
    }
    return JobSpec.model_validate(
        {"name": "job", "train": train, "stop": {"steps": steps}, "checkpoint": {"interval_steps": interval_steps}}
    )


def plan(text: str) -> ParallelPlan:
    return parse_plan(text, layer_count=4)


def newest_checkpoint(directory: Path) -> Path:
    return max((directory / "checkpoints").glob("step-*"))


def run_in_parts(launcher: RankLauncher, directory: Path) -> list[Attempt]:
    """Train under one plan after the other, each stopped politely after a save, the last one to the end."""
    attempts = []
    for epoch, text in enumerate(PLANS, start=1):
        is_last = epoch == len(PLANS)
        launch = make_launch(directory, job(STEPS, 20), plan(text), epoch=epoch)
        attempt = launcher.launch(directory, launch, target=RECORDED)
        if not is_last:
            attempt.wait_for(CheckpointSaved)
            attempt.signal(signal.SIGTERM, rank=plan(text).gpu_count - 1)
        attempts.append(attempt.finish())
        shutil.copytree(newest_checkpoint(directory), directory / "kept" / str(epoch))
    return attempts


@pytest.fixture(scope="module")
def undisturbed(launcher: RankLauncher, tmp_path_factory: pytest.TempPathFactory) -> Attempt:
    return launcher.run(tmp_path_factory.mktemp("calm"), job(STEPS, 500), plan(PLANS[0]), target=RECORDED)


@pytest.fixture(scope="module")
def changed_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("changed")


@pytest.fixture(scope="module")
def changed(launcher: RankLauncher, changed_dir: Path) -> Sequence[Attempt]:
    return run_in_parts(launcher, changed_dir)


def joined_losses(attempts: Sequence[Attempt]) -> dict[int, float]:
    losses: dict[int, float] = {}
    for attempt in attempts:
        part = attempt.losses()
        assert not losses.keys() & part.keys(), "a step was done twice"
        losses |= part
    return losses


def test_the_loss_falls_and_all_steps_are_done_once(undisturbed: Attempt, changed: Sequence[Attempt]) -> None:
    losses = joined_losses(changed)
    assert sorted(losses) == list(range(1, STEPS + 1))
    assert losses[1] - losses[STEPS] > 1.0
    assert undisturbed.losses()[1] - undisturbed.losses()[STEPS] > 1.0
    assert len(changed[-1].reports_of(Finished)) == 1


def test_each_attempt_resumes_where_the_last_stopped(changed: Sequence[Attempt]) -> None:
    for before, after in itertools.pairwise(changed):
        [stopped], [ready] = before.reports_of(Stopped), after.reports_of(Ready)
        assert stopped.step == stopped.durable_step == ready.resumed_step
        assert not ready.skipped


def test_resharded_state_is_bitwise_equal(changed: Sequence[Attempt], changed_dir: Path) -> None:
    plans = [plan(text) for text in PLANS]
    for index, (before, after) in enumerate(itertools.pairwise(changed)):
        saved = state_digests(before, "end", plans[index])
        kept = read_whole(changed_dir / "kept" / str(index + 1))
        on_disk = {name: digest(tensor.float().numpy()) for name, tensor in kept.items()}
        loaded = state_digests(after, "start", plans[index + 1])
        assert saved == on_disk == loaded
        assert any(name.endswith(".exp_avg_sq") for name in loaded)


def test_the_same_samples_come_in_the_same_order(undisturbed: Attempt, changed: Sequence[Attempt]) -> None:
    expected = samples_by_step(undisturbed, plan(PLANS[0]), 8)
    seen = [
        step for attempt, text in zip(changed, PLANS, strict=True) for step in samples_by_step(attempt, plan(text), 8)
    ]
    assert len(expected) == STEPS
    assert seen == expected


def test_the_next_loss_is_that_of_the_old_plan(
    launcher: RankLauncher, changed: Sequence[Attempt], changed_dir: Path, tmp_path: Path
) -> None:
    for index, text in enumerate(PLANS[:-1]):
        step = changed[index].reports_of(Stopped)[0].step
        place = tmp_path / str(index)
        shutil.copytree(changed_dir / "kept" / str(index + 1), place / "checkpoints" / f"step-{step:08d}")
        undone = launcher.run(place, job(step + 1, 500), plan(text))
        assert undone.losses()[step + 1] == pytest.approx(changed[index + 1].losses()[step + 1], abs=1e-6)


def test_later_losses_drift_no_more_than_by_another_order_of_sums(
    launcher: RankLauncher, undisturbed: Attempt, changed: Sequence[Attempt], tmp_path: Path
) -> None:
    reference = undisturbed.losses()
    reordered = [launcher.run(tmp_path / text, job(STEPS, 500), plan(text)).losses() for text in ("dp1 mb2", "dp2 mb2")]
    allowed = [max(parts) for parts in zip(*(drift(losses, reference) for losses in reordered), strict=True)]
    seen = drift(joined_losses(changed), reference)
    assert max(allowed) < 1e-2, "the comparison is meaningless if reordering alone changes the run"
    assert all(ours <= 4 * limit + 1e-6 for ours, limit in zip(seen, allowed, strict=True)), (seen[-1], allowed[-1])
