"""Every layout computes the same training, and its checkpoints load under every other."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from arena.domain.job import JobSpec
from arena.domain.launch import Finished, Ready
from arena.domain.parallel import ParallelPlan, Replica, Stage, parse_plan
from arena_agent.worker.capability import unsupported
from arena_agent.worker.checkpoint import read_whole
from tests.fakes.rank_launcher import Attempt, RankLauncher, make_launch

pytestmark = pytest.mark.slow

LAYERS = 5
STEPS = 3
REFERENCE = "dp1 mb6"
# 6 samples a step, 5 layers, 258 tokens and a hidden width of 24: little divides evenly, on purpose.
LAYOUTS = (
    "dp4 mb1",
    "dp4 mb2 zero1",
    "dp4 mb2 zero3",
    "dp2 mb3 zero2 recompute=full",
    "dp1 tp2 mb4",
    "dp2 tp2 mb3 zero3 recompute=selective",
    "dp1 pp2 mb2 layers=1,4",
    "dp1 pp3 mb2 gpipe",
    "dp1 pp4 mb3",
    "dp1 pp2 mb1 interleaved2",
    "dp2 pp2 mb1 zero3",
    "dp1 tp2 pp2 mb6 recompute=full",
)


LLAMA_LAYOUTS = {
    "dp4 mb2 zero3",
    "dp2 tp2 mb3 zero3 recompute=selective",
    "dp1 pp2 mb2 layers=1,4",
    "dp1 pp2 mb1 interleaved2",
}


@pytest.fixture(scope="module")
def launcher() -> Iterator[RankLauncher]:
    launcher = RankLauncher.start()
    yield launcher
    launcher.close()


def job(steps: int, family: str, **train: object) -> JobSpec:
    model = {
        "family": family,
        "layers": LAYERS,
        "hidden": 24,
        "heads": 4,
        "kv_heads": 2,
        "ffn_hidden": 40,
        "vocab_size": 258,
        "seq_len": 16,
        "tied_embeddings": train.pop("tied_embeddings", False),
    }
    optimizer = {"lr": 3e-3, "weight_decay": 0.1, "clip_norm": 0.5}
    return JobSpec.model_validate(
        {
            "name": "job",
            "train": {"model": model, "global_batch": 6, "optimizer": optimizer, "seed": 3, **train},
            "stop": {"steps": steps},
        }
    )


def run(launcher: RankLauncher, directory: Path, spec: JobSpec, text: str, epoch: int = 1) -> Attempt:
    layout = parse_plan(text, layer_count=LAYERS)
    assert unsupported(spec, layout) is None
    return launcher.run(directory, spec, layout, epoch=epoch)


def exported(attempt: Attempt) -> dict[str, torch.Tensor]:
    [finished] = attempt.reports_of(Finished)
    assert finished.output is not None
    return load_file(finished.output)


@pytest.fixture(scope="module")
def references(launcher: RankLauncher, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Attempt]:
    """One process, by model family."""
    return {
        family: run(launcher, tmp_path_factory.mktemp(family), job(STEPS, family), REFERENCE)
        for family in ("gpt", "llama")
    }


@pytest.mark.parametrize(
    ("family", "text"),
    [("gpt", text) for text in LAYOUTS] + [("llama", text) for text in LAYOUTS if text in LLAMA_LAYOUTS],
)
def test_a_layout_trains_as_one_process_would(
    launcher: RankLauncher, references: dict[str, Attempt], tmp_path: Path, family: str, text: str
) -> None:
    reference = references[family]
    attempt = run(launcher, tmp_path, job(STEPS, family), text)
    assert attempt.losses() == pytest.approx(reference.losses(), abs=1e-6)
    ours, theirs = exported(attempt), exported(reference)
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        # Adam's first steps divide small sums by their own size, so rounding counts for more than in the loss.
        torch.testing.assert_close(tensor, theirs[name], rtol=0, atol=2e-5, msg=name)


@pytest.mark.parametrize("zero", [0, 1, 3])
def test_replicas_may_take_unequal_shares(
    launcher: RankLauncher, references: dict[str, Attempt], tmp_path: Path, zero: int
) -> None:
    replicas = (Replica(micro_batch_count=1), Replica(micro_batch_count=5))
    stages = tuple(Stage(layer_count=count, replicas=replicas) for count in (3, 2))
    plan = ParallelPlan(stages=stages, micro_batch_size=1, zero=zero)
    attempt = launcher.launch(tmp_path, make_launch(tmp_path, job(STEPS, "gpt"), plan)).finish()
    assert attempt.losses() == pytest.approx(references["gpt"].losses(), abs=1e-6)


@pytest.mark.parametrize("index", range(len(LAYOUTS)))
def test_a_checkpoint_loads_bitwise_under_another_layout(launcher: RankLauncher, tmp_path: Path, index: int) -> None:
    """Each layout saves once and loads once, from its neighbour in the list."""
    saving, loading = LAYOUTS[index - 1], LAYOUTS[index]
    run(launcher, tmp_path, job(1, "llama"), saving)
    checkpoint = tmp_path / "checkpoints" / "step-00000001"
    kept = tmp_path / "kept"
    shutil.copytree(checkpoint, kept)
    # A learning rate of almost nothing: what is saved next differs from what was loaded by nothing in float32.
    still = job(2, "llama", optimizer={"lr": 1e-30, "beta1": 0.0, "beta2": 0.0, "clip_norm": None})
    resumed = run(launcher, tmp_path, still, loading, epoch=2)
    assert resumed.reports_of(Ready)[0].resumed_step == 1
    before = read_whole(kept, prefix="model.")
    after = read_whole(tmp_path / "checkpoints" / "step-00000002", prefix="model.")
    assert before.keys() == after.keys()
    for name, tensor in before.items():
        assert torch.equal(tensor, after[name]), name


def test_tied_embeddings_train_alike(launcher: RankLauncher, tmp_path: Path) -> None:
    spec = job(STEPS, "gpt", tied_embeddings=True)
    alone = run(launcher, tmp_path / "alone", spec, REFERENCE)
    for text in ("dp2 mb3 zero3", "dp1 tp2 mb4", "dp2 tp2 mb3 zero2"):
        spread = run(launcher, tmp_path / text, spec, text)
        assert spread.losses() == pytest.approx(alone.losses(), abs=1e-6), text
        assert "head.weight" not in exported(spread)


@pytest.mark.parametrize("text", ["dp2 mb3 zero3", "dp1 tp2 mb6", "dp1 pp2 mb2"])
def test_bf16_computes_in_half_and_keeps_float32_weights(
    launcher: RankLauncher, references: dict[str, Attempt], tmp_path: Path, text: str
) -> None:
    exact = references["llama"]
    coarse = run(launcher, tmp_path, job(STEPS, "llama", precision="bf16"), text)
    assert coarse.losses() == pytest.approx(exact.losses(), abs=3e-2)
    assert coarse.losses() != exact.losses()
    assert {tensor.dtype for tensor in exported(coarse).values()} == {torch.float32}


def test_sgd_with_momentum_resumes_under_another_layout(launcher: RankLauncher, tmp_path: Path) -> None:
    optimizer = {"name": "sgd", "lr": 0.1, "momentum": 0.9}
    whole = run(launcher, tmp_path / "whole", job(4, "gpt", optimizer=optimizer), REFERENCE)
    run(launcher, tmp_path / "parts", job(2, "gpt", optimizer=optimizer), "dp2 mb3 zero3")
    rest = run(launcher, tmp_path / "parts", job(4, "gpt", optimizer=optimizer), "dp1 pp2 mb2", epoch=2)
    expected = {step: loss for step, loss in whole.losses().items() if step > 2}
    assert rest.losses() == pytest.approx(expected, abs=1e-6)
