"""A mixture of experts trains alike wherever its experts and tokens are, with the balance loss on."""

from __future__ import annotations

from pathlib import Path

import pytest

from arena.domain.job import JobSpec
from arena.domain.parallel import parse_plan
from tests.fakes.rank_launcher import RankLauncher

pytestmark = pytest.mark.slow

STEPS = 20
LAYERS = 3
PLANS = ("dp4 mb1", "dp2 mb2 ep2", "dp4 mb2 ep4 zero2", "tp2 mb4", "dp2 tp2 mb2 ep2 sp", "pp3 mb2")


def job(balance_loss_weight: float) -> JobSpec:
    model = {
        "family": "moe",
        "layers": LAYERS,
        "hidden": 32,
        "heads": 4,
        "ffn_hidden": 48,
        "expert_count": 8,
        "vocab_size": 256,
        "seq_len": 32,
        "balance_loss_weight": balance_loss_weight,
    }
    train = {"model": model, "global_batch": 8, "optimizer": {"lr": 1e-3}, "seed": 5}
    return JobSpec.model_validate({"name": "job", "train": train, "stop": {"steps": STEPS}})


def losses(launcher: RankLauncher, directory: Path, text: str, weight: float = 0.05) -> dict[int, float]:
    return launcher.run(directory, job(weight), parse_plan(text, layer_count=LAYERS)).losses()


@pytest.fixture(scope="module")
def alone(launcher: RankLauncher, tmp_path_factory: pytest.TempPathFactory) -> dict[int, float]:
    return losses(launcher, tmp_path_factory.mktemp("alone"), "dp1 mb8")


@pytest.mark.parametrize("text", PLANS)
def test_twenty_steps_are_those_of_one_process(
    launcher: RankLauncher, alone: dict[int, float], tmp_path: Path, text: str
) -> None:
    seen = losses(launcher, tmp_path, text)
    assert sorted(seen) == list(range(1, STEPS + 1))
    apart = {step: abs(loss - alone[step]) for step, loss in seen.items()}
    assert max(apart.values()) < 1e-4, apart


def test_the_balance_loss_is_part_of_the_loss_and_of_its_gradient(
    launcher: RankLauncher, alone: dict[int, float], tmp_path: Path
) -> None:
    without = losses(launcher, tmp_path, "dp1 mb8", weight=0.0)
    # At the start every expert is equally likely: the sum over layers of weight * experts * sum(share * 1 / experts).
    assert alone[1] - without[1] == pytest.approx(LAYERS * 0.05, abs=1e-6)
    assert abs(alone[STEPS] - without[STEPS] - LAYERS * 0.05) > 1e-4
