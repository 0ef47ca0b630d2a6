"""Parameter and operation counts: a hand formula, and the published numbers of known models."""

from __future__ import annotations

from typing import Any

import pytest

from arena.domain.job import ModelSpec
from arena.planner.model import model_cost


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


@pytest.mark.parametrize(
    ("spec", "published"), [(GPT2, 124_439_808), (LLAMA_7B, 6_738_415_616), (LLAMA3_8B, 8_030_261_248)]
)
def test_known_models_have_their_published_parameter_counts(spec: ModelSpec, published: int):
    assert model_cost(spec).parameter_count == published


def test_a_small_gpt_by_hand():
    """h = 4, f = 16, V = 10, s = 8, one layer, untied."""
    cost = model_cost(model(family="gpt", layers=1, hidden=4, heads=2, vocab_size=10, seq_len=8))
    attention = (4 * 12 + 12) + (4 * 4 + 4)
    feed_forward = (4 * 16 + 16) + (16 * 4 + 4)
    norms = 2 * (4 + 4)
    assert cost.layer.parameter_count == attention + feed_forward + norms
    assert cost.parameter_count == cost.layer.parameter_count + (10 + 8) * 4 + (4 + 4) + 10 * 4
    products = 2 * (4 * 12) + 2 * (4 * 4) + 2 * 2 * (4 * 16)
    scores_and_values = 2 * (2 * 8 * 4)
    assert cost.layer.flops_per_token == products + scores_and_values
    assert cost.head_flops_per_token == 2 * 4 * 10


def test_a_small_llama_by_hand():
    """h = 8, two heads of 4, one key/value head, f = 12, V = 10."""
    cost = model_cost(
        model(family="llama", layers=1, hidden=8, heads=2, kv_heads=1, ffn_hidden=12, vocab_size=10, seq_len=8)
    )
    layer = 8 * 8 + 2 * (8 * 4) + 8 * 8 + 3 * (8 * 12) + 2 * 8
    assert cost.layer.parameter_count == layer
    assert cost.parameter_count == layer + 10 * 8 + 8 + 10 * 8


def test_six_operations_per_parameter_and_token_where_attention_is_short():
    """Forward and backward cost about 6 N operations a token once the sequence is short against the width."""
    cost = model_cost(LLAMA_7B.model_copy(update={"seq_len": 1}))
    forward = cost.layer_count * cost.layer.flops_per_token + cost.head_flops_per_token
    embeddings = cost.embedding_parameter_count
    assert 3 * forward == pytest.approx(6 * (cost.parameter_count - embeddings), rel=0.001)
