"""What a transformer's layers weigh: parameters, operations, activations. Pure: no I/O, no clock.

Counts are exact for the layers the worker builds: GPT with biases, learned positions and LayerNorm; Llama with
RMSNorm, SwiGLU and grouped-query attention. Symbols: h hidden, k key/value width, f feed-forward width, s sequence,
V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

from arena.domain.job import ModelFamily, ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerCost:
    """One transformer layer, all tensor-parallel shards together.

    Args:
        parameter_count: Weights, biases and norms.
        gemm_flops_per_token: Forward operations of each matrix product (attention scores and values as one).
        sharded_activations_per_token: Elements kept for the backward pass that tensor parallelism divides.
        replicated_activations_per_token: Elements kept on every tensor-parallel rank.
        kernel_count: Kernels of a forward pass, for launch latency.
    """

    parameter_count: int
    gemm_flops_per_token: tuple[float, ...]
    sharded_activations_per_token: int
    replicated_activations_per_token: int
    kernel_count: int

    @property
    def flops_per_token(self) -> float:
        """Forward operations per token."""
        return sum(self.gemm_flops_per_token)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCost:
    """A whole model.

    Args:
        layer: One of its (equal) layers.
        embedding_parameter_count: On the first stage.
        head_parameter_count: Final norm and output projection, on the last stage; a tied projection counts as none.
        head_flops_per_token: Forward operations of the output projection.
    """

    layer: LayerCost
    layer_count: int
    hidden: int
    ffn_width: int
    vocab_size: int
    seq_len: int
    embedding_parameter_count: int
    head_parameter_count: int
    head_flops_per_token: float

    @property
    def parameter_count(self) -> int:
        """All trainable parameters."""
        return (
            self.layer_count * self.layer.parameter_count + self.embedding_parameter_count + self.head_parameter_count
        )


def model_cost(model: ModelSpec) -> ModelCost:
    """Return what a model's parts weigh."""
    is_llama = model.family is ModelFamily.LLAMA
    positions = 0 if is_llama else model.seq_len
    norm = model.hidden if is_llama else 2 * model.hidden
    return ModelCost(
        layer=_llama_layer(model) if is_llama else _gpt_layer(model),
        layer_count=model.layers,
        hidden=model.hidden,
        ffn_width=model.ffn_width,
        vocab_size=model.vocab_size,
        seq_len=model.seq_len,
        embedding_parameter_count=(model.vocab_size + positions) * model.hidden,
        head_parameter_count=norm + (0 if model.tied_embeddings else model.vocab_size * model.hidden),
        head_flops_per_token=2.0 * model.hidden * model.vocab_size,
    )


def _kv_width(model: ModelSpec) -> int:
    return model.kv_head_count * (model.hidden // model.heads)


def _gpt_layer(model: ModelSpec) -> LayerCost:
    hidden, ffn, keys = model.hidden, model.ffn_width, _kv_width(model)
    attention = hidden * (hidden + 2 * keys) + (hidden + 2 * keys) + hidden * hidden + hidden
    feed_forward = hidden * ffn + ffn + ffn * hidden + hidden
    return LayerCost(
        parameter_count=attention + feed_forward + 4 * hidden,
        gemm_flops_per_token=(*_attention_flops(model), 2.0 * hidden * ffn, 2.0 * ffn * hidden),
        # queries, keys, values and the attention's output; the feed-forward before and after its activation
        sharded_activations_per_token=2 * hidden + 2 * keys + 2 * ffn,
        # both norms' inputs and outputs
        replicated_activations_per_token=4 * hidden,
        kernel_count=14,
    )


def _llama_layer(model: ModelSpec) -> LayerCost:
    hidden, ffn, keys = model.hidden, model.ffn_width, _kv_width(model)
    attention = hidden * (hidden + 2 * keys) + hidden * hidden
    return LayerCost(
        parameter_count=attention + 3 * hidden * ffn + 2 * hidden,
        gemm_flops_per_token=(*_attention_flops(model), 4.0 * hidden * ffn, 2.0 * ffn * hidden),
        # as for GPT, with gate, up, activated gate and their product in the feed-forward
        sharded_activations_per_token=2 * hidden + 2 * keys + 4 * ffn,
        replicated_activations_per_token=4 * hidden,
        kernel_count=20,
    )


def _attention_flops(model: ModelSpec) -> tuple[float, float, float]:
    """Operations per token of the input projections, of scores and values, and of the output projection."""
    hidden = model.hidden
    return 2.0 * hidden * (hidden + 2 * _kv_width(model)), 4.0 * model.seq_len * hidden, 2.0 * hidden * hidden
