"""A Hugging Face ``config.json`` read as the shape of a model. Pure: no I/O, no clock.

A model is trained from the start here, so what a file says of a shape is taken over and what cannot be built is
refused. Some families are built a little otherwise than there: BERT without token types and next-sentence prediction;
ViT without a class token, its head on the mean over patches; ResNet with GroupNorm, activations before convolutions
and a 3 x 3 stem at full resolution (a Wide-ResNet), so that its image size has to be given beside the file.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from arena.errors import SpecError

Config = Mapping[str, Any]

_GELU = ("gelu", "gelu_new", "gelu_pytorch_tanh")
_SILU = ("silu", "swish")


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
    reader = _READERS.get(model_type) if isinstance(model_type, str) else None
    if reader is None:
        supported = ", ".join(sorted(_READERS))
        raise SpecError(f"{source} describes a model of type {model_type!r}", fix=f"supported model types: {supported}")
    return reader(config, source)


def _gpt2(config: Config, source: str) -> dict[str, Any]:
    _check_one_of(config, "activation_function", _GELU, source)
    _refuse_if(config, source, "scale_attn_by_inverse_layer_idx", "add_cross_attention")
    _refuse_unless(config, source, scale_attn_weights=True)
    residual, embedding = config.get("resid_pdrop", 0.1), config.get("embd_pdrop", 0.1)
    if residual != embedding:
        raise SpecError(
            f"{source} drops {residual} of the residual stream and {embedding} of the embeddings",
            why="one share is trained here",
            fix="give resid_pdrop and embd_pdrop the same value",
        )
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
        "dropout": residual,
        "attention_dropout": config.get("attn_pdrop", 0.1),
    }


def _llama(config: Config, source: str) -> dict[str, Any]:
    _refuse_if(config, source, "attention_bias", "mlp_bias", why="llama models are trained without biases here")
    return {"family": "llama", **_rotary_fields(config, source, rope_theta=10_000.0, norm_eps=1e-6)}


def _mixtral(config: Config, source: str) -> dict[str, Any]:
    _refuse_if(config, source, "router_jitter_noise")
    window, length = config.get("sliding_window"), config.get("max_position_embeddings")
    if isinstance(window, int) and isinstance(length, int) and window < length:
        raise SpecError(
            f"{source} has a sliding window of {window}", why=f"all {length} positions are attended to here"
        )
    return {
        "family": "moe",
        **_rotary_fields(config, source, rope_theta=1_000_000.0, norm_eps=1e-5),
        "kv_heads": config.get("num_key_value_heads", 8),
        "expert_count": config.get("num_local_experts", 8),
        "experts_per_token": config.get("num_experts_per_tok", 2),
        "balance_loss_weight": config.get("router_aux_loss_coef", 0.001),
    }


def _rotary_fields(config: Config, source: str, *, rope_theta: float, norm_eps: float) -> dict[str, Any]:
    """Return the fields of a model built like Llama, with the defaults of its type."""
    _check_one_of(config, "hidden_act", _SILU, source)
    _refuse_scaled_rope(config, source)
    found = config.get("rope_parameters")
    rope = found if isinstance(found, dict) else {}
    return {
        **_encoder_fields(config, source),
        "kv_heads": config.get("num_key_value_heads"),
        "vocab_size": _required(config, "vocab_size", source),
        "seq_len": _required(config, "max_position_embeddings", source),
        "tied_embeddings": config.get("tie_word_embeddings", False),
        "rope_theta": config.get("rope_theta", rope.get("rope_theta", rope_theta)),
        "norm_eps": config.get("rms_norm_eps", norm_eps),
        "attention_dropout": config.get("attention_dropout", 0.0),
    }


def _bert(config: Config, source: str) -> dict[str, Any]:
    _check_one_of(config, "hidden_act", _GELU, source)
    _refuse_if(config, source, "is_decoder", "add_cross_attention")
    _refuse_unless(config, source, position_embedding_type="absolute")
    return {
        "family": "bert",
        **_encoder_fields(config, source),
        "vocab_size": _required(config, "vocab_size", source),
        "seq_len": _required(config, "max_position_embeddings", source),
        "tied_embeddings": config.get("tie_word_embeddings", True),
        "norm_eps": config.get("layer_norm_eps", 1e-12),
        "dropout": config.get("hidden_dropout_prob", 0.1),
        "attention_dropout": config.get("attention_probs_dropout_prob", 0.1),
    }


def _vit(config: Config, source: str) -> dict[str, Any]:
    _check_one_of(config, "hidden_act", _GELU, source)
    _refuse_unless(config, source, qkv_bias=True)
    for key in ("image_size", "patch_size"):
        if isinstance(config.get(key), list):
            raise SpecError(f"{source} has a {key} of {config[key]}", why="images and patches are squares here")
    return {
        "family": "vit",
        **_encoder_fields(config, source),
        "image_size": config.get("image_size", 224),
        "patch_size": config.get("patch_size", 16),
        "channels": config.get("num_channels", 3),
        "class_count": _class_count(config),
        "norm_eps": config.get("layer_norm_eps", 1e-12),
        "dropout": config.get("hidden_dropout_prob", 0.0),
        "attention_dropout": config.get("attention_probs_dropout_prob", 0.0),
    }


def _resnet(config: Config, source: str) -> dict[str, Any]:
    _check_one_of(config, "hidden_act", ("relu",), source)
    _refuse_if(config, source, "downsample_in_first_stage")
    layer_type = config.get("layer_type", "bottleneck")
    if layer_type != "basic":
        raise SpecError(f"{source} has layers of type {layer_type!r}", why="only blocks of type basic are trained here")
    widths, depths = (_sizes(config, key, source) for key in ("hidden_sizes", "depths"))
    if len(widths) != len(depths):
        raise SpecError(f"{source} has {len(widths)} hidden_sizes and {len(depths)} depths")
    if any(after != 2 * before for before, after in pairwise(widths)):
        raise SpecError(
            f"{source} has hidden_sizes {widths}", why="each group has twice the channels of the one before"
        )
    stem = config.get("embedding_size", 64)
    if stem != widths[0]:
        raise SpecError(
            f"{source} has an embedding_size of {stem}", why=f"the stem is as wide as the first group here, {widths[0]}"
        )
    return {
        "family": "wide_resnet",
        "layers": sum(depths),
        "hidden": widths[0],
        "group_depths": tuple(depths),
        "channels": config.get("num_channels", 3),
        "class_count": _class_count(config),
    }


_READERS: Mapping[str, Callable[[Config, str], dict[str, Any]]] = {
    "bert": _bert,
    "gpt2": _gpt2,
    "llama": _llama,
    "mixtral": _mixtral,
    "resnet": _resnet,
    "vit": _vit,
}


def _encoder_fields(config: Config, source: str) -> dict[str, Any]:
    return {
        "layers": _required(config, "num_hidden_layers", source),
        "hidden": _required(config, "hidden_size", source),
        "heads": _required(config, "num_attention_heads", source),
        "ffn_hidden": _required(config, "intermediate_size", source),
    }


def _class_count(config: Config) -> Any:
    labels = config.get("id2label")
    return len(labels) if isinstance(labels, dict) and labels else config.get("num_labels", 2)


def _sizes(config: Config, key: str, source: str) -> Sequence[int]:
    found = _required(config, key, source)
    if not isinstance(found, list) or not found or not all(type(one) is int and one > 0 for one in found):
        raise SpecError(f"{source} has {key} {found!r}", why="a list of positive whole numbers is needed")
    return found


def _refuse_scaled_rope(config: Config, source: str) -> None:
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


def _refuse_if(config: Config, source: str, *keys: str, why: str = "that is not built here") -> None:
    for key in keys:
        if config.get(key):
            raise SpecError(f"{source} sets {key}", why=why)


def _refuse_unless(config: Config, source: str, **wanted: Any) -> None:
    for key, value in wanted.items():
        if config.get(key, value) != value:
            raise SpecError(f"{source} sets {key} to {config[key]!r}", why=f"only {value!r} is built here")


def _check_one_of(config: Config, key: str, allowed: tuple[str, ...], source: str) -> None:
    if config.get(key, allowed[0]) not in allowed:
        raise SpecError(
            f"{source} uses the activation {config[key]!r}",
            fix=f"supported for {config['model_type']}: {', '.join(allowed)}",
        )


def _required(config: Config, key: str, source: str) -> Any:
    if config.get(key) is None:
        raise SpecError(f"{source} lacks {key!r}")
    return config[key]
