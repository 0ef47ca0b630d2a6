"""Evaluations on fewer samples than a plan has replicas: some ranks have nothing to do, and the loss is the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from arena.domain.capability import unsupported
from arena.domain.job import JobSpec
from arena.domain.launch import Evaluated
from arena.domain.parallel import parse_plan
from tests.fakes.rank_launcher import RankLauncher

pytestmark = pytest.mark.slow

LAYERS, STEPS = 4, 2
PLANS = (
    "dp3 mb1",
    "dp3 mb1 zero1",
    "dp3 mb1 zero3",
    "dp2 pp2 mb1 interleaved2",
    "[layers=2 tp1*3 | layers=2 tp1] mb1",
    "[layers=2 tp2 | layers=2 tp1*2] mb1",
    "[layers=4 tp1x2,tp1x4] mb1",
)


def evaluations(launcher: RankLauncher, directory: Path, text: str, sample_count: int) -> dict[int, float]:
    train = {
        "model": {"family": "gpt", "layers": LAYERS, "hidden": 16, "heads": 2, "seq_len": 8},
        "global_batch": 6,
        "evaluation": {"interval_steps": 1, "sample_count": sample_count},
    }
    spec = JobSpec.model_validate({"name": "job", "train": train, "stop": {"steps": STEPS}})
    plan = parse_plan(text, layer_count=LAYERS)
    assert spec.train is not None
    assert unsupported(spec.train, plan) is None
    reports = launcher.run(directory, spec, plan).reports_of(Evaluated)
    return {report.step: report.loss for report in reports}


@pytest.mark.parametrize("sample_count", [1, 2])
def test_the_loss_of_few_samples_is_that_of_one_replica(
    launcher: RankLauncher, tmp_path: Path, sample_count: int
) -> None:
    expected = evaluations(launcher, tmp_path / "alone", "dp1 mb1", sample_count)
    assert sorted(expected) == [1, 2]
    for index, text in enumerate(PLANS):
        found = evaluations(launcher, tmp_path / str(index), text, sample_count)
        assert found == pytest.approx(expected, abs=1e-5), text
