"""Language models with experts. Pure: no I/O, no clock."""

from __future__ import annotations

from typing import Any

from arena.domain.configs.decoders import rotary_fields, window_of
from arena.domain.configs.file import ConfigFile, Fields, with_variant
from arena.errors import SpecError


def mixtral(config: ConfigFile) -> Fields:
    """Mixtral: a Mistral with experts in every layer."""
    config.refuse_if("router_jitter_noise")
    fields = {
        "family": "moe",
        **rotary_fields(config, rope_theta=1_000_000.0, norm_eps=1e-5),
        "kv_heads": config.get("num_key_value_heads", 8),
        "expert_count": config.get("num_local_experts", 8),
        "experts_per_token": config.get("num_experts_per_tok", 2),
        "balance_loss_weight": config.get("router_aux_loss_coef", 0.001),
    }
    return with_variant(fields, attention_window=window_of(config))


def qwen2_moe(config: ConfigFile) -> Fields:
    """Qwen 1.5 and 2 with experts: one more that all tokens take, weighed by a gate."""
    shared = config.get("shared_expert_intermediate_size")
    return with_variant(_qwen(config), attention_bias="qkv", shared_ffn_hidden=shared, shared_gate=bool(shared))


def qwen3_moe(config: ConfigFile) -> Fields:
    """Qwen 3 with experts: queries and keys are normalised."""
    return with_variant(_qwen(config, head_dim=128), qk_norm=True)


def deepseek(config: ConfigFile) -> Fields:
    """DeepSeek-MoE: many small experts, some that all tokens take, first layers without."""
    config.refuse_if("attention_bias")
    config.refuse_unless(moe_layer_freq=1)
    width = config.required("moe_intermediate_size")
    fields = {
        "family": "moe",
        **rotary_fields(config, rope_theta=10_000.0, norm_eps=1e-6),
        "ffn_hidden": width,
        "expert_count": config.required("n_routed_experts"),
        "experts_per_token": config.required("num_experts_per_tok"),
        "balance_loss_weight": config.get("aux_loss_alpha", 0.001),
    }
    dense = config.get("first_k_dense_replace", 0)
    return with_variant(
        fields,
        shared_ffn_hidden=_times(width, config.get("n_shared_experts")),
        dense_layers=dense,
        dense_ffn_hidden=config.required("intermediate_size") if dense else None,
    )


def deepseek_v2(config: ConfigFile) -> Fields:
    """DeepSeek-V2: with latent attention."""
    rotary = config.required("qk_rope_head_dim")
    # A rotary part beside it makes a head as wide as it is; what a file calls head_dim is one of the two.
    plain = ConfigFile(values={**config.values, "head_dim": None}, source=config.source)
    return with_variant(
        deepseek(plain),
        head_size=config.required("qk_nope_head_dim"),
        rotary_head_size=rotary,
        value_head_size=config.required("v_head_dim"),
        kv_rank=config.required("kv_lora_rank"),
        query_rank=config.get("q_lora_rank"),
    )


def deepseek_v3(config: ConfigFile) -> Fields:
    """DeepSeek-V3, without the layers that predict further tokens: the router has a bias for each expert."""
    return with_variant(deepseek_v2(config), router_bias=True)


def _qwen(config: ConfigFile, head_dim: int | None = None) -> Fields:
    config.refuse_unless(decoder_sparse_step=1)
    config.refuse_if("mlp_only_layers", "use_sliding_window")
    return {
        "family": "moe",
        **rotary_fields(config, rope_theta=10_000.0, norm_eps=1e-6, head_dim=head_dim),
        "ffn_hidden": config.required("moe_intermediate_size"),
        "expert_count": config.required("num_experts"),
        "experts_per_token": config.required("num_experts_per_tok"),
        "balance_loss_weight": config.get("router_aux_loss_coef", 0.001),
    }


def _times(width: Any, count: Any) -> Any:
    """Return the width of some experts together; what is no number is told of where fields are checked."""
    if count is None or not isinstance(width, int):
        return None
    if not isinstance(count, int):
        raise SpecError(f"n_shared_experts is {count!r}", why="a whole number is needed")
    return width * count or None
