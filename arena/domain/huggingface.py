"""A Hugging Face ``config.json`` read as the shape of a model. Pure: no I/O, no clock."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from arena.errors import SpecError

_ACTIVATIONS = {"gpt2": ("gelu_new", "gelu", "gelu_pytorch_tanh"), "llama": ("silu", "swish")}


def model_fields_of_config(text: str, source: str) -> dict[str, Any]:
    """Return the fields of a ``ModelSpec`` that a config.json describes.

    Args:
        text: The file's content.
        source: Its name, for errors.

    Raises:
        SpecError: It is no JSON object, describes a family that is not trained here, or a feature that is not built.
    """
    try:
        config = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SpecError(f"{source} is no JSON", why=str(error)) from error
    if not isinstance(config, dict):
        raise SpecError(f"{source} is no JSON object", why=f"it holds a {type(config).__name__}")
    model_type = config.get("model_type")
    if model_type == "gpt2":
        return _gpt2(config, source)
    if model_type == "llama":
        return _llama(config, source)
    raise SpecError(f"{source} describes a model of type {model_type!r}", fix="supported model types: gpt2, llama")


def _gpt2(config: Mapping[str, Any], source: str) -> dict[str, Any]:
    _check_activation(config, "activation_function", "gpt2", source)
    return {
        "family": "gpt",
        "layers": _required(config, "n_layer", source),
        "hidden": _required(config, "n_embd", source),
        "heads": _required(config, "n_head", source),
        "ffn_hidden": config.get("n_inner"),
        "vocab_size": _required(config, "vocab_size", source),
        "seq_len": config.get("n_positions") or _required(config, "n_ctx", source),
        "tied_embeddings": config.get("tie_word_embeddings", True),
        "norm_eps": config.get("layer_norm_epsilon", 1e-5),
    }


def _llama(config: Mapping[str, Any], source: str) -> dict[str, Any]:
    _check_activation(config, "hidden_act", "llama", source)
    _refuse_unbuilt(config, source)
    rope = config.get("rope_parameters") or {}
    return {
        "family": "llama",
        "layers": _required(config, "num_hidden_layers", source),
        "hidden": _required(config, "hidden_size", source),
        "heads": _required(config, "num_attention_heads", source),
        "kv_heads": config.get("num_key_value_heads"),
        "ffn_hidden": _required(config, "intermediate_size", source),
        "vocab_size": _required(config, "vocab_size", source),
        "seq_len": _required(config, "max_position_embeddings", source),
        "tied_embeddings": config.get("tie_word_embeddings", False),
        "rope_theta": config.get("rope_theta", rope.get("rope_theta", 10_000.0)),
        "norm_eps": config.get("rms_norm_eps", 1e-6),
    }


def _refuse_unbuilt(config: Mapping[str, Any], source: str) -> None:
    for key in ("attention_bias", "mlp_bias"):
        if config.get(key):
            raise SpecError(f"{source} sets {key}", why="llama models are trained without biases here")
    scaling = config.get("rope_scaling") or config.get("rope_parameters") or {}
    kind = scaling.get("rope_type", scaling.get("type", "default")) if isinstance(scaling, dict) else scaling
    if kind != "default":
        raise SpecError(f"{source} scales its rotary embedding ({kind})", why="only the plain form is trained here")
    head_size = config.get("head_dim")
    hidden, heads = config.get("hidden_size"), config.get("num_attention_heads")
    if head_size and isinstance(hidden, int) and isinstance(heads, int) and head_size * heads != hidden:
        raise SpecError(
            f"{source} has heads of their own size",
            why=f"head_dim {head_size} x {heads} heads is not hidden_size {hidden}",
        )


def _check_activation(config: Mapping[str, Any], key: str, model_type: str, source: str) -> None:
    allowed = _ACTIVATIONS[model_type]
    if config.get(key, allowed[0]) not in allowed:
        raise SpecError(
            f"{source} uses the activation {config[key]!r}", fix=f"supported for {model_type}: {', '.join(allowed)}"
        )


def _required(config: Mapping[str, Any], key: str, source: str) -> Any:
    if config.get(key) is None:
        raise SpecError(f"{source} lacks {key!r}")
    return config[key]
