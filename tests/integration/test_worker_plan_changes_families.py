"""Families with something of their own (routing, masks, convolutions) go through plan changes undisturbed as well.

With all that depends on the step switched on: dropout, a cosine schedule with warm-up, clipping, evaluation.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from arena.domain.capability import unsupported
from arena.domain.job import JobSpec, ModelFamily
from arena.domain.launch import Evaluated, Ready
from arena.domain.parallel import parse_plan
from tests.equivalence import RECORDED, drift, state_digests
from tests.fakes.rank_launcher import Attempt, RankLauncher
from tests.fakes.recorded_samples import samples_by_step

pytestmark = pytest.mark.slow

LAYERS, GLOBAL_BATCH, STEPS, PART_STEPS = 4, 8, 24, 6
ALONE = "dp1 mb8"
# Sums in other orders, with nothing else changed.
REORDERED = ("dp1 mb2", "dp2 mb3")
MODELS: dict[ModelFamily, dict[str, Any]] = {
    ModelFamily.MOE: {"hidden": 24, "heads": 4, "kv_heads": 2, "ffn_hidden": 32, "expert_count": 4},
    ModelFamily.BERT: {"hidden": 24, "heads": 4, "vocab_size": 260},
    ModelFamily.WIDE_RESNET: {
        "hidden": 8,
        "image_size": 8,
        "class_count": 10,
        "group_depths": (2, 2),
        "norm_groups": 4,
    },
}
PLANS = {
    ModelFamily.MOE: (
        "dp2 tp2 mb2 ep2 zero1",
        "[layers=2 tp2 | layers=2 tp1*2] mb1 zero3 sp",
        "dp2 pp2 mb2 interleaved2 ep2 recompute=full",
        "dp4 mb1 ep4 zero2",
    ),
    ModelFamily.BERT: (
        "dp3 mb2 zero3",
        "[layers=3 tp2,tp1 | layers=1 tp1] mb2 sp",
        "tp2 pp2 mb2 gpipe recompute=selective",
        "[layers=4 tp1x3,tp1x5] mb1 zero2",
    ),
    ModelFamily.WIDE_RESNET: (
        "dp3 mb2 zero3",
        "[layers=3 tp2 | layers=1 tp1*2] mb2 zero1",
        "dp2 pp2 mb1 interleaved2 recompute=full",
        "tp2 mb4 recompute=selective",
    ),
}
FAMILIES = tuple(MODELS)


def job(family: ModelFamily, steps: int) -> JobSpec:
    dropout = {} if family is ModelFamily.WIDE_RESNET else {"dropout": 0.1, "attention_dropout": 0.1}
    schedule = {"kind": "cosine", "warmup_steps": 8, "decay_steps": STEPS, "floor_ratio": 0.1}
    train = {
        "model": {"family": family, "layers": LAYERS, "seq_len": 16, **MODELS[family], **dropout},
        "global_batch": GLOBAL_BATCH,
        "optimizer": {"lr": 3e-3, "weight_decay": 0.01, "clip_norm": 0.5, "schedule": schedule},
        "evaluation": {"interval_steps": 4, "sample_count": 6},
        "seed": 11,
    }
    return JobSpec.model_validate({"name": "job", "train": train, "stop": {"steps": steps}})


def run(launcher: RankLauncher, directory: Path, family: ModelFamily, text: str, part: int = 0) -> Attempt:
    """Run to the end, or up to the end of a part."""
    spec, plan = job(family, part * PART_STEPS or STEPS), parse_plan(text, layer_count=LAYERS)
    assert spec.train is not None
    assert unsupported(spec.train, plan) is None
    return launcher.run(directory, spec, plan, epoch=max(part, 1), target=RECORDED)


def evaluations(attempts: Sequence[Attempt]) -> dict[int, float]:
    return {report.step: report.loss for attempt in attempts for report in attempt.reports_of(Evaluated)}


def losses(attempts: Sequence[Attempt]) -> dict[int, float]:
    return {step: loss for attempt in attempts for step, loss in attempt.losses().items()}


def at_steps(values: dict[int, float], like: dict[int, float]) -> dict[int, float]:
    return {step: value for step, value in values.items() if step in like}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_job_that_changes_its_plan_learns_as_if_nothing_had_happened(
    launcher: RankLauncher, tmp_path: Path, family: ModelFamily
) -> None:
    calm = run(launcher, tmp_path / "calm", family, ALONE)
    parts = [run(launcher, tmp_path / "parts", family, text, part) for part, text in enumerate(PLANS[family], start=1)]
    assert sorted(losses(parts)) == list(range(1, STEPS + 1))
    check_state_moves(family, parts)
    check_samples(family, calm, parts)
    reordered = [run(launcher, tmp_path / text, family, text) for text in REORDERED]
    for measured in (losses, evaluations):
        expected = measured([calm])
        allowed = [
            max(several) for several in zip(*(drift(measured([other]), expected) for other in reordered), strict=True)
        ]
        seen = drift(at_steps(measured(parts), expected), expected)
        assert max(allowed) < 1e-2, "the comparison is meaningless if reordering alone changes the run"
        assert all(ours <= 4 * limit + 1e-6 for ours, limit in zip(seen, allowed, strict=True)), (seen, allowed)
    assert sorted(evaluations([calm])) == list(range(4, STEPS + 1, 4))


def check_state_moves(family: ModelFamily, parts: Sequence[Attempt]) -> None:
    """Each part starts from the very state in which the one before ended."""
    plans = [parse_plan(text, layer_count=LAYERS) for text in PLANS[family]]
    for index, (before, after) in enumerate(itertools.pairwise(parts)):
        [ready] = after.reports_of(Ready)
        assert ready.resumed_step == (index + 1) * PART_STEPS
        assert state_digests(after, "start", plans[index + 1]) == state_digests(before, "end", plans[index])


def check_samples(family: ModelFamily, calm: Attempt, parts: Sequence[Attempt]) -> None:
    expected = samples_by_step(calm, parse_plan(ALONE, layer_count=LAYERS), GLOBAL_BATCH)
    seen = [
        step
        for attempt, text in zip(parts, PLANS[family], strict=True)
        for step in samples_by_step(attempt, parse_plan(text, layer_count=LAYERS), GLOBAL_BATCH)
    ]
    assert len(expected) == STEPS
    assert seen == expected


@pytest.mark.parametrize("family", FAMILIES)
def test_the_rates_of_the_schedule_are_what_moves_the_weights(
    launcher: RankLauncher, tmp_path: Path, family: ModelFamily
) -> None:
    """The comparison above would notice another schedule: without warm-up the run is another from step 2 on."""
    steps = 4
    spec = job(family, steps)
    flat = spec.model_dump()
    flat["train"]["optimizer"]["schedule"] = {"kind": "constant"}
    plan = parse_plan(ALONE, layer_count=LAYERS)
    ours = launcher.run(tmp_path / "ours", spec, plan).losses()
    other = launcher.run(tmp_path / "other", JobSpec.model_validate(flat), plan).losses()
    assert ours[1] == other[1]
    assert abs(ours[steps] - other[steps]) > 1e-3
