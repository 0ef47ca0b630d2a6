"""``arena plan`` of models that the worker does not train: refused with the reason, and offered where that is asked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from arena.cli.main import run
from tests.fakes.command_line import Arena, Done
from tests.unit.test_published_models import EXACT

JOB = """
name: big
train:
  model: {config: config.json, seq_len: 512}
  data: {source: tokens, path: train.bin}
  precision: bf16
  global_batch: 64
"""
CLUSTER = "nodes: [{type: h100, count: 16, gpus: 8}]"


@pytest.fixture
def arena(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Arena:
    """Runs ``arena plan job.yaml --cluster cluster.yaml`` for a published model, with further words."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.yaml").write_text(JOB)
    (tmp_path / "cluster.yaml").write_text(CLUSTER)

    def call(name: str, *argv: str) -> Done:
        (tmp_path / "config.json").write_text(json.dumps(EXACT[name][0]))
        code = run([*argv[:1], "plan", "job.yaml", "--cluster", "cluster.yaml", *argv[1:]])
        captured = capsys.readouterr()
        return Done(code, captured.out, captured.err)

    return call


@pytest.mark.parametrize(
    ("name", "gpus", "why"),
    [
        ("google-t5/t5-11b", 8, "the worker trains no encoder-decoder (t5)"),
        ("facebook/opt-30b", 16, "the worker's feed-forward layer has its family's activation"),
        ("EleutherAI/gpt-neo-2.7B", 8, "the worker attends to all positions"),
        ("deepseek-ai/DeepSeek-V2", 128, "the worker has no latent attention"),
        ("Qwen/Qwen3-30B-A3B", 16, "the worker does not normalise queries and keys"),
    ],
)
def test_a_model_that_is_planned_only_needs_the_flag(arena: Arena, name: str, gpus: int, why: str) -> None:
    refused = arena(name, "--json", "--gpus", str(gpus))
    assert refused.code == 4
    assert not refused.document["cells"]
    assert all(why in one["text"] for one in texts(refused))
    offered = arena(name, "--json", "--gpus", str(gpus), "--also-unsupported")
    assert offered.code == 0
    assert offered.document["cells"]


def texts(done: Done) -> list[dict[str, str]]:
    return [{"text": json.dumps(one)} for one in done.document["infeasible"]]


def test_a_plan_of_ones_own_is_priced_beyond_the_worker_but_not_beyond_the_model(arena: Arena) -> None:
    plan = "dp4 tp2 pp2 mb1 zero1"
    refused = arena("google-t5/t5-3b", "--json", "--explain", plan)
    assert refused.code == 4
    assert "encoder-decoder" in " ".join(refused.document["refusals"])
    priced = arena("google-t5/t5-3b", "--json", "--explain", plan, "--also-unsupported")
    assert priced.code == 0
    assert all(group["estimate"]["iter_time_s"] > 0 for group in priced.document["groups"] if not group["refusals"])
    impossible = arena("google-t5/t5-3b", "--json", "--explain", "dp2 ep2", "--also-unsupported")
    assert impossible.code == 4
    assert "the model has no experts" in " ".join(impossible.document["refusals"])


def test_a_mistral_within_its_window_needs_no_flag(arena: Arena) -> None:
    done = arena("mistralai/Mistral-7B-v0.1", "--json", "--gpus", "8")
    assert done.code == 0
    assert done.document["cells"]


def test_people_are_told_the_flag_where_it_would_help(arena: Arena) -> None:
    told = "--also-unsupported plans it nevertheless"
    assert told in arena("facebook/opt-30b", "-v").out
    assert told not in arena("facebook/opt-30b", "-v", "--also-unsupported").out
