"""How a model differs from those that the worker builds: what the planner knows beyond it. Pure: no I/O, no clock.

One table says what each field means for whom: which families have it, and why the worker refuses it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from arena.domain.specbase import Model, Size


class ModelVariant(Model):
    """What sets a model apart from its family; a model that sets any of it can be planned, and not trained here.

    Attributes:
        head_size: Width of a head's queries and keys where it is not hidden / heads (latent attention: without their
            rotary part).
        attention_bias: Which projections of the attention have a bias, where not the family's.
        qk_norm: Queries and keys are normalised head by head (Qwen3).
        attention_window: Keys that a position looks back on at most.
        window_period: Every so many layers one has the window (GPT-Neo: 2, every other).
        kv_rank, query_rank: Widths of the latent vectors that keys and values, and queries, are made of (DeepSeek-V2).
        rotary_head_size, value_head_size: With ``kv_rank``, the rotary part of a head, and the width of its values.
        rope_scaling: Form of a scaled rotary embedding, by its name; it costs nothing.
        activation, is_gated: Of the feed-forward layer, where not the family's.
        shared_ffn_hidden: Width of the feed-forward layer that all tokens take beside their experts.
        shared_gate: Whether a gate weighs that layer (Qwen2-MoE).
        dense_layers, dense_ffn_hidden: So many first layers have one feed-forward layer of this width, no experts.
        router_bias: The router corrects the load of each expert by a bias (DeepSeek-V3).
        embedding_size: Width of the embedding where a matrix makes ``hidden`` of it (OPT-350M).
        position_count: Rows of the table of positions where they are not ``seq_len`` (OPT has two more).
        post_norm: Norms stand behind the sublayers, as in BERT, and there is none at the end (OPT-350M).
        bottleneck: Channels of the 3 x 3 convolutions in the first group of a ResNet of bottleneck blocks, with batch
            norm and the stem of ImageNet (ResNet-50: 64, with ``hidden`` 256).
    """

    head_size: Size | None = None
    attention_bias: Literal["all", "none", "qkv", "output"] | None = None
    qk_norm: bool = False
    attention_window: Size | None = None
    window_period: Size = 1
    kv_rank: Size | None = None
    query_rank: Size | None = None
    rotary_head_size: Size | None = None
    value_head_size: Size | None = None
    rope_scaling: Annotated[str, Field(max_length=32)] | None = None
    activation: Literal["gelu", "relu", "silu"] | None = None
    is_gated: bool | None = None
    shared_ffn_hidden: Size | None = None
    shared_gate: bool = False
    dense_layers: Annotated[int, Field(ge=0)] = 0
    dense_ffn_hidden: Size | None = None
    router_bias: bool = False
    embedding_size: Size | None = None
    position_count: Size | None = None
    post_norm: bool = False
    bottleneck: Size | None = None

    def set_fields(self) -> Iterator[str]:
        """Yield the fields that say something, in their order."""
        for name, field in type(self).model_fields.items():
            if getattr(self, name) != field.default:
                yield name


PLAIN = ModelVariant()


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantField:
    """What is true of one field of a variant.

    Args:
        families: That can have it.
        needs: Other fields that it makes no sense without.
        refusal: What the worker does instead.
    """

    families: tuple[str, ...]
    refusal: str
    needs: tuple[str, ...] = ()


_TOKENS = ("gpt", "llama", "moe", "t5")
_ROTARY = ("llama", "moe")
_HEADS = "the worker's heads are hidden / heads wide"
_LATENT = "the worker has no latent attention"
_WINDOW = "the worker attends to all positions"
_FEED_FORWARD = "the worker's feed-forward layer has its family's activation"
_SHARED = "the worker has no experts that all tokens take"
_DENSE = "the worker's layers all have experts"
_FLAT = "the worker's positions and embeddings are as wide as the model, one row for each position"

VARIANT_FIELDS: Mapping[str, VariantField] = {
    "head_size": VariantField(families=_TOKENS, refusal=_HEADS),
    "attention_bias": VariantField(
        families=_TOKENS, refusal="the worker's attention has all biases, or none (llama, moe)"
    ),
    "qk_norm": VariantField(families=_ROTARY, refusal="the worker does not normalise queries and keys"),
    "attention_window": VariantField(families=("gpt", *_ROTARY), refusal=_WINDOW),
    "window_period": VariantField(families=("gpt", *_ROTARY), refusal=_WINDOW, needs=("attention_window",)),
    "kv_rank": VariantField(families=_ROTARY, refusal=_LATENT, needs=("head_size", "rotary_head_size")),
    "query_rank": VariantField(families=_ROTARY, refusal=_LATENT, needs=("kv_rank",)),
    "rotary_head_size": VariantField(families=_ROTARY, refusal=_LATENT, needs=("kv_rank",)),
    "value_head_size": VariantField(families=_ROTARY, refusal=_LATENT, needs=("kv_rank",)),
    "rope_scaling": VariantField(families=_ROTARY, refusal="the worker's rotary embedding is the plain form"),
    "activation": VariantField(families=("gpt", "bert", "t5"), refusal=_FEED_FORWARD),
    "is_gated": VariantField(families=("t5",), refusal=_FEED_FORWARD),
    "shared_ffn_hidden": VariantField(families=("moe",), refusal=_SHARED),
    "shared_gate": VariantField(families=("moe",), refusal=_SHARED, needs=("shared_ffn_hidden",)),
    "dense_layers": VariantField(families=("moe",), refusal=_DENSE, needs=("dense_ffn_hidden",)),
    "dense_ffn_hidden": VariantField(families=("moe",), refusal=_DENSE, needs=("dense_layers",)),
    "router_bias": VariantField(families=("moe",), refusal="the worker's router has no bias"),
    "embedding_size": VariantField(families=("gpt",), refusal=_FLAT),
    "position_count": VariantField(families=("gpt", "bert"), refusal=_FLAT),
    "post_norm": VariantField(families=("gpt",), refusal="the worker's norms stand before the sublayers"),
    "bottleneck": VariantField(families=("wide_resnet",), refusal="the worker's blocks are basic, with GroupNorm"),
}
"""By the name of the field, in the order of ``ModelVariant``."""


def variant_problems(variant: ModelVariant, family: str) -> Iterator[str]:
    """Yield which fields a family does not have, and which lack others that they need."""
    given = list(variant.set_fields())
    for name in given:
        field = VARIANT_FIELDS[name]
        if family not in field.families:
            yield f"variant.{name} is for {', '.join(field.families)}, the model is of family {family}"
        missing = [need for need in field.needs if need not in given]
        if missing:
            yield f"variant.{name} needs variant.{' and variant.'.join(missing)} beside it"
