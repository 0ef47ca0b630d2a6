"""Models as published: their config.json gives exactly the parameters of their checkpoint.

Counts are sums over the shapes of the published checkpoints (which their model cards show as safetensors' total), or
what torchvision's tables and the papers named beside them say.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from arena.domain.capability import job_refusals
from arena.domain.huggingface import model_fields_of_config
from arena.domain.job import ModelSpec, TrainSpec
from arena.planner.model import model_cost


def spec_of(config: dict[str, Any], **beside: Any) -> ModelSpec:
    return ModelSpec.model_validate({**model_fields_of_config(json.dumps(config), "config.json"), **beside})


def gpt2(layers: int, hidden: int, heads: int, **more: Any) -> dict[str, Any]:
    sizes = {"n_layer": layers, "n_embd": hidden, "n_head": heads, "vocab_size": 50257, "n_positions": 1024}
    return {"model_type": "gpt2", **sizes, **more}


def rotary(model_type: str, sizes: tuple[int, ...], vocab_size: int, **more: Any) -> dict[str, Any]:
    names = ("num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads", "intermediate_size")
    fields = dict(zip(names, sizes, strict=True))
    return {"model_type": model_type, **fields, "vocab_size": vocab_size, "max_position_embeddings": 4096, **more}


def bert(layers: int, hidden: int, heads: int) -> dict[str, Any]:
    sizes = {"num_hidden_layers": layers, "hidden_size": hidden, "num_attention_heads": heads}
    rest = {"intermediate_size": 4 * hidden, "vocab_size": 30522, "max_position_embeddings": 512}
    return {"model_type": "bert", **sizes, **rest}


def opt(layers: int, hidden: int, heads: int, **more: Any) -> dict[str, Any]:
    sizes = {"num_hidden_layers": layers, "hidden_size": hidden, "num_attention_heads": heads, "ffn_dim": 4 * hidden}
    rest = {"vocab_size": 50272, "max_position_embeddings": 2048, "word_embed_proj_dim": hidden}
    return {"model_type": "opt", **sizes, **rest, **more}


def t5(layers: int, hidden: int, heads: int, d_kv: int, d_ff: int, **more: Any) -> dict[str, Any]:
    sizes = {"num_layers": layers, "d_model": hidden, "num_heads": heads, "d_kv": d_kv, "d_ff": d_ff}
    return {"model_type": "t5", **sizes, "vocab_size": 32128, **more}


def vit(layers: int, hidden: int, heads: int) -> dict[str, Any]:
    sizes = {"num_hidden_layers": layers, "hidden_size": hidden, "num_attention_heads": heads}
    return {"model_type": "vit", **sizes, "intermediate_size": 4 * hidden, "num_labels": 1000}


GPT_NEO_2_7B = {
    "model_type": "gpt_neo",
    "num_layers": 32,
    "hidden_size": 2560,
    "num_heads": 20,
    "vocab_size": 50257,
    "max_position_embeddings": 2048,
    "window_size": 256,
    "attention_types": [[["global", "local"], 16]],
}
DEEPSEEK_MOE_16B = rotary(
    "deepseek",
    (28, 2048, 16, 16, 10944),
    102400,
    moe_intermediate_size=1408,
    n_routed_experts=64,
    n_shared_experts=2,
    num_experts_per_tok=6,
    first_k_dense_replace=1,
)
LATENT = {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
DEEPSEEK_V2_LITE = rotary(
    "deepseek_v2",
    (27, 2048, 16, 16, 10944),
    102400,
    moe_intermediate_size=1408,
    n_routed_experts=64,
    n_shared_experts=2,
    num_experts_per_tok=6,
    first_k_dense_replace=1,
    **LATENT,
)
DEEPSEEK_V2 = rotary(
    "deepseek_v2",
    (60, 5120, 128, 128, 12288),
    102400,
    moe_intermediate_size=1536,
    n_routed_experts=160,
    n_shared_experts=2,
    num_experts_per_tok=6,
    first_k_dense_replace=1,
    q_lora_rank=1536,
    rope_scaling={"type": "yarn", "factor": 40},
    **LATENT,
)
DEEPSEEK_V3 = rotary(
    "deepseek_v3",
    (61, 7168, 128, 128, 18432),
    129280,
    moe_intermediate_size=2048,
    n_routed_experts=256,
    n_shared_experts=1,
    num_experts_per_tok=8,
    first_k_dense_replace=3,
    q_lora_rank=1536,
    **LATENT,
)
QWEN3_30B_A3B = rotary(
    "qwen3_moe",
    (48, 2048, 32, 4, 6144),
    151936,
    moe_intermediate_size=768,
    num_experts=128,
    num_experts_per_tok=8,
    head_dim=128,
)
QWEN3_235B_A22B = rotary(
    "qwen3_moe",
    (94, 4096, 64, 4, 12288),
    151936,
    moe_intermediate_size=1536,
    num_experts=128,
    num_experts_per_tok=8,
    head_dim=128,
)
RESNET_50 = {"model_type": "resnet", "hidden_sizes": [256, 512, 1024, 2048], "depths": [3, 4, 6, 3], "num_labels": 1000}

EXACT = {
    "openai-community/gpt2": (gpt2(12, 768, 12), 124_439_808),
    "openai-community/gpt2-xl": (gpt2(48, 1600, 25), 1_557_611_200),
    "meta-llama/Llama-2-7b-hf": (rotary("llama", (32, 4096, 32, 32, 11008), 32000), 6_738_415_616),
    "meta-llama/Llama-2-13b-hf": (rotary("llama", (40, 5120, 40, 40, 13824), 32000), 13_015_864_320),
    "meta-llama/Llama-2-70b-hf": (rotary("llama", (80, 8192, 64, 8, 28672), 32000), 68_976_648_192),
    "meta-llama/Meta-Llama-3-8B": (rotary("llama", (32, 4096, 32, 8, 14336), 128256), 8_030_261_248),
    "meta-llama/Meta-Llama-3-70B": (rotary("llama", (80, 8192, 64, 8, 28672), 128256), 70_553_706_496),
    "mistralai/Mistral-7B-v0.1": (
        rotary("mistral", (32, 4096, 32, 8, 14336), 32000, sliding_window=4096),
        7_241_732_096,
    ),
    "mistralai/Mistral-Nemo-Base-2407": (
        rotary("mistral", (40, 5120, 32, 8, 14336), 131072, sliding_window=None, head_dim=128),
        12_247_782_400,
    ),
    "mistralai/Mixtral-8x7B-v0.1": (rotary("mixtral", (32, 4096, 32, 8, 14336), 32000), 46_702_792_704),
    "Qwen/Qwen2-7B": (rotary("qwen2", (28, 3584, 28, 4, 18944), 152064), 7_615_616_512),
    "Qwen/Qwen3-8B": (rotary("qwen3", (36, 4096, 32, 8, 12288), 151936), 8_190_735_360),
    "Qwen/Qwen3-30B-A3B": (QWEN3_30B_A3B, 30_532_122_624),
    "Qwen/Qwen3-235B-A22B": (QWEN3_235B_A22B, 235_093_634_560),
    "facebook/opt-350m": (
        opt(24, 1024, 16, word_embed_proj_dim=512, do_layer_norm_before=False),
        331_196_416,
    ),
    "facebook/opt-30b": (opt(48, 7168, 56), 29_974_540_288),
    "bigcode/starcoderbase": (
        gpt2(40, 6144, 48, model_type="gpt_bigcode", vocab_size=49152, n_positions=8192, n_inner=24576),
        15_517_456_384,
    ),
    "EleutherAI/gpt-neo-2.7B": (GPT_NEO_2_7B, 2_651_307_520),
    "google-t5/t5-base": (t5(12, 768, 12, 64, 3072), 222_903_552),
    "google-t5/t5-3b": (t5(24, 1024, 32, 128, 16384), 2_851_598_336),
    "google-t5/t5-11b": (t5(24, 1024, 128, 128, 65536), 11_307_321_344),
    "google/t5-v1_1-base": (
        t5(12, 768, 12, 64, 2048, feed_forward_proj="gated-gelu", tie_word_embeddings=False),
        247_577_856,
    ),
    "deepseek-ai/deepseek-moe-16b-base": (DEEPSEEK_MOE_16B, 16_375_728_128),
    "deepseek-ai/DeepSeek-V2-Lite": (DEEPSEEK_V2_LITE, 15_706_484_224),
    "deepseek-ai/DeepSeek-V2": (DEEPSEEK_V2, 235_741_434_880),
    # Without the module that predicts a second token.
    "deepseek-ai/DeepSeek-V3": (DEEPSEEK_V3, 671_026_419_200),
}


@pytest.mark.parametrize("name", EXACT)
def test_a_published_model_has_the_parameters_of_its_checkpoint(name: str) -> None:
    config, published = EXACT[name]
    assert model_cost(spec_of(config)).parameter_count == published


@pytest.mark.parametrize(
    ("inner", "published", "multiplications"), [(64, 25_557_032, 4.09e9), (128, 68_883_240, 11.4e9)]
)
def test_resnets_of_bottlenecks_are_those_of_torchvision(inner: int, published: int, multiplications: float) -> None:
    """resnet50 and wide_resnet50_2 of torchvision's table of weights, which gives GFLOPS of 4.09 and 11.4."""
    cost = model_cost(spec_of(RESNET_50, image_size=224, variant={"bottleneck": inner}))
    assert cost.parameter_count == published
    assert cost.flops_per_sample / 2 == pytest.approx(multiplications, rel=0.005)


@pytest.mark.parametrize(("shape", "published"), [((12, 768, 12), 109_514_298), ((24, 1024, 16), 335_174_458)])
def test_bert_lacks_only_its_token_types(shape: tuple[int, int, int], published: int) -> None:
    """google-bert/bert-base-uncased and bert-large-uncased with their head for masked tokens."""
    cost = model_cost(spec_of(bert(*shape)))
    assert cost.parameter_count == published - 2 * shape[1]


def test_roberta_lacks_only_its_one_token_type() -> None:
    """FacebookAI/roberta-base with its head for masked tokens."""
    config = {**bert(12, 768, 12), "model_type": "roberta", "vocab_size": 50265, "max_position_embeddings": 514}
    spec = spec_of(config)
    assert spec.seq_len == 512
    assert model_cost(spec).parameter_count == 124_697_433 - 768


@pytest.mark.parametrize(("shape", "published"), [((12, 768, 12), 86_567_656), ((24, 1024, 16), 304_326_632)])
def test_vit_lacks_only_its_class_token(shape: tuple[int, int, int], published: int) -> None:
    """google/vit-base-patch16-224 and vit-large-patch16-224: the token itself, and its position."""
    cost = model_cost(spec_of(vit(*shape)))
    assert cost.parameter_count == published - 2 * shape[1]


@pytest.mark.parametrize(
    ("config", "gflop_per_token", "share"),
    [
        (QWEN3_30B_A3B, 923e3 / 39_936, 0.005),
        (QWEN3_235B_A22B, 1077e3 / 7_280, 0.005),
        (DEEPSEEK_V3, 1635e3 / 6_288, 0.05),
    ],
)
def test_operations_of_mixtures_are_those_that_others_count(
    config: dict[str, Any], gflop_per_token: float, share: float
) -> None:
    """TFLOP/s over tokens/s of Megatron-Bridge's performance page, 4,096 positions; DeepSeek-V3 predicts two tokens."""
    cost = model_cost(spec_of(config, seq_len=4096))
    assert 3 * cost.flops_per_sample / 4096 / 1e9 == pytest.approx(gflop_per_token, rel=share)


def test_gpt_3_has_its_175_billion() -> None:
    """Brown et al. 2020, table 2.1 rounds to 175.0 billion."""
    cost = model_cost(spec_of(gpt2(96, 12288, 96, n_positions=2048, tie_word_embeddings=True)))
    assert cost.parameter_count == pytest.approx(175.0e9, rel=0.005)


PLANNED_ONLY = {
    "OPT": (opt(24, 1024, 16), "activation"),
    "GPT-Neo": (GPT_NEO_2_7B, "all positions (model.variant: attention_window, window_period)"),
    "T5": (t5(12, 768, 12, 64, 3072), "encoder-decoder"),
    "DeepSeek-V2": (DEEPSEEK_V2, "latent attention"),
    "DeepSeek-MoE": (DEEPSEEK_MOE_16B, "experts that all tokens take"),
    "Qwen2": (rotary("qwen2", (28, 3584, 28, 4, 18944), 152064), "biases"),
    "Qwen3": (rotary("qwen3", (36, 4096, 32, 8, 12288), 151936), "normalise queries"),
    "Llama 3.1": (
        rotary("llama", (32, 4096, 32, 8, 14336), 128256, rope_scaling={"rope_type": "llama3"}),
        "plain form",
    ),
    "Mistral with a window": (
        rotary("mistral", (32, 4096, 32, 8, 14336), 32000, max_position_embeddings=32768, sliding_window=4096),
        "attends to all positions",
    ),
    "ResNet-50": (RESNET_50, "basic, with GroupNorm"),
}


def train_of(config: dict[str, Any], **beside: Any) -> TrainSpec:
    image = {"image_size": 224} if config["model_type"] == "resnet" else {}
    return TrainSpec(model=spec_of(config, **image, **beside), global_batch=64)


@pytest.mark.parametrize("name", PLANNED_ONLY)
def test_what_the_worker_does_not_build_is_refused_with_the_reason_and_planned_beyond_it(name: str) -> None:
    config, reason = PLANNED_ONLY[name]
    train = train_of(config)
    assert reason in " ".join(job_refusals(train))
    assert list(job_refusals(train, beyond_worker=True)) == []


def test_mistral_is_a_llama_as_long_as_its_window_shows_it_everything() -> None:
    config, _ = PLANNED_ONLY["Mistral with a window"]
    assert list(job_refusals(train_of(config, seq_len=4096))) == []
    assert list(job_refusals(train_of(config, seq_len=4097))) != []
