"""Bad input to ``arena plan`` and the planner: an error that says what would work, and never a hang or a crash."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from arena.cli.main import run
from arena.domain.capability import job_refusals
from arena.domain.huggingface import model_fields_of_config
from arena.domain.job import JobSpec, ModelSpec, TrainSpec
from arena.domain.limits import contradictions
from arena.domain.parallel import parse_plan
from arena.errors import SpecError
from arena.planner.hardware import catalog
from arena.planner.model import model_cost
from arena.planner.source import PlannerGridSource
from tests.builders import shape, train_spec
from tests.fakes.command_line import Arena, Done
from tests.unit.test_published_models import EXACT

JOB = """
name: mine
train:
  model: {family: gpt, layers: 12, hidden: 768, heads: 12, vocab_size: 50304, seq_len: 1024}
  precision: bf16
  global_batch: 64
"""
CLUSTER = """
nodes:
  - {type: a100-40, count: 2, gpus: 4, zone: east}
  - {type: t4, count: 1, gpus: 2, zone: west}
"""


@pytest.fixture
def arena(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Arena:
    """Runs ``arena plan job.yaml --cluster cluster.yaml`` with further words, in a directory with these files."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.yaml").write_text(JOB)
    (tmp_path / "cluster.yaml").write_text(CLUSTER)

    def call(*argv: str) -> Done:
        code = run(["plan", "job.yaml", "--cluster", "cluster.yaml", *argv])
        captured = capsys.readouterr()
        return Done(code, captured.out, captured.err)

    return call


def setting(**values: object) -> list[str]:
    return [word for name, value in values.items() for word in ("--set", f"{name.replace('__', '.')}={value}")]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (setting(train__model__heads=7), "hidden (768) must be a multiple of heads (7); heads could be 6 or 8"),
        (setting(train__model__kv_heads=5), "heads (12) must be a multiple of kv_heads (5); kv_heads could be 4 or 6"),
        (setting(train__model__hidden=-768), "train.model.hidden: got -768; allowed: at least 1"),
        (setting(train__model__hidden=2**40), f"train.model.hidden: got {2**40}; allowed: at most {2**32 - 1}"),
        (setting(train__model__layers=0), "train.model.layers: got 0; allowed: at least 1"),
        (setting(train__model__layers=10**9), "model.layers = 1000000000 is more than 4096"),
        (setting(train__model__family="gtp"), "got 'gtp', did you mean 'gpt'?; allowed: gpt, llama, bert"),
        (setting(train__model__family="t5"), "a model of family t5 needs encoder_layers"),
        (setting(train__model__variant__kv_rank=8), "variant.kv_rank is for llama, moe, the model is of family gpt"),
        (setting(train__model__variant__windw=8), "unknown field; allowed: activation, attention_bias"),
        (setting(train__precision="bf61"), "got 'bf61', did you mean 'bf16'?; allowed: fp32, bf16, fp16"),
        (setting(train__precision="fp16"), "precision fp16 needs loss scaling"),
        (setting(train__global_batch=0), "train.global_batch: got 0; allowed: at least 1"),
        (setting(train__global_batch=2 * 10**9), "train.global_batch = 2000000000 is more than 1048576"),
        (setting(train__global_batch=10**18), f"train.global_batch: got {10**18}; allowed: at most {2**32 - 1}"),
        (setting(gpus__types="[a100]"), "no a100 GPUs in this cluster (a100-40, t4), did you mean 'a100-40'?"),
        (["--type", "a100"], "no a100 GPUs in this cluster. --type is one of a100-40, t4"),
        (setting(gpus__count=11), "needs at least 11 GPUs, largest feasible now: 8"),
        (setting(gpus__count=8, gpus__nodes_max=1), "needs at least 8 GPUs, largest feasible now: 4"),
        (setting(gpus__min=8, gpus__max=4), "min (8) is greater than max (4)"),
        (setting(gpus__count=8, gpus__max=4), "give either count, or min and max, not both"),
        (
            setting(gpus__count=8, train__global_batch=2, parallel__tp_max=1, parallel__pp_max=1),
            "global batch = 2: dp at most 2; with what else is allowed dp is at least 8: a batch of 8 would do",
        ),
        (
            setting(gpus__count=8, parallel__tp_max=2, parallel__pp_max=1, parallel__dp_max=3),
            "dp_max 3 x tp_max 2 x pp_max 1 is at most 6 GPUs, gpus.count is 8; at most 6 would do",
        ),
        (
            setting(parallel__plan="dp4 tp2 pp1 mb1", gpus__count=4),
            "parallel.plan 'dp4 tp2 pp1 mb1' is for 8 GPUs, gpus.count is 4; leave out gpus, or the plan",
        ),
        (
            setting(parallel__plan="dp4 tp2", parallel__dp_max=2),
            "has 4, dp_max is 2; leave it out, or make it at least 4",
        ),
        (setting(parallel__plan="dp4 zero3", parallel__zero="[0, 1]"), "has zero3, allowed is 0, 1"),
        (setting(parallel__plan="dp4 tp"), "parallel.plan"),
        (["--explain", "tp8"], "tp8 does not divide model.heads = 12; possible: tp in {1, 2, 3, 4, 6, 12}"),
        (["--explain", "dp128"], "possible: dp at most 64, or a batch of at least 128"),
        (["--explain", "pp13"], "12"),
    ],
)
def test_a_bad_job_is_told_what_would_do(arena: Arena, words: list[str], said: str) -> None:
    done = arena(*words)
    assert said in " ".join((done.out + done.err).split())
    assert done.code == 4


@pytest.mark.parametrize(
    ("cluster", "said"),
    [
        (
            "nodes: [{type: a100-4, gpus: 8}]",
            "unknown GPU type 'a100-4', did you mean 'a100-40'?; known: a10, a100-40",
        ),
        ("nodes: [{type: t4, gpus: 0}]", "nodes.0.gpus: got 0; allowed: at least 1"),
        ("nodes: [{type: t4, gpus: -8}]", "nodes.0.gpus: got -8; allowed: at least 1"),
        ("nodes: [{type: t4, gpus: 8, count: 1000000}]", "nodes.0.count: got 1000000; allowed: at most 16384"),
        (
            "nodes: [{type: t4, gpus: 8}]\ngpu_types: {t4: {link_gb_per_s: 0}}",
            "gpu_types.t4.link_gb_per_s: got 0; allowed: at least 0.001 (in the catalog ",
        ),
        (
            "nodes: [{type: t4, gpus: 8}]\ngpu_types: {t4: {network_gb_per_s: -1}}",
            "gpu_types.t4.network_gb_per_s: got -1; allowed: at least 0.001 (in the catalog ",
        ),
        (
            "nodes: [{type: t4, gpus: 8}]\ngpu_types: {t4: {memory_gb_per_s: .inf}}",
            "gpu_types.t4.memory_gb_per_s: input should be a finite number",
        ),
        ("nodes: []", "nodes: is empty; a cluster file looks like this"),
        ("nodes: [{type: t4, gpus: 8", "cluster.yaml:1"),
    ],
)
def test_a_bad_cluster_is_told_what_would_do(arena: Arena, tmp_path: Path, cluster: str, said: str) -> None:
    (tmp_path / "cluster.yaml").write_text(cluster)
    done = arena()
    assert said in " ".join((done.out + done.err).split())
    assert done.code == 4


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is no JSON"),
        (b'{"model_type": "llama", "hidden_si', "is no JSON"),
        (b"[" * 100_000, "is no JSON"),
        (b"\xff\xfe\x00", "is no UTF-8 text"),
        (b"[]", "is no JSON object: it holds a list"),
        (b"{}", "describes a model of type None. Supported model types: bert, deepseek"),
        (b'{"model_type": "lama"}', "of type 'lama', did you mean 'llama'?. Supported model types: bert"),
        (b'{"model_type": "llama"}', "lacks 'num_hidden_layers'"),
        (b'{"model_type": "' + b"x" * 10_000 + b'"}', "Supported model types"),
        (b'{"model_type": "llama", "x": ' + b"9" * 10_000 + b"}", "is no JSON"),
        (b" " * (1024 * 1024 + 1), "is larger than 1024 KiB: a specification is small"),
    ],
)
def test_a_bad_config_is_told_with_its_place(arena: Arena, tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / "config.json").write_bytes(content)
    done = arena("--set", "train.model={config: config.json}")
    assert "--set train.model: train.model.config: " in done.err or "config.json" in done.err
    assert said in done.err
    assert len(done.err) < 1000
    assert done.code == 4


@pytest.mark.parametrize("path", ["/dev/zero", "missing.json", "/", "a\tb.json"])
def test_a_config_that_is_no_file_is_refused_and_not_read_for_ever(arena: Arena, path: str) -> None:
    done = arena("--set", f"train.model.config={json.dumps(path)}")
    assert "train.model.config: " in done.err
    assert done.code == 4


junk = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=5),
    st.lists(st.integers(-3, 3), max_size=3),
    st.dictionaries(st.sampled_from(["type", "rope_type", "factor"]), st.integers(), max_size=2),
)


@settings(max_examples=300, deadline=None)
@given(name=st.sampled_from(sorted(EXACT)), data=st.data())
def test_a_config_with_anything_in_it_is_read_or_refused(name: str, data: st.DataObject) -> None:
    config: dict[str, Any] = dict(EXACT[name][0])
    for key in data.draw(st.sets(st.sampled_from(sorted(config)), min_size=1, max_size=3)):
        if key != "model_type":
            config[key] = data.draw(junk)
    with suppress(SpecError, ValidationError):
        spec = ModelSpec.model_validate(model_fields_of_config(json.dumps(config), "config.json"))
        if not list(job_refusals(TrainSpec(model=spec, global_batch=1), beyond_worker=True)):
            assert model_cost(spec).parameter_count > 0


@settings(max_examples=100, deadline=None)
@given(name=st.sampled_from(sorted(EXACT)), share=st.floats(0, 1, exclude_max=True))
def test_a_truncated_config_is_refused(name: str, share: float) -> None:
    text = json.dumps(EXACT[name][0])
    with pytest.raises(SpecError):
        model_fields_of_config(text[: int(share * len(text))], "config.json")


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["link_bandwidth_bytes_per_s", "network_bandwidth_bytes_per_s", "memory_bytes"])
def test_a_gpu_type_without_bandwidth_or_memory_is_refused_where_it_is_made(name: str, value: float) -> None:
    with pytest.raises(SpecError, match=rf"{name} of GPU type t4 is .*greater than 0, and finite"):
        replace(catalog()["t4"], **{name: value})


def test_a_gpu_type_needs_a_peak_for_fp32() -> None:
    with pytest.raises(SpecError, match="has no peak for fp32"):
        replace(catalog()["t4"], peak_flops_per_s={"fp16": 1e12})


def job(**fields: Any) -> JobSpec:
    return JobSpec.model_validate({**train_spec().model_dump(exclude={"gpus", "parallel"}), **fields})


@pytest.mark.parametrize(
    "fields",
    [
        {"gpus": {"count": 4}, "parallel": {"plan": "dp8"}},
        {"gpus": {"max": 4}, "parallel": {"plan": "dp8"}},
        {"parallel": {"plan": "tp2", "tp_max": 1}},
        {"parallel": {"plan": "mb4", "micro_batch_max": 2}},
        {"parallel": {"plan": "pp2 gpipe", "schedules": ["1f1b"]}},
        {"gpus": {"types": ["t4"]}, "parallel": {"plan": "[layers=4 tp1@a100-40]"}},
        {"gpus": {"count": 8}, "parallel": {"dp_max": 2, "tp_max": 2, "pp_max": 1}},
    ],
)
def test_bounds_that_cannot_hold_together_leave_no_cell_and_say_why(fields: dict[str, Any]) -> None:
    """As somebody without the command line meets them."""
    spec = job(**fields)
    found = next(contradictions(spec))
    grid = PlannerGridSource().grid(spec, shape(("a100-40", 2, 8), ("t4", 2, 8)))
    assert not grid.cells
    assert {str(one.reason) for one in grid.infeasible} == {found.text}


@pytest.mark.parametrize("plan", ["dp2 tp2 pp1 mb1", "pp2 mb2 gpipe zero0", "dp4 zero1"])
def test_bounds_that_a_plan_keeps_are_no_contradiction(plan: str) -> None:
    pinned = parse_plan(plan, layer_count=2)
    limits = {"plan": plan, "dp_max": 4, "tp_max": 2, "pp_max": 2, "micro_batch_max": 2, "zero": [0, 1]}
    spec = job(gpus={"count": pinned.gpu_count}, parallel=limits)
    assert not list(contradictions(spec))
