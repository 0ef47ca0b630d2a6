"""Language models that read from left to right, one feed-forward layer in each layer. Pure: no I/O, no clock."""

from __future__ import annotations

from typing import Any

from arena.domain.configs.file import GELU, RELU, SILU, ConfigFile, Fields, encoder_fields, with_variant
from arena.errors import SpecError


def gpt2(config: ConfigFile) -> Fields:
    """GPT-2, as published."""
    activation = config.one_of("activation_function", GELU, RELU, SILU)
    config.refuse_if("scale_attn_by_inverse_layer_idx", "add_cross_attention")
    config.refuse_unless(scale_attn_weights=True)
    fields = {
        "family": "gpt",
        "layers": config.required("n_layer"),
        "hidden": config.required("n_embd"),
        "heads": config.required("n_head"),
        "ffn_hidden": config.get("n_inner"),
        "vocab_size": config.required("vocab_size"),
        "seq_len": config.required("n_positions", "n_ctx"),
        "tied_embeddings": config.get("tie_word_embeddings", True),
        "norm_eps": config.get("layer_norm_epsilon", 1e-5),
        "dropout": config.one_dropout("resid_pdrop", "embd_pdrop"),
        "attention_dropout": config.get("attn_pdrop", 0.1),
    }
    return with_variant(fields, activation=_unusual(activation, "gelu"))


def gpt_bigcode(config: ConfigFile) -> Fields:
    """StarCoder: a GPT-2 whose heads share one key and one value."""
    shared = {"kv_heads": 1} if config.get("multi_query", True) else {}
    return {**gpt2(config), **shared}


def gpt_neo(config: ConfigFile) -> Fields:
    """GPT-Neo: every other layer looks back on a window; queries, keys and values have no biases."""
    activation = config.one_of("activation_function", ("gelu_new", *GELU), RELU)
    fields = {
        "family": "gpt",
        "layers": config.required("num_layers"),
        "hidden": config.required("hidden_size"),
        "heads": config.required("num_heads"),
        "ffn_hidden": config.get("intermediate_size"),
        "vocab_size": config.required("vocab_size"),
        "seq_len": config.required("max_position_embeddings"),
        "tied_embeddings": config.get("tie_word_embeddings", True),
        "norm_eps": config.get("layer_norm_epsilon", 1e-5),
        "dropout": config.one_dropout("resid_dropout", "embed_dropout", 0.0),
        "attention_dropout": config.get("attention_dropout", 0.0),
    }
    period = _window_period(config)
    return with_variant(
        fields,
        attention_bias="output",
        activation=_unusual(activation, "gelu_new"),
        attention_window=config.get("window_size", 256) if period else None,
        window_period=period,
    )


def opt(config: ConfigFile) -> Fields:
    """OPT: two more positions than tokens, ReLU; the 350M one has norms behind sublayers and a narrow embedding."""
    activation = config.one_of("activation_function", RELU, GELU)
    config.refuse_unless(enable_bias=True, layer_norm_elementwise_affine=True)
    hidden = config.required("hidden_size")
    positions = config.required("max_position_embeddings")
    narrow = config.get("word_embed_proj_dim")
    fields = {
        "family": "gpt",
        "layers": config.required("num_hidden_layers"),
        "hidden": hidden,
        "heads": config.required("num_attention_heads"),
        "ffn_hidden": config.required("ffn_dim"),
        "vocab_size": config.required("vocab_size"),
        "seq_len": positions,
        "tied_embeddings": config.get("tie_word_embeddings", True),
        "dropout": config.get("dropout", 0.1),
        "attention_dropout": config.get("attention_dropout", 0.0),
    }
    return with_variant(
        fields,
        activation=_unusual(activation, "gelu"),
        position_count=positions + 2 if isinstance(positions, int) else None,
        embedding_size=narrow if narrow != hidden else None,
        post_norm=not config.get("do_layer_norm_before", True),
    )


def llama(config: ConfigFile) -> Fields:
    """Llama."""
    config.refuse_if("mlp_bias", why="feed-forward layers of llama models have no biases here")
    fields = {"family": "llama", **rotary_fields(config, rope_theta=10_000.0, norm_eps=1e-6)}
    return with_variant(fields, attention_bias="all" if config.get("attention_bias") else None)


def mistral(config: ConfigFile) -> Fields:
    """Mistral: a Llama that may look back on a window."""
    fields = {"family": "llama", **rotary_fields(config, rope_theta=10_000.0, norm_eps=1e-6)}
    fields["kv_heads"] = config.get("num_key_value_heads", 8)
    return with_variant(fields, attention_window=window_of(config, default=4096))


def qwen2(config: ConfigFile) -> Fields:
    """Qwen 2 and 2.5: a Llama whose queries, keys and values have biases."""
    fields = {"family": "llama", **rotary_fields(config, rope_theta=10_000.0, norm_eps=1e-6)}
    return with_variant(fields, attention_bias="qkv", attention_window=_window_of_qwen(config))


def qwen3(config: ConfigFile) -> Fields:
    """Qwen 3: a Llama that normalises queries and keys."""
    fields = {"family": "llama", **rotary_fields(config, rope_theta=10_000.0, norm_eps=1e-6, head_dim=128)}
    bias = "all" if config.get("attention_bias") else None
    return with_variant(fields, qk_norm=True, attention_bias=bias, attention_window=_window_of_qwen(config))


def rotary_fields(config: ConfigFile, *, rope_theta: float, norm_eps: float, head_dim: int | None = None) -> Fields:
    """Return the fields of a model built like Llama, with the defaults of its type."""
    config.one_of("hidden_act", SILU)
    found = config.get("rope_parameters")
    rope = found if isinstance(found, dict) else {}
    fields = {
        **encoder_fields(config),
        "kv_heads": config.get("num_key_value_heads"),
        "vocab_size": config.required("vocab_size"),
        "seq_len": config.required("max_position_embeddings"),
        "tied_embeddings": config.get("tie_word_embeddings", False),
        "rope_theta": config.get("rope_theta", rope.get("rope_theta", rope_theta)),
        "norm_eps": config.get("rms_norm_eps", norm_eps),
        "attention_dropout": config.get("attention_dropout", 0.0),
    }
    return with_variant(
        fields, head_size=_own_head_size(config.get("head_dim") or head_dim, fields), rope_scaling=_scaling_of(config)
    )


def window_of(config: ConfigFile, default: int | None = None) -> Any:
    """Return the window that a model looks back on, None where that is all there is."""
    window, length = config.get("sliding_window", default), config.get("max_position_embeddings")
    return None if isinstance(window, int) and isinstance(length, int) and window >= length else window


def _window_of_qwen(config: ConfigFile) -> Any:
    if not config.get("use_sliding_window"):
        return None
    if config.get("max_window_layers"):
        raise SpecError(f"{config.source} has a sliding window on some layers only", why="that is not built here")
    return window_of(config)


def _own_head_size(head_dim: Any, fields: Fields) -> Any:
    numbers = (head_dim, fields["heads"], fields["hidden"])
    is_usual = all(type(one) is int for one in numbers) and numbers[0] * numbers[1] == numbers[2]
    return None if is_usual else head_dim


def _scaling_of(config: ConfigFile) -> str | None:
    """Return the name of the form of a scaled rotary embedding, None for the plain one."""
    scaling = config.get("rope_scaling") or config.get("rope_parameters") or {}
    kind = scaling.get("rope_type", scaling.get("type", "default")) if isinstance(scaling, dict) else scaling
    return None if kind == "default" else str(kind)[:32]


def _window_period(config: ConfigFile) -> int | None:
    """Return every how many layers one has a window, None where none has."""
    layers = config.get("attention_layers") or _expanded(config.get("attention_types", [[["global", "local"], 12]]))
    kinds = layers if isinstance(layers, list) else []
    if kinds and "local" not in kinds:
        return None
    period = kinds.index("local") + 1 if kinds else 0
    if not period or any((kind == "local") != ((index + 1) % period == 0) for index, kind in enumerate(kinds)):
        raise SpecError(
            f"{config.source} has attention layers {kinds!r}"[:200], why="local ones are read at regular distances only"
        )
    return period


def _expanded(types: Any) -> list[Any]:
    try:
        return [kind for kinds, times in types for kind in kinds * min(int(times), 4096)]
    except (TypeError, ValueError):
        return []


def _unusual(activation: str, usual: str) -> str | None:
    names = {"gelu_new": "gelu"}
    return None if activation == usual else names.get(activation, activation)
