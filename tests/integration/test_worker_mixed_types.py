"""A plan over several GPU types trains as one process would: its ranks go by type, across stages and replicas."""

from __future__ import annotations

from pathlib import Path

import pytest

from arena.domain.job import ModelFamily
from arena.domain.parallel import parse_plan
from tests.covering_plans import GLOBAL_BATCH, LAYERS, job
from tests.fakes.rank_launcher import RankLauncher

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("family", [ModelFamily.GPT, ModelFamily.WIDE_RESNET])
@pytest.mark.parametrize(
    "text",
    [
        # Every chain goes to and fro between types, and micro-batches leave their chain.
        "[layers=3 tp1@b,tp1@a | layers=2 tp1@a,tp1@b] mb1",
        "[layers=2 tp1@bx4,tp1@ax2 | layers=3 tp2@a] mb1",
        # A later stage has the lower ranks.
        "[layers=1 tp1@b | layers=2 tp1@a*2 | layers=2 tp1@b] mb2 gpipe",
    ],
)
def test_a_plan_over_two_types_trains_as_one_process_would_and_hands_its_state_on(
    launcher: RankLauncher, tmp_path: Path, family: ModelFamily, text: str
) -> None:
    spec = job(family, frozenset(), 4)
    whole = launcher.run(tmp_path / "whole", spec, parse_plan(f"dp1 mb{GLOBAL_BATCH}", layer_count=LAYERS))
    mixed = parse_plan(text, layer_count=LAYERS)
    first = launcher.run(tmp_path / "mixed", job(family, frozenset(), 2), mixed)
    rest = launcher.run(tmp_path / "mixed", spec, parse_plan("dp2 mb3", layer_count=LAYERS), epoch=2)
    back = launcher.run(tmp_path / "mixed", job(family, frozenset(), 6), mixed, epoch=3)

    losses = {**first.losses(), **rest.losses()}
    assert losses == pytest.approx(whole.losses(), abs=1e-5)
    assert sorted(back.losses()) == [5, 6]
