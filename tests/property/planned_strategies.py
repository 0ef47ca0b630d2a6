"""Strategies of models that only the planner knows: encoder-decoders, and variants of the other families."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from arena.domain.job import ModelFamily, TrainSpec

_CHOICES: dict[ModelFamily, tuple[dict[str, Any], ...]] = {
    ModelFamily.GPT: (
        {"activation": "relu", "position_count": 4098},
        {"activation": "relu", "position_count": 2050, "embedding_size": 32, "post_norm": True},
        {"attention_bias": "output", "attention_window": 16, "window_period": 2},
    ),
    ModelFamily.LLAMA: (
        {"attention_window": 48},
        {"attention_bias": "qkv", "rope_scaling": "yarn"},
        {"qk_norm": True, "head_size": 32},
        {"kv_rank": 64, "rotary_head_size": 8, "head_size": 24, "value_head_size": 16},
    ),
    ModelFamily.MOE: (
        {"attention_window": 32, "window_period": 3},
        {"shared_ffn_hidden": 96, "dense_layers": 1, "dense_ffn_hidden": 192},
        {"shared_ffn_hidden": 48, "shared_gate": True, "qk_norm": True},
        {
            "kv_rank": 64,
            "query_rank": 48,
            "rotary_head_size": 16,
            "head_size": 32,
            "value_head_size": 32,
            "shared_ffn_hidden": 48,
            "dense_layers": 2,
            "dense_ffn_hidden": 96,
            "router_bias": True,
        },
    ),
    ModelFamily.T5: ({}, {"activation": "gelu", "is_gated": True}, {"head_size": 64}),
    ModelFamily.WIDE_RESNET: ({"bottleneck": 16}, {"bottleneck": 32}),
}


@st.composite
def _variants(draw: st.DrawFn) -> dict[str, Any]:
    family = draw(st.sampled_from(sorted(_CHOICES)))
    return {"family": family, "variant": draw(st.sampled_from(_CHOICES[family]))}


@st.composite
def _planned_trains(draw: st.DrawFn) -> TrainSpec:
    fields = draw(_variants())
    if fields["family"] is ModelFamily.WIDE_RESNET:
        depths = draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))
        fields |= {"hidden": 64, "layers": sum(depths), "group_depths": depths, "image_size": 64, "class_count": 10}
    else:
        fields |= draw(_transformer_fields(fields["family"]))
    precision = draw(st.sampled_from(["fp32", "bf16", "fp16"]))
    batch = draw(st.integers(1, 64))
    return TrainSpec.model_validate({"model": fields, "global_batch": batch, "precision": precision})


@st.composite
def _transformer_fields(draw: st.DrawFn, family: ModelFamily) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "layers": draw(st.integers(3, 9)),
        "hidden": 256,
        "heads": 8,
        "ffn_hidden": draw(st.sampled_from([96, 512])),
        "vocab_size": draw(st.sampled_from([258, 32000])),
        "seq_len": draw(st.sampled_from([63, 64, 512])),
        "dropout": draw(st.sampled_from([0.0, 0.1])),
        "attention_dropout": draw(st.sampled_from([0.0, 0.1])),
        "tied_embeddings": draw(st.booleans()),
    }
    if family is ModelFamily.MOE:
        fields["expert_count"] = draw(st.sampled_from([2, 6, 8]))
    if family is ModelFamily.T5:
        fields["encoder_layers"] = draw(st.integers(1, fields["layers"] - 1))
        fields["target_len"] = draw(st.sampled_from([None, 16, 128]))
    return fields


planned_trains = _planned_trains()
