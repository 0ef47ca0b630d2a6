"""Every layout that the capability table allows trains as one process would, and its checkpoints load under others.

The plans are covering sets: every pair of features that some plan of four ranks has is trained by some plan here, for
the transformers, mixtures of experts and Wide-ResNet, and each feature by each family
(``tests/unit/test_covering_plans.py``). So this is what keeps the table true. ``make bench`` trains every pair by each
family, on more ranks.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from arena.domain.job import JobSpec, ModelFamily
from arena.domain.launch import Evaluated
from arena.domain.parallel import parse_plan
from tests.covering_plans import ALIKE, LAYERS, Families, covering_set, job
from tests.equivalence import References, check_case, successor
from tests.fakes.rank_launcher import RankLauncher

pytestmark = pytest.mark.slow

CASES = [
    pytest.param(families, index, id=str(case))
    for families in ALIKE
    for index, case in enumerate(covering_set(families, 1, 4))
]


@pytest.fixture(scope="module")
def references(launcher: RankLauncher, tmp_path_factory: pytest.TempPathFactory) -> References:
    return References(launcher=launcher, directory=tmp_path_factory.mktemp("references"))


@pytest.mark.parametrize(("families", "index"), CASES)
def test_a_layout_trains_as_one_process_would_and_hands_its_state_on(
    launcher: RankLauncher, references: References, tmp_path: Path, families: Families, index: int
) -> None:
    cases = covering_set(families, 1, 4)
    case = cases[index]
    check_case(launcher, tmp_path, case, successor(cases, index), references.of(case))


def test_sgd_with_momentum_resumes_under_another_layout(launcher: RankLauncher, tmp_path: Path) -> None:
    whole = run_sgd(launcher, tmp_path / "whole", 4, "dp1 mb6")
    run_sgd(launcher, tmp_path / "parts", 2, "dp2 mb3 zero3")
    rest = run_sgd(launcher, tmp_path / "parts", 4, "dp1 pp2 mb2", epoch=2)
    assert rest == pytest.approx({step: loss for step, loss in whole.items() if step > 2}, abs=1e-6)


def run_sgd(launcher: RankLauncher, directory: Path, steps: int, text: str, epoch: int = 1) -> dict[int, float]:
    optimizer = {"name": "sgd", "lr": 0.1, "momentum": 0.9}
    fields = job(ModelFamily.GPT, frozenset(), steps).model_dump()
    fields["train"]["optimizer"] = optimizer
    plan = parse_plan(text, layer_count=LAYERS)
    return launcher.run(directory, JobSpec.model_validate(fields), plan, epoch=epoch).losses()


def test_an_evaluation_of_more_samples_than_a_step_counts_each_once_under_given_micro_batch_counts(
    launcher: RankLauncher, tmp_path: Path
) -> None:
    fields = job(ModelFamily.GPT, frozenset(), 1).model_dump()
    count = 2 * fields["train"]["global_batch"] + 1
    fields["train"]["evaluation"] = {"sample_count": count}
    batch = fields["train"]["global_batch"]
    losses = [
        launcher.run(tmp_path / name, JobSpec.model_validate(fields), parse_plan(text, layer_count=LAYERS))
        .reports_of(Evaluated)[0]
        .loss
        for name, text in (
            ("whole", f"dp1 mb{batch}"),
            ("parts", f"[layers={LAYERS} tp1x{batch - 1},tp1x1] mb1"),
        )
    ]
    assert losses[1] == pytest.approx(losses[0], abs=1e-6)
