"""The parts of transformers: their beginning, each kind of layer, their ending. Pure: no I/O, no clock.

Operations are those of the worker's matrix products, a multiplication and an addition counting two. Symbols as in
``arena.planner.activations``: s, h, k, f, E, c; V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from arena.domain.job import SWIGLU_FAMILIES, ModelFamily, ModelSpec
from arena.domain.layers import LayerKind, layer_spec
from arena.planner.activations import (
    Kept,
    Operators,
    Spread,
    kept_by_beginning,
    kept_by_cross_attention,
    kept_by_ending,
    kept_by_layer,
    working_sets,
)
from arena.planner.parts import ParameterCounts, Part, Product, Reductions

_CAUSAL = frozenset({ModelFamily.GPT, ModelFamily.LLAMA, ModelFamily.MOE})


def beginning(model: ModelSpec, parameters: ParameterCounts) -> Part:
    """Return what stands before the layers."""
    stream = float(model.sequence_length * model.hidden)
    is_vit = model.family is ModelFamily.VIT
    products: list[Product] = []
    if is_vit:
        patch_values = model.channels * (model.patch_size or 0) ** 2
        products.append(Product(flops_per_sample=2.0 * patch_values * stream, spread=Spread.SEQUENCE))
    if model.variant.embedding_size:
        products.append(_projection(model, model.variant.embedding_size))
    return Part(
        parameters=parameters,
        products=tuple(products),
        kept=kept_by_beginning(model),
        kernel_count=3,
        reductions=Reductions() if is_vit else Reductions(forward_elements=stream, forward_count=1),
        output_elements=stream,
        uses_embedding=parameters.tied > 0,
    )


def layer(whole: ModelSpec, kind: LayerKind, parameters: ParameterCounts, operators: Operators) -> Part:
    """Return a layer of some kind."""
    model = layer_spec(whole, kind)
    stream = float(model.sequence_length * model.hidden)
    is_mixture = model.family is ModelFamily.MOE
    kernels = (20 if model.family in SWIGLU_FAMILIES else 14) + _variant_kernels(model)
    part = Part(
        parameters=parameters,
        products=(*_attention_products(model, kind, operators), *_feed_forward_products(model)),
        kept=kept_by_layer(model, operators),
        working=working_sets(model),
        kernel_count=kernels + 12 * is_mixture,
        attention_kernel_count=kernels // 2,
        expert_count=model.expert_count or 0 if is_mixture else 0,
        expert_kernel_count=5,
        reductions=Reductions(
            forward_elements=2 * stream,
            forward_count=2,
            backward_elements=2 * stream,
            backward_count=2,
            attention_elements=stream,
            attention_count=1,
        ),
        exchanged_elements=2 * model.experts_per_token * stream if is_mixture else 0.0,
        input_elements=stream,
        output_elements=stream,
        widths=(model.hidden, model.ffn_width),
        is_layer=True,
    )
    return _with_encoder(part, whole, model, kind, operators) if kind.is_decoder else part


def ending(model: ModelSpec, parameters: ParameterCounts, operators: Operators) -> Part:
    """Return what stands behind the layers."""
    if model.family is ModelFamily.VIT:
        return class_end(model, parameters, kept_by_ending(model, operators), model.hidden)
    stream = float(model.sequence_length * model.hidden)
    products: list[Product] = []
    if model.family is ModelFamily.BERT:
        products.append(Product(flops_per_sample=2.0 * stream * model.hidden, spread=Spread.SEQUENCE))
    width = model.variant.embedding_size or model.hidden
    if model.variant.embedding_size:
        products.append(_projection(model, width))
    # BERT computes the logits of all positions, also of those that its loss leaves out.
    flops = 2.0 * model.sequence_length * width * model.vocab_size
    products.append(Product(flops_per_sample=flops, inner=width, outer=model.vocab_size))
    return Part(
        parameters=parameters,
        products=tuple(products),
        kept=kept_by_ending(model, operators),
        kernel_count=8,
        reductions=Reductions(backward_elements=stream, backward_count=1),
        input_elements=stream,
        logits_elements=float(model.sequence_length * model.vocab_size),
        widths=(model.hidden,),
        uses_embedding=model.tied_embeddings,
    )


def class_end(model: ModelSpec, parameters: ParameterCounts, kept: tuple[Kept, ...], width: int) -> Part:
    """Return the head of a model that classifies images."""
    classes = model.class_count or 0
    return Part(
        parameters=parameters,
        products=(Product(flops_per_sample=2.0 * width * classes, spread=Spread.WHOLE),),
        kept=kept,
        kernel_count=6,
        logits_elements=float(classes),
        logits_spread=Spread.WHOLE,
    )


def _projection(model: ModelSpec, width: int) -> Product:
    """Return the product between the width of the embedding and that of the model."""
    return Product(flops_per_sample=2.0 * model.sequence_length * model.hidden * width, spread=Spread.SEQUENCE)


def _variant_kernels(model: ModelSpec) -> int:
    """Return how many kernels more than its family's a layer has."""
    variant = model.variant
    return 4 * (variant.kv_rank is not None) + 2 * variant.qk_norm + 4 * (variant.shared_ffn_hidden is not None)


def _attention_products(model: ModelSpec, kind: LayerKind, operators: Operators) -> Iterator[Product]:
    positions, hidden = model.sequence_length, model.hidden
    width, values = model.heads * model.head_size, model.heads * model.value_size
    if model.variant.kv_rank:
        yield from _latent_products(model)
    else:
        # Queries, keys and values are one product.
        yield _attention_product(positions, hidden, width + 2 * model.kv_head_count * model.head_size)
    yield replace(_attention_product(positions, values, hidden), splits_inner=True)
    # Fused kernels skip the half of the scores that a causal mask hides, and what lies behind a window.
    is_causal = model.family in _CAUSAL or kind.is_decoder
    is_masked = is_causal and not (model.attention_dropout or operators.stores_scores)
    window = min(model.variant.attention_window or positions, positions)
    pairs = window * positions - window**2 / 2.0 if is_masked else float(positions**2)
    yield Product(flops_per_sample=2.0 * pairs * (width + values), is_attention=True, head_size=model.head_size)


def _latent_products(model: ModelSpec) -> Iterator[Product]:
    """Yield the products that make queries, keys and values of latent vectors; the latter every rank makes whole."""
    variant, positions = model.variant, model.sequence_length
    kv_rank, rotary = variant.kv_rank or 0, variant.rotary_head_size or 0
    down = 2.0 * positions * model.hidden * ((variant.query_rank or 0) + kv_rank + rotary)
    yield Product(flops_per_sample=down, is_attention=True, spread=Spread.WHOLE)
    yield _attention_product(positions, variant.query_rank or model.hidden, model.heads * model.head_size)
    made = model.heads * (model.head_size - rotary + model.value_size)
    yield _attention_product(positions, kv_rank, made)


def _attention_product(positions: int, inner: int, outer: int) -> Product:
    return Product(flops_per_sample=2.0 * positions * inner * outer, is_attention=True, inner=inner, outer=outer)


def _feed_forward_products(model: ModelSpec) -> Iterator[Product]:
    positions, hidden = model.sequence_length, model.hidden
    is_mixture = model.family is ModelFamily.MOE
    if is_mixture:
        router = 2.0 * positions * hidden * (model.expert_count or 0)
        yield Product(flops_per_sample=router, spread=Spread.SEQUENCE)
        if model.variant.shared_ffn_hidden:
            yield from _two_products(model, model.variant.shared_ffn_hidden)
    yield from _two_products(model, model.ffn_width, experts_per_token=model.experts_per_token if is_mixture else 0)


def _two_products(model: ModelSpec, width: int, *, experts_per_token: int = 0) -> Iterator[Product]:
    """Yield the way up and down of a feed-forward layer, or of the experts that a token is sent to."""
    hidden, ups = model.hidden, 2 if model.is_gated else 1
    for inner, outer, is_down in ((hidden, ups * width, False), (width, hidden, True)):
        flops = 2.0 * model.sequence_length * max(experts_per_token, 1) * inner * outer
        is_expert = experts_per_token > 0
        yield Product(flops_per_sample=flops, is_expert=is_expert, inner=inner, outer=outer, splits_inner=is_down)


def _with_encoder(part: Part, whole: ModelSpec, model: ModelSpec, kind: LayerKind, operators: Operators) -> Part:
    """Return a decoder's layer with its attention to the encoder's output.

    The first has the decoder's embedding before it, and keeps the output for all.
    """
    positions, source = model.sequence_length, whole.sequence_length
    stream, width = float(positions * model.hidden), model.heads * model.head_size
    keys = model.kv_head_count * model.head_size
    kept = kept_by_cross_attention(model, source, operators)
    opening = kept_by_beginning(model) if kind.opens_stack else ()
    memory = Kept(name="encoder output", elements=float(source * model.hidden), spread=Spread.WHOLE)
    one = part.reductions
    return replace(
        part,
        products=(
            *part.products,
            _attention_product(positions, model.hidden, width),
            _attention_product(source, model.hidden, 2 * keys),
            replace(_attention_product(positions, width, model.hidden), splits_inner=True),
            Product(flops_per_sample=4.0 * positions * source * width, is_attention=True, head_size=model.head_size),
        ),
        kept=(*part.kept, *kept, *opening, *([memory] if kind.opens_stack else [])),
        kernel_count=part.kernel_count + 7 + 3 * kind.opens_stack,
        attention_kernel_count=part.attention_kernel_count + 7,
        reductions=Reductions(
            forward_elements=one.forward_elements + stream * (1 + kind.opens_stack),
            forward_count=one.forward_count + 1 + kind.opens_stack,
            backward_elements=one.backward_elements + stream + source * model.hidden,
            backward_count=one.backward_count + 2,
            attention_elements=one.attention_elements + stream,
            attention_count=one.attention_count + 1,
        ),
        uses_embedding=kind.opens_stack,
    )
