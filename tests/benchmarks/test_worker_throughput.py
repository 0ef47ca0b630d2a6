"""The worker's throughput beside a hand-written torch loop (DDP, ZeRO optimizer, FSDP2) on the same ranks.

Both train in the same processes, in turns of a few steps, so that what else the machine does falls on both alike; the
losses must agree. Speed is printed, with the aim: at most 3 % slower.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator
from pathlib import Path

import pytest

from arena.domain.job import JobSpec
from arena.domain.parallel import parse_plan
from tests.fakes.rank_launcher import RankLauncher, make_launch

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(1200)]

AIM = 1.03
RANK = "tests.benchmarks.throughput_ranks:run_pair"
TURN_COUNT = 12
STEPS = 1
MODELS = {
    "gpt": {"family": "gpt", "vocab_size": 256},
    "llama": {"family": "llama", "vocab_size": 256},
    "gpt, vocabulary 8192": {"family": "gpt", "vocab_size": 8192},
}
PLANS = ["dp1 mb8", "dp1 mb2", "dp2 mb4", "dp2 mb1", "dp2 mb4 zero1", "dp2 mb1 zero1", "dp2 mb4 zero3", "dp2 mb1 zero3"]


@pytest.fixture(scope="module")
def launcher() -> Iterator[RankLauncher]:
    launcher = RankLauncher.start()
    yield launcher
    launcher.close()


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("model", MODELS)
def test_throughput_beside_plain_torch(
    model: str, plan: str, launcher: RankLauncher, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = measured(launcher, tmp_path, model, plan)
    with capsys.disabled():
        print(f"\n{model}, {plan}: {row(result)}")
    assert result["losses"]["arena"] == pytest.approx(result["losses"]["plain"], abs=1e-4)


def measured(launcher: RankLauncher, directory: Path, model: str, plan: str) -> dict[str, dict[str, list[float]]]:
    launch = make_launch(directory, job(model), parse_plan(plan, layer_count=4))
    path = directory / "throughput.json"
    environ = {"BENCH_TURNS": str(TURN_COUNT), "BENCH_STEPS_PER_TURN": str(STEPS), "BENCH_RESULT": str(path)}
    launcher.launch(directory, launch, target=RANK, environ=environ).finish(600)
    result: dict[str, dict[str, list[float]]] = json.loads(path.read_text())
    return result


def job(model: str) -> JobSpec:
    shape = {"layers": 4, "hidden": 256, "heads": 8, "seq_len": 128, **MODELS[model]}
    optimizer = {"lr": 1e-3, "weight_decay": 0.1, "clip_norm": 1.0}
    train = {"model": shape, "global_batch": 8, "seed": 3, "optimizer": optimizer}
    return JobSpec.model_validate({"name": "job", "train": train, "stop": {"steps": 100_000}})


def row(result: dict[str, dict[str, list[float]]]) -> str:
    wall, cpu = result["wall_s"], result["cpu_s"]
    ratio = statistics.median(wall["arena"]) / statistics.median(wall["plain"])
    cpu_ratio = statistics.median(cpu["arena"]) / statistics.median(cpu["plain"])
    pairs = sorted(ours / theirs for ours, theirs in zip(wall["arena"], wall["plain"], strict=True))
    verdict = "met" if ratio <= AIM else "not met"
    return (
        f"a step takes {statistics.median(wall['arena']) * 1e3:.0f} ms, plain torch's"
        f" {statistics.median(wall['plain']) * 1e3:.0f} ms; ratio {ratio:.3f}, turn by turn {pairs[0]:.3f} /"
        f" {statistics.median(pairs):.3f} / {pairs[-1]:.3f} (min / median / max), CPU time {cpu_ratio:.3f};"
        f" aim {AIM:.2f}: {verdict}"
    )
