"""Models with an encoder: BERT, T5, and those that classify images. Pure: no I/O, no clock."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from arena.domain.configs.file import GELU, RELU, SILU, ConfigFile, Fields, encoder_fields, with_variant
from arena.errors import SpecError


def bert(config: ConfigFile) -> Fields:
    """BERT, without token types and next-sentence prediction."""
    activation = config.one_of("hidden_act", GELU, RELU, SILU)
    config.refuse_if("is_decoder", "add_cross_attention")
    config.refuse_unless(position_embedding_type="absolute")
    fields = {
        "family": "bert",
        **encoder_fields(config),
        "vocab_size": config.required("vocab_size"),
        "seq_len": config.required("max_position_embeddings"),
        "tied_embeddings": config.get("tie_word_embeddings", True),
        "norm_eps": config.get("layer_norm_eps", 1e-12),
        "dropout": config.get("hidden_dropout_prob", 0.1),
        "attention_dropout": config.get("attention_probs_dropout_prob", 0.1),
    }
    return with_variant(fields, activation=None if activation == "gelu" else activation)


def roberta(config: ConfigFile) -> Fields:
    """RoBERTa: a BERT with two more positions than tokens."""
    fields, positions = bert(config), config.required("max_position_embeddings")
    if type(positions) is not int or positions < 3:
        text = f"{config.source} has max_position_embeddings {positions!r}"
        raise SpecError(text, why="the first two stand for no token, so at least 3 are needed")
    return with_variant({**fields, "seq_len": positions - 2}, position_count=positions)


def mt5(config: ConfigFile) -> Fields:
    """Multilingual T5: version 1.1."""
    usual = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
    return t5(ConfigFile(values={**usual, **config.values}, source=config.source))


def t5(config: ConfigFile) -> Fields:
    """T5 in both versions: with ReLU, or gated (1.1)."""
    kinds: dict[Any, tuple[str | None, bool | None]] = {
        "relu": (None, None),
        "gated-gelu": ("gelu", True),
        "gated-silu": ("silu", True),
    }
    projection = config.get("feed_forward_proj", "relu")
    if not isinstance(projection, str) or projection not in kinds:
        text = f"{config.source} has a feed_forward_proj of {projection!r}"
        raise SpecError(text, fix=f"supported for t5: {', '.join(kinds)}")
    activation, is_gated = kinds[projection]
    config.refuse_unless(relative_attention_num_buckets=32)
    encoder, heads, size, hidden = (config.required(key) for key in ("num_layers", "num_heads", "d_kv", "d_model"))
    decoder = config.get("num_decoder_layers") or encoder
    are_whole = all(type(one) is int for one in (encoder, decoder, heads, size, hidden))
    dropout = config.get("dropout_rate", 0.1)
    fields = {
        "family": "t5",
        "layers": encoder + decoder if are_whole else encoder,
        "encoder_layers": encoder,
        "hidden": hidden,
        "heads": heads,
        "ffn_hidden": config.required("d_ff"),
        "vocab_size": config.required("vocab_size"),
        "seq_len": config.get("n_positions", 512),
        "tied_embeddings": config.get("tie_word_embeddings", True),
        "norm_eps": config.get("layer_norm_epsilon", 1e-6),
        "dropout": dropout,
        "attention_dropout": dropout,
    }
    own = size if are_whole and size * heads != hidden else None
    return with_variant(fields, head_size=own, activation=activation, is_gated=is_gated)


def vit(config: ConfigFile) -> Fields:
    """ViT, without a class token: its head is on the mean over patches."""
    config.one_of("hidden_act", GELU)
    config.refuse_unless(qkv_bias=True)
    for key in ("image_size", "patch_size"):
        if isinstance(config.get(key), list):
            text = f"{config.source} has a {key} of {config.get(key)}"
            raise SpecError(text, why="images and patches are squares here")
    return {
        "family": "vit",
        **encoder_fields(config),
        "image_size": config.get("image_size", 224),
        "patch_size": config.get("patch_size", 16),
        "channels": config.get("num_channels", 3),
        "class_count": _class_count(config),
        "norm_eps": config.get("layer_norm_eps", 1e-12),
        "dropout": config.get("hidden_dropout_prob", 0.0),
        "attention_dropout": config.get("attention_probs_dropout_prob", 0.0),
    }


def resnet(config: ConfigFile) -> Fields:
    """ResNet; of basic blocks with GroupNorm and a stem at full resolution (trained), or as published (bottleneck)."""
    config.one_of("hidden_act", RELU)
    config.refuse_if("downsample_in_first_stage", "downsample_in_bottleneck")
    layer_type = config.get("layer_type", "bottleneck")
    if layer_type not in ("basic", "bottleneck"):
        raise SpecError(f"{config.source} has layers of type {layer_type!r}", fix="supported: basic, bottleneck")
    widths, depths = config.sizes("hidden_sizes"), config.sizes("depths")
    if len(widths) != len(depths):
        raise SpecError(f"{config.source} has {len(widths)} hidden_sizes and {len(depths)} depths")
    if any(after != 2 * before for before, after in pairwise(widths)):
        why = "each group has twice the channels of the one before"
        raise SpecError(f"{config.source} has hidden_sizes {widths}", why=why)
    stem, wanted = config.get("embedding_size", 64), widths[0] // 4 if layer_type == "bottleneck" else widths[0]
    if stem != wanted:
        part = "a quarter of" if layer_type == "bottleneck" else "as wide as"
        why = f"the stem is {part} the first group here, {wanted}"
        raise SpecError(f"{config.source} has an embedding_size of {stem}", why=why)
    fields = {
        "family": "wide_resnet",
        "layers": sum(depths),
        "hidden": widths[0],
        "group_depths": tuple(depths),
        "channels": config.get("num_channels", 3),
        "class_count": _class_count(config),
    }
    return with_variant(fields, bottleneck=wanted if layer_type == "bottleneck" else None)


def _class_count(config: ConfigFile) -> Any:
    labels = config.get("id2label")
    return len(labels) if isinstance(labels, dict) and labels else config.get("num_labels", 2)
