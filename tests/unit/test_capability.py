"""What the capability table says of jobs and plans: yes to what runs, a reason with numbers for the rest."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arena.domain.capability import (
    REFUSALS,
    TRAINED_FAMILIES,
    Feature,
    features_of,
    job_refusals,
    refusals,
    tensor_parallel_dimensions,
    unsupported,
)
from arena.domain.divisors import divisors
from arena.domain.job import ModelFamily, TrainSpec
from arena.domain.parallel import ParallelPlan, Replica, Stage, parse_plan
from tests.property.train_strategies import trains

LAYERS = 6
SHAPES: Mapping[ModelFamily, Mapping[str, Any]] = {
    ModelFamily.GPT: {"heads": 12, "kv_heads": 4, "ffn_hidden": 96},
    ModelFamily.LLAMA: {"heads": 12, "kv_heads": 4, "ffn_hidden": 96},
    ModelFamily.BERT: {"heads": 12, "ffn_hidden": 96, "vocab_size": 260},
    ModelFamily.MOE: {"heads": 12, "ffn_hidden": 96, "expert_count": 6},
    ModelFamily.VIT: {"heads": 12, "ffn_hidden": 96, "image_size": 16, "patch_size": 4, "class_count": 10},
    ModelFamily.WIDE_RESNET: {"group_depths": (2, 2, 2), "image_size": 16, "class_count": 10},
}


def job(family: ModelFamily = ModelFamily.LLAMA, model: Mapping[str, Any] | None = None, **train: Any) -> TrainSpec:
    fields = {"family": family, "layers": LAYERS, "hidden": 48, **SHAPES[family], **(model or {})}
    return TrainSpec.model_validate({"model": fields, "global_batch": 8, **train})


def plan_of(text: str) -> ParallelPlan:
    return parse_plan(text, layer_count=LAYERS)


EVERY_FAMILY = (
    "dp1",
    "dp3 mb2",
    "dp8 zero1",
    "dp2 zero2 mb4",
    "dp2 tp2 pp2 zero3",
    "tp4",
    "pp3",
    "pp2 gpipe",
    "pp3 interleaved2",
    "pp2 layers=1,5",
    "pp2 layers=5,1 mb8",
    "dp2 recompute=full",
    "tp2 recompute=selective",
    "[layers=3 tp2 | layers=3 tp1*2]",
    "[layers=6 tp2,tp1]",
    "[layers=6 tp1x3,tp1x5]",
    "[layers=6 tp1@a100/z1,tp1@t4/z2] zero3",
    "[layers=4 tp1*3 | layers=2 tp1x3,tp1x5]",
)


@pytest.mark.parametrize("family", TRAINED_FAMILIES)
@pytest.mark.parametrize("text", EVERY_FAMILY)
def test_every_family_runs_these(family: ModelFamily, text: str) -> None:
    assert list(refusals(job(family), plan_of(text))) == []


@pytest.mark.parametrize("family", [family for family in TRAINED_FAMILIES if family is not ModelFamily.WIDE_RESNET])
def test_transformers_run_sequence_parallel_with_dropout(family: ModelFamily) -> None:
    assert unsupported(job(family, {"dropout": 0.1}), plan_of("tp4 sp")) is None


def test_a_mixture_spreads_its_experts() -> None:
    assert unsupported(job(ModelFamily.MOE), plan_of("dp6 tp2 ep3 zero1")) is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("tp3", "tp3 does not divide model.kv_heads = 4; possible: tp in {1, 2, 4}"),
        ("tp8", "tp8 does not divide model.heads = 12; possible: tp in {1, 2, 4}"),
        ("[layers=3 tp2 | layers=3 tp8]", "tp8 does not divide model.heads = 12"),
        ("dp9", "dp9 exceeds the global batch of 8: a replica would have no sample"),
        ("[layers=3 tp1 | layers=3 tp1*9]", "dp9 exceeds the global batch of 8"),
        ("dp2 ep2", "the model has no experts"),
        ("sp", "sequence parallelism shards over tensor parallelism, the plan has tp1"),
        ("pp1 interleaved2", "the interleaved schedule needs pp of at least 2"),
        ("[layers=3 tp1*2 | layers=3 tp1] interleaved2", "needs the same replicas on every stage"),
        ("pp2 layers=1,5 interleaved2", "a stage with fewer layers than its 2 virtual stages"),
        ("[layers=6 tp1x3,tp1]", "micro-batch counts for some replicas and not for others"),
        ("[layers=6 tp1x3,tp1x4]", "7 micro-batches of 1 do not hold the batch of 8"),
        ("[layers=3 tp1x4,tp1x4 | layers=3 tp1x9]", "stages run 8 and 9 micro-batches; each runs all of them"),
        ("[layers=6 tp1x8,tp1x2]", "replica 1 of stage 0 has no micro-batch in a batch of 8"),
    ],
)
def test_these_do_not_run_and_say_why(text: str, reason: str) -> None:
    assert any(reason in said for said in refusals(job(), plan_of(text)))


@pytest.mark.parametrize(
    ("family", "text", "reason"),
    [
        (ModelFamily.MOE, "dp4 ep4", "ep4 does not divide model.expert_count = 6"),
        (ModelFamily.MOE, "dp4 ep3", "ep3 does not divide dp4: experts are spread over replicas"),
        (ModelFamily.MOE, "[layers=6 tp2,tp1] ep2", "needs the same tp on every replica of a stage"),
        (ModelFamily.WIDE_RESNET, "tp2 sp", "convolutions have no sequence to shard"),
        (ModelFamily.WIDE_RESNET, "tp3", "tp3 does not divide model.norm_groups = 8; possible: tp in {1, 2, 4, 8}"),
        (ModelFamily.VIT, "tp3 sp", "sp over tp3 does not divide the sequence of 16"),
        (ModelFamily.BERT, "tp8", "tp8 does not divide model.heads = 12; possible: tp in {1, 2, 4}"),
    ],
)
def test_families_have_refusals_of_their_own(family: ModelFamily, text: str, reason: str) -> None:
    assert any(reason in said for said in refusals(job(family), plan_of(text)))


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        (job(precision="fp16"), "precision fp16 needs loss scaling, which the worker does not do; use bf16 or fp32"),
        (job(model={"vocab_size": 100}), "byte-level text needs model.vocab_size of at least 256, it is 100"),
        (
            job(ModelFamily.BERT, {"vocab_size": 255}),
            "byte-level text needs model.vocab_size of at least 256, it is 255",
        ),
        (
            job(data={"path": "book.txt"}),
            "train.data.path is given, but what is built in has none: add source: text or tokens",
        ),
        (
            job(ModelFamily.VIT, data={"source": "builtin", "path": "pictures"}),
            "train.data.path is given, but what is built in has none: add source: images",
        ),
        (
            job(evaluation={"data": {"path": "held-out.txt"}}),
            "train.evaluation.data.path is given, but what is built in has none: add source: text or tokens",
        ),
        (job(ModelFamily.VIT, {"tied_embeddings": True}), "image models have no vocabulary to tie"),
        (job(ModelFamily.WIDE_RESNET, {"dropout": 0.1}), "the Wide-ResNet is built without dropout"),
        (job(model={"layers": 5000}), "model.layers = 5000 is more than 4096"),
        (job(ModelFamily.MOE, {"expert_count": 5000}), "model.expert_count = 5000 is more than 4096"),
    ],
)
def test_jobs_that_no_plan_helps(spec: TrainSpec, reason: str) -> None:
    assert any(reason in said for said in job_refusals(spec))
    assert set(job_refusals(spec)) <= set(refusals(spec, plan_of("dp1")))


def test_tied_embeddings_run_over_a_pipeline() -> None:
    assert unsupported(job(model={"tied_embeddings": True}), plan_of("pp2")) is None


def test_a_plan_for_another_model_is_refused_with_both_numbers() -> None:
    plan = ParallelPlan(stages=(Stage(layer_count=5, replicas=(Replica(),)),))
    assert unsupported(job(), plan) == "the plan places 5 layers, the model has 6"


def test_image_models_and_token_files_need_no_bytes() -> None:
    tokens = {"source": "tokens", "path": "/data/tokens.bin"}
    assert list(job_refusals(job(model={"vocab_size": 100}, data=tokens))) == []
    assert list(job_refusals(job(ModelFamily.VIT, {"vocab_size": 100}))) == []


@settings(max_examples=80, deadline=None)
@given(train=trains, tp=st.integers(2, 9))
def test_every_degree_that_a_refusal_offers_divides_and_every_other_does_not(train: TrainSpec, tp: int) -> None:
    said = [text for text in refusals(train, tensor_parallel(train, tp)) if "possible: tp in" in text]
    sizes = tensor_parallel_dimensions(train.model)
    assert bool(said) == any(size % tp for size in sizes.values())
    for text in said:
        hint = re.search(r"possible: tp in \{(.*)\}", text)
        assert hint is not None
        offered = [int(number) for number in hint[1].split(", ")]
        assert offered == [
            degree for degree in range(1, max(sizes.values()) + 1) if all(size % degree == 0 for size in sizes.values())
        ]
        for degree in offered:
            told = refusals(train, tensor_parallel(train, degree))
            assert not any("possible: tp in" in other for other in told)


def tensor_parallel(train: TrainSpec, tp: int) -> ParallelPlan:
    return ParallelPlan.uniform(layer_count=train.model.layers, tp=tp)


@settings(deadline=None)
@given(number=st.integers(1, 5000))
def test_divisors_are_all_of_them_in_order(number: int) -> None:
    assert divisors(number) == [candidate for candidate in range(1, number + 1) if number % candidate == 0]


@pytest.mark.parametrize(
    ("text", "features"),
    [
        ("dp1", set()),
        ("dp2 tp2 pp2 sp zero3", {"dp", "tp", "pp", "sp", "zero3"}),
        ("pp2 interleaved2 recompute=full", {"pp", "interleaved", "recompute=full"}),
        ("pp2 gpipe layers=1,5 recompute=selective", {"pp", "gpipe", "uneven layers", "recompute=selective"}),
        ("dp2 ep2 zero1", {"dp", "ep", "zero1"}),
        ("[layers=3 tp1*2 | layers=3 tp1]", {"dp", "pp", "dp by stage"}),
        ("[layers=6 tp2,tp1] zero2", {"dp", "tp", "tp by stage or replica", "zero2"}),
        ("[layers=6 tp1x3,tp1x5]", {"dp", "unequal micro-batches"}),
    ],
)
def test_features_are_what_a_plan_asks_for(text: str, features: set[str]) -> None:
    assert features_of(job(), plan_of(text)) == {Feature(name) for name in features}


def test_features_of_the_job_count_as_well() -> None:
    spec = job(model={"tied_embeddings": True, "attention_dropout": 0.1}, precision="bf16")
    assert features_of(spec, plan_of("dp1")) == {Feature.TIED_EMBEDDINGS, Feature.DROPOUT, Feature.BF16}


@pytest.mark.parametrize("family", TRAINED_FAMILIES)
def test_each_refusal_of_the_table_is_one_that_a_job_can_meet(family: ModelFamily) -> None:
    asked = {
        Feature.FP16: (job(family, precision="fp16"), "dp1"),
        Feature.EXPERT_PARALLEL: (job(family), "dp2 ep2"),
        Feature.TIED_EMBEDDINGS: (job(family, {"tied_embeddings": True}), "dp1"),
        Feature.SEQUENCE_PARALLEL: (job(family), "tp2 sp"),
        Feature.DROPOUT: (job(family, {"dropout": 0.1}), "dp1"),
    }
    for feature, text in REFUSALS[family].items():
        spec, plan = asked[feature]
        assert text in list(refusals(spec, plan_of(plan)))
