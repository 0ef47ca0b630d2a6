"""Parameter and operation counts: hand formulas, and the published numbers of known models."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings

from arena.domain.capability import TRAINED_FAMILIES
from arena.domain.job import ModelFamily, ModelSpec, TrainSpec
from arena.domain.parameters import boundary_shape, parameters_of
from arena.planner.activations import Kept
from arena.planner.model import Part, model_cost
from tests.property.train_strategies import trains


def model(**fields: Any) -> ModelSpec:
    return ModelSpec.model_validate(fields)


GPT2 = model(family="gpt", layers=12, hidden=768, heads=12, vocab_size=50257, seq_len=1024, tied_embeddings=True)
LLAMA_7B = model(family="llama", layers=32, hidden=4096, heads=32, ffn_hidden=11008, vocab_size=32000, seq_len=2048)
LLAMA3_8B = model(
    family="llama",
    layers=32,
    hidden=4096,
    heads=32,
    kv_heads=8,
    ffn_hidden=14336,
    vocab_size=128256,
    seq_len=8192,
)
MIXTRAL_8X7B = model(
    family="moe",
    layers=32,
    hidden=4096,
    heads=32,
    kv_heads=8,
    ffn_hidden=14336,
    vocab_size=32000,
    seq_len=4096,
    expert_count=8,
)


@pytest.mark.parametrize(
    ("spec", "published"),
    [
        (GPT2, 124_439_808),
        (LLAMA_7B, 6_738_415_616),
        (LLAMA3_8B, 8_030_261_248),
        (MIXTRAL_8X7B, 46_702_792_704),
    ],
)
def test_known_models_have_their_published_parameter_counts(spec: ModelSpec, published: int) -> None:
    assert model_cost(spec).parameter_count == published


@settings(max_examples=60, deadline=None)
@given(train=trains)
def test_counts_are_those_of_the_parameter_table(train: TrainSpec) -> None:
    spec = train.model
    cost = model_cost(spec)
    assert cost.parameter_count == sum(parameter.element_count for parameter in parameters_of(spec))
    for layer in range(spec.layers):
        own = [parameter for parameter in parameters_of(spec) if parameter.place == layer]
        counts = cost.layer(layer).parameters
        assert counts.expert == sum(one.element_count for one in own if one.expert is not None)
        assert counts.split == sum(one.element_count for one in own if one.is_split and one.expert is None)
        assert counts.replicated == sum(one.element_count for one in own if not one.is_split)
        assert counts.largest == max(one.element_count for one in own)


@settings(max_examples=60, deadline=None)
@given(train=trains)
def test_activations_between_layers_have_the_shape_that_stages_send(train: TrainSpec) -> None:
    spec = train.model
    cost = model_cost(spec)
    for layer in range(spec.layers):
        assert cost.layer(layer).input_elements == elements(boundary_shape(spec, layer))
        assert cost.layer(layer).output_elements == elements(boundary_shape(spec, layer + 1))


def elements(shape: tuple[int, ...]) -> int:
    product = 1
    for size in shape:
        product *= size
    return product


def test_a_small_gpt_by_hand() -> None:
    """h = 4, f = 16, V = 10, s = 8, one layer, untied; the causal mask halves the scores."""
    cost = model_cost(model(family="gpt", layers=1, hidden=4, heads=2, vocab_size=10, seq_len=8))
    attention = (4 * 12 + 12) + (4 * 4 + 4)
    feed_forward = (4 * 16 + 16) + (16 * 4 + 4)
    norms = 2 * (4 + 4)
    assert cost.layer(0).parameters.total == attention + feed_forward + norms
    assert cost.parameter_count == cost.layer(0).parameters.total + (10 + 8) * 4 + (4 + 4) + 10 * 4
    products = 2 * (4 * 12) + 2 * (4 * 4) + 2 * 2 * (4 * 16)
    scores_and_values = 2 * (2 * 8 * 4) // 2
    assert cost.layer(0).flops_per_sample == 8 * (products + scores_and_values)
    assert cost.ending.flops_per_sample == 8 * 2 * 4 * 10


def test_a_small_llama_by_hand() -> None:
    """h = 8, two heads of 4, one key/value head, f = 12, V = 10."""
    cost = model_cost(
        model(family="llama", layers=1, hidden=8, heads=2, kv_heads=1, ffn_hidden=12, vocab_size=10, seq_len=8)
    )
    layer = 8 * 8 + 2 * (8 * 4) + 8 * 8 + 3 * (8 * 12) + 2 * 8
    assert cost.layer(0).parameters.total == layer
    assert cost.parameter_count == layer + 10 * 8 + 8 + 10 * 8


def test_bert_sees_both_sides_and_computes_the_logits_of_every_position() -> None:
    fields = {"layers": 1, "hidden": 64, "heads": 2, "vocab_size": 300, "seq_len": 128}
    bert, gpt = (model_cost(model(family=family, **fields)) for family in ("bert", "gpt"))
    assert bert.layer(0).flops_per_sample - gpt.layer(0).flops_per_sample == 2 * 128**2 * 64
    assert bert.ending.flops_per_sample == 128 * (2 * 64 * 64 + 2 * 64 * 300)


def test_a_mixture_computes_the_experts_that_a_token_is_sent_to() -> None:
    fields: dict[str, Any] = {"layers": 1, "hidden": 64, "heads": 2, "ffn_hidden": 96, "seq_len": 128}
    llama = model_cost(model(family="llama", **fields)).layer(0)
    mixture = model_cost(model(family="moe", expert_count=8, experts_per_token=3, **fields)).layer(0)
    one_expert = 3 * 2 * 64 * 96
    assert mixture.flops_per_sample - llama.flops_per_sample == 128 * (2 * one_expert + 2 * 64 * 8)
    assert mixture.parameters.expert == 8 * 3 * 64 * 96
    assert mixture.parameters.replicated == 8 * 64 + 2 * 64


def test_a_vit_by_hand() -> None:
    """ViT-B/16 with mean pooling: 86.4 million parameters, 17.6e9 multiplications."""
    spec = model(family="vit", layers=12, hidden=768, heads=12, image_size=224, patch_size=16, class_count=1000)
    cost = model_cost(spec)
    layer = 4 * (768**2 + 768) + 2 * 768 * 3072 + 3072 + 768 + 4 * 768
    ends = (16 * 16 * 3 + 1) * 768 + 196 * 768 + 2 * 768 + 1000 * 769
    assert cost.parameter_count == 12 * layer + ends
    assert cost.flops_per_sample / 2 == pytest.approx(17.5e9, rel=0.02)
    assert cost.ending.flops_per_sample == 2 * 768 * 1000


def test_a_wide_resnet_shrinks_its_images_and_grows_its_channels() -> None:
    """WRN-28-10 has 36.5 million parameters and 5.2e9 multiplications as published, with a stem of 16 channels."""
    spec = model(family="wide_resnet", layers=12, hidden=160, group_depths=(4, 4, 4), image_size=32, class_count=10)
    cost = model_cost(spec)
    assert cost.parameter_count == pytest.approx(36.5e6, rel=0.01)
    wider_stem = (3 + 160) * 9 * (160 - 16) * 32**2
    assert cost.flops_per_sample / 2 == pytest.approx(5.2e9 + wider_stem, rel=0.02)
    kept = [sum(tensor.elements for tensor in cost.layer(layer).kept) for layer in (1, 5, 9)]
    assert kept == [kept[0], kept[0] / 2, kept[0] / 4]
    assert cost.layer(1) is cost.layer(3)


def test_six_operations_per_parameter_and_token_where_attention_is_short() -> None:
    """Forward and backward cost about 6 N operations a token once the sequence is short against the width."""
    cost = model_cost(LLAMA_7B.model_copy(update={"seq_len": 1}))
    without_embedding = cost.parameter_count - cost.beginning.parameters.total
    assert 3 * cost.flops_per_sample == pytest.approx(6 * without_embedding, rel=0.001)


def named(part: Part) -> dict[str, Kept]:
    assert len({tensor.name for tensor in part.kept}) == len(part.kept)
    return {tensor.name: tensor for tensor in part.kept}


@pytest.mark.parametrize("family", [family for family in TRAINED_FAMILIES if family is not ModelFamily.WIDE_RESNET])
def test_each_kept_tensor_has_a_name_of_its_own_and_attention_dropout_keeps_the_scores(family: ModelFamily) -> None:
    fields: dict[str, Any] = {"family": family, "layers": 1, "hidden": 64, "heads": 4, "seq_len": 16, "expert_count": 2}
    fields |= {"image_size": 16, "patch_size": 4, "class_count": 10}
    fused = named(model_cost(model(**fields)).layer(0))
    dropping = named(model_cost(model(**fields, attention_dropout=0.1)).layer(0))
    assert fused["log-sums of scores"].elements == 4 * 16
    assert dropping["softmax of scores"].elements == dropping["mask of weights"].elements == 4 * 16**2
    assert "softmax of scores" not in fused
