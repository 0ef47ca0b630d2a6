"""What ranks hold while they train is what the planner's formulas say, within a tenth, under every layout."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from arena.domain.capability import unsupported
from arena.domain.job import JobSpec
from arena.domain.parallel import ParallelPlan, parse_plan
from arena.planner.hardware import catalog
from arena.planner.memory import memory_of_plan
from arena_agent.worker.placement import coordinates
from tests.fakes.rank_launcher import RankLauncher, make_launch

pytestmark = pytest.mark.slow

TARGET = "tests.fakes.memory_target:run_measured"
LAYERS = 4
TOLERANCE = 0.1
TEXT = {"hidden": 128, "heads": 4, "ffn_hidden": 512, "seq_len": 64, "vocab_size": 512}
IMAGES = {"class_count": 10}
MODELS: dict[str, dict[str, Any]] = {
    "gpt": TEXT,
    "llama": {**TEXT, "kv_heads": 2, "ffn_hidden": 384},
    "bert": TEXT,
    "moe": {**TEXT, "ffn_hidden": 256, "expert_count": 4},
    "vit": {"hidden": 128, "heads": 4, "image_size": 32, "patch_size": 4, **IMAGES},
    "wide_resnet": {"hidden": 32, "image_size": 16, "group_depths": (2, 2), **IMAGES},
}
LAYOUTS = (
    "mb4",
    "mb4 recompute=selective",
    "mb4 recompute=full",
    "dp2 mb4 zero1",
    "dp2 mb4 zero2",
    "dp2 mb4 zero3",
    "dp2 ep2 mb4 zero1",
    "tp2 mb4",
    "tp2 mb4 sp",
    "pp2 mb2",
    "pp2 mb2 gpipe",
    "pp2 mb1 interleaved2",
    "dp2 pp2 mb2 zero3",
)


# Built of the same parts as GPT: their own share of tensors is checked where layouts differ most.
FEW_LAYOUTS = ("mb4 recompute=full", "dp2 mb4 zero3", "tp2 mb4 sp", "pp2 mb2")
IN_FULL = frozenset({"gpt", "moe", "wide_resnet"})


def job(family: str, precision: str) -> JobSpec:
    model = {"family": family, "layers": LAYERS, **MODELS[family]}
    train = {"model": model, "global_batch": 16, "precision": precision}
    return JobSpec.model_validate({"name": "job", "train": train, "stop": {"steps": 2}})


def cases() -> Iterator[tuple[str, str, str]]:
    for family in MODELS:
        for text in LAYOUTS if family in IN_FULL else FEW_LAYOUTS:
            train = job(family, "fp32").train
            assert train is not None
            if unsupported(train, parse_plan(text, layer_count=LAYERS)) is None:
                yield family, "fp32", text
    for text in ("mb4", "dp2 mb4 zero1", "dp2 mb4 zero3", "pp2 mb2"):
        yield "gpt", "bf16", text


def test_every_layout_is_measured_for_some_family() -> None:
    assert {text for _, _, text in cases()} == set(LAYOUTS)


@pytest.mark.parametrize(("family", "precision", "text"), tuple(cases()))
def test_a_layout_holds_what_the_formulas_say(
    launcher: RankLauncher, tmp_path: Path, family: str, precision: str, text: str
) -> None:
    spec, plan = job(family, precision), parse_plan(text, layer_count=LAYERS)
    attempt = launcher.launch(tmp_path, make_launch(tmp_path, spec, plan), target=TARGET).finish()
    for stage, rank in first_ranks(plan).items():
        measured = json.loads((attempt.directory / f"memory-{rank}.json").read_text())
        state_bytes, peak_bytes = predicted(spec, plan, stage)
        assert measured["state"] == pytest.approx(state_bytes, rel=TOLERANCE), f"state of stage {stage}"
        assert measured["peak"] == pytest.approx(peak_bytes, rel=TOLERANCE), f"peak of stage {stage}"


def first_ranks(plan: ParallelPlan) -> dict[int, int]:
    """Return the first rank of each stage."""
    return {at.stage: at.rank for at in reversed(coordinates(plan))}


def predicted(spec: JobSpec, plan: ParallelPlan, stage: int) -> tuple[float, float]:
    """Return the bytes of the state and of the peak, without what is not tensors."""
    assert spec.train is not None
    memory = memory_of_plan(spec.train, plan, catalog()["cpu"])
    total = memory.total - memory.context
    return float(memory.state[0, stage]), float(total[0, stage])
