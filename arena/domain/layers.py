"""Which layers of a model are alike, and what one of them is. Pure: no I/O, no clock.

Most models have one kind of layer. GPT-Neo has two (whose attention is local or not), DeepSeek's first layers have no
experts, an encoder-decoder has two stacks, and the first layer of each holds its relative positions.
"""

from __future__ import annotations

from dataclasses import dataclass

from arena.domain.job import ModelFamily, ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerKind:
    """What distinguishes layers of one model.

    Args:
        is_windowed: Its attention looks back on a window only.
        is_dense: It has no experts in a model that has them elsewhere.
        is_decoder: It attends to the output of an encoder as well.
        opens_stack: It is the first of an encoder or a decoder.
    """

    is_windowed: bool = False
    is_dense: bool = False
    is_decoder: bool = False
    opens_stack: bool = False


_ONLY = LayerKind()


def layer_kind(spec: ModelSpec, layer: int) -> LayerKind:
    """Return of which kind a transformer's layer is."""
    variant, encoder = spec.variant, spec.encoder_layers
    if encoder is None and variant.attention_window is None and not variant.dense_layers:
        return _ONLY
    return LayerKind(
        is_windowed=variant.attention_window is not None and (layer + 1) % variant.window_period == 0,
        is_dense=layer < variant.dense_layers,
        is_decoder=encoder is not None and layer >= encoder,
        opens_stack=encoder is not None and layer in {0, encoder},
    )


def layer_spec(spec: ModelSpec, kind: LayerKind) -> ModelSpec:
    """Return a model as if all its layers were of one kind; most models are that."""
    changes: dict[str, object] = {}
    variant = spec.variant
    if variant.attention_window is not None and not kind.is_windowed:
        changes["variant"] = variant.model_copy(update={"attention_window": None})
    if kind.is_dense:
        width = variant.dense_ffn_hidden
        changes |= {"family": ModelFamily.LLAMA, "expert_count": None, "ffn_hidden": width}
    if kind.is_decoder and spec.target_len is not None:
        changes["seq_len"] = spec.target_len
    return spec.model_copy(update=changes) if changes else spec
