"""``arena plan --profile``: what was measured is planned with, and what does not belong to the job is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from arena.cli.main import run

MODEL = {"family": "gpt", "layers": 4, "hidden": 256, "heads": 4, "vocab_size": 1024, "seq_len": 128}
JOB = f"name: mine\ntrain: {{model: {json.dumps(MODEL)}, precision: fp32, global_batch: 8}}\n"
CLUSTER = (
    "nodes: [{type: a100-40, count: 1, gpus: 2}, {type: mine, count: 1, gpus: 2}]\ngpu_types: {mine: {like: a10}}\n"
)
PROFILE: dict[str, Any] = {
    "arena_profile": 1,
    "gpu_type": "a100-40",
    "precision": "fp32",
    "model": MODEL,
    "layers": [
        {"layer": layer, "tp": 1, "micro_batch_size": size, "forward_s": 1.0 * size, "backward_s": 2.0 * size}
        for layer in ("beginning", "layer", "ending")
        for size in (1, 8)
    ],
}
SAILOR = {str(size): {"1": {str(unit): [1.0 * size, 2.0 * size, 0.1] for unit in range(6)}} for size in (1, 8)}

Plan = Callable[..., tuple[int, str, str]]


@pytest.fixture
def plan(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Plan:
    """Plans the job on the cluster with a file named ``profile.json``."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.yaml").write_text(JOB)
    (tmp_path / "cluster.yaml").write_text(CLUSTER)

    def call(profile: object, folder: str = ".", *argv: str) -> tuple[int, str, str]:
        (tmp_path / folder).mkdir(exist_ok=True)
        file = tmp_path / folder / "profile.json"
        file.write_text(json.dumps(profile))
        code = run(["plan", "job.yaml", "--cluster", "cluster.yaml", "--profile", str(file), *argv])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def step_s(out: str, group: str) -> float:
    cells = json.loads(out)["cells"]
    return next(float(cell["best"]["estimate"]["iter_time_s"]) for cell in cells if cell["group"]["text"] == group)


@pytest.mark.parametrize(("profile", "folder"), [(PROFILE, "."), (SAILOR, "A100-40")])
def test_measured_times_are_planned_with(plan: Plan, profile: object, folder: str) -> None:
    code, out, _ = plan(profile, folder, "--json")
    assert code == 0
    # Six units of three seconds for each of eight samples.
    assert step_s(out, "a100-40 1") == pytest.approx(6 * 3.0 * 8, rel=0.01)
    assert step_s(out, "mine 1") < 1


def test_a_type_of_the_cluster_file_can_have_a_profile(plan: Plan) -> None:
    _, out, _ = plan(PROFILE | {"gpu_type": "mine"}, ".", "--json")
    assert step_s(out, "a100-40 1") < 1 < step_s(out, "mine 1")


@pytest.mark.parametrize(
    ("profile", "folder", "told"),
    [
        (PROFILE | {"gpu_type": "a100"}, ".", "did you mean"),
        (PROFILE | {"precision": "bf16"}, ".", "it was measured in bf16, the job trains in fp32"),
        (PROFILE | {"model": MODEL | {"hidden": 512}}, ".", "its hidden is 512, the job's 256"),
        (SAILOR, "somewhere", "put it into a folder named after one of"),
        ({"1": {"1": {"0": [1, 2, 3]}}}, "A100-40", "the model has 4"),
        ([], ".", "a profile looks like this"),
    ],
)
def test_a_profile_that_does_not_belong_is_refused_with_what_would_do(
    plan: Plan, profile: object, folder: str, told: str
) -> None:
    code, out, err = plan(profile, folder)
    assert (code, out) == (4, "")
    assert told.lower() in err.lower()
