"""Hypothesis strategies for job specifications of every family and source, and the scalars that all strategies use."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from arena.domain.job import IMAGE_FAMILIES, JobKind, JobSpec, ModelFamily
from arena.domain.variant import VARIANT_FIELDS

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
words = st.text(st.characters(exclude_categories=["Cs", "Cc", "Co", "Cn", "Z"]), min_size=1, max_size=8)
counts = st.integers(1, 2**31)
small = st.integers(1, 8)
naturals = st.integers(0, 2**31)
longs = st.integers(1, 2**53)
positive = st.floats(1e-12, 1e12)
instants = st.floats(0, 1e10)
shares = st.floats(0, 1, exclude_max=True)


def maybe(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """The strategy's values and None."""
    return st.none() | strategy


@st.composite
def model_fields(draw: st.DrawFn, families: tuple[ModelFamily, ...] = tuple(ModelFamily)) -> dict[str, Any]:
    """Fields of a model of any of the families, whose widths divide."""
    family = draw(st.sampled_from(families))
    fields = {**draw(_common_model_fields()), "family": family, **draw(_family_fields(family))}
    return {**fields, "variant": draw(_variant_fields(family, fields["layers"]))}


@st.composite
def _variant_fields(draw: st.DrawFn, family: ModelFamily, layers: int) -> dict[str, Any]:
    """Some of what a variant of the family can have, each field with those that it needs."""
    own = [name for name, field in VARIANT_FIELDS.items() if family in field.families and name not in _BOUND_FIELDS]
    if layers == 1:
        own = [name for name in own if not name.startswith("dense_")]
    chosen = draw(st.sets(st.sampled_from(own), max_size=4)) if own else set()
    return {name: draw(_variant_value(name, layers)) for name in sorted(_with_needs(chosen))}


def _with_needs(names: set[str]) -> set[str]:
    more = names | {need for name in names for need in VARIANT_FIELDS[name].needs}
    return names if more == names else _with_needs(more)


# Their values hang on other fields of the model.
_BOUND_FIELDS = {"bottleneck"}
_VARIANT_WORDS = {"attention_bias": ["all", "none", "qkv", "output"], "activation": ["gelu", "relu", "silu"]}


def _variant_value(name: str, layers: int) -> st.SearchStrategy[Any]:
    if name in _VARIANT_WORDS:
        return st.sampled_from(_VARIANT_WORDS[name])
    if name in {"qk_norm", "shared_gate", "router_bias", "post_norm"}:
        return st.just(True)
    if name == "is_gated":
        return st.booleans()
    if name == "rope_scaling":
        return words
    if name == "dense_layers":
        return st.integers(1, layers - 1)
    # Even, as a rotary embedding wants it; and a window period of 1 says nothing.
    return st.integers(1, 2**30).map(lambda half: 2 * half)


@st.composite
def _common_model_fields(draw: st.DrawFn) -> dict[str, Any]:
    kv_heads, group, half = draw(small), draw(small), draw(small)
    heads = kv_heads * group
    return {
        "layers": draw(counts),
        "hidden": heads * half * 2,
        "heads": heads,
        "kv_heads": draw(st.sampled_from([None, kv_heads])),
        "ffn_hidden": draw(maybe(counts)),
        "vocab_size": draw(counts),
        "seq_len": draw(counts),
        "tied_embeddings": draw(st.booleans()),
        "rope_theta": draw(positive),
        "norm_eps": draw(positive),
        "dropout": draw(shares),
        "attention_dropout": draw(shares),
        "balance_loss_weight": draw(shares),
        "channels": draw(small),
    }


@st.composite
def _family_fields(draw: st.DrawFn, family: ModelFamily) -> dict[str, Any]:
    """What a family needs beside the common fields (and, for a Wide-ResNet, instead of them)."""
    patch_size, class_count = draw(small), draw(counts)
    image = {"image_size": patch_size * draw(small), "patch_size": patch_size, "class_count": class_count}
    match family:
        case ModelFamily.MOE:
            expert_count = draw(counts)
            return {"expert_count": expert_count, "experts_per_token": draw(st.integers(1, expert_count))}
        case ModelFamily.T5:
            encoder = draw(small)
            return {"layers": encoder + draw(small), "encoder_layers": encoder, "target_len": draw(maybe(counts))}
        case ModelFamily.VIT:
            return image
        case ModelFamily.WIDE_RESNET:
            depths = draw(st.lists(small, min_size=1, max_size=4))
            norm_groups = draw(small)
            return {
                **image,
                "image_size": 2 ** (len(depths) - 1) * draw(small),
                "layers": sum(depths),
                "group_depths": depths,
                "norm_groups": norm_groups,
                "hidden": norm_groups * (1 + draw(small)),
                "heads": 1,
                "kv_heads": None,
            }
        case _:
            return {}


def data_fields(*sources: str) -> st.SearchStrategy[dict[str, Any]]:
    """Fields of the data of any of the sources, or of the built-in ones."""
    return st.fixed_dictionaries(
        {
            "source": st.sampled_from(sources),
            "path": words,
            "token_dtype": st.sampled_from(["uint16", "uint32"]),
        }
    ) | st.just({"source": "builtin"})


schedule_fields = st.fixed_dictionaries(
    {
        "kind": st.sampled_from(["constant", "linear", "cosine"]),
        "warmup_steps": naturals,
        "decay_steps": counts,
        "floor_ratio": shares,
    }
) | st.just({"kind": "constant"})
optimizer_fields = st.fixed_dictionaries(
    {
        "name": st.sampled_from(["adamw", "sgd"]),
        "lr": positive,
        "beta1": shares,
        "beta2": shares,
        "eps": positive,
        "weight_decay": shares,
        "momentum": shares,
        "clip_norm": maybe(positive),
        "schedule": schedule_fields,
    }
)


def _train_fields(families: tuple[ModelFamily, ...], *sources: str) -> st.SearchStrategy[dict[str, Any]]:
    data = data_fields(*sources)
    evaluation = st.fixed_dictionaries({"interval_steps": counts, "sample_count": counts, "data": maybe(data)})
    return st.fixed_dictionaries(
        {
            "model": model_fields(families),
            "data": data,
            "precision": st.sampled_from(["fp32", "bf16", "fp16"]),
            "global_batch": counts,
            "optimizer": optimizer_fields,
            "seed": st.integers(0, 2**31 - 1),
            "evaluation": maybe(evaluation),
        }
    )


train_fields = _train_fields(
    tuple(family for family in ModelFamily if family not in IMAGE_FAMILIES), "text", "tokens"
) | _train_fields(tuple(sorted(IMAGE_FAMILIES)), "images")
command_fields = st.fixed_dictionaries(
    {
        "argv": st.lists(texts, min_size=1, max_size=4),
        "cwd": maybe(texts),
        "env": st.dictionaries(words, texts, max_size=3),
        "processes_per_gpu": st.sampled_from([0, 1]),
    }
)
common_fields = {
    "name": words,
    "user": maybe(words),
    "project": words,
    "priority": st.integers(-1000, 1000),
    "weight": positive,
    "deadline_s": maybe(positive),
    "is_deadline_strict": st.booleans(),
    "budget_usd": maybe(positive),
    "preemptible": st.booleans(),
    "stop": st.fixed_dictionaries(
        {"steps": maybe(longs), "tokens": maybe(longs), "loss": maybe(positive), "time_limit_s": maybe(positive)}
    ),
    "parallel": st.fixed_dictionaries(
        {
            "plan": maybe(texts),
            "dp_max": maybe(counts),
            "tp_max": maybe(counts),
            "pp_max": maybe(counts),
            "micro_batch_max": maybe(counts),
            "zero": st.lists(st.integers(0, 3), max_size=4),
            "schedules": st.lists(st.sampled_from(["1f1b", "interleaved", "gpipe"]), max_size=3),
        }
    ),
    "checkpoint": st.fixed_dictionaries(
        {
            "dir": maybe(texts),
            "interval_steps": counts,
            "keep": st.integers(2, 2**31),
            "quota_bytes": maybe(longs),
            "is_async": st.booleans(),
        }
    ),
    "output_dir": maybe(texts),
    "grace_s": positive,
    "stall_timeout_s": maybe(positive),
    "retry": st.fixed_dictionaries(
        {
            "launch_failures_max": counts,
            "restarts_max": maybe(naturals),
            "on_stall": st.sampled_from(["tell", "restart"]),
        }
    ),
}
gpu_extras = {"types": st.lists(words, max_size=2), "nodes_max": maybe(counts), "same_zone": st.booleans()}
fixed_gpus = st.fixed_dictionaries({"count": counts, **gpu_extras})
ranged_gpus = st.fixed_dictionaries({"min": maybe(st.just(1)), "max": maybe(counts), **gpu_extras})


def _spec(fields: dict[str, Any]) -> JobSpec:
    retry = fields["retry"]
    if retry["on_stall"] == "restart":  # such a job says how long it may be silent, and can be restarted
        fields = {**fields, "stall_timeout_s": fields["stall_timeout_s"] or 60.0}
        fields["retry"] = {**retry, "restarts_max": retry["restarts_max"] or 1}
    return JobSpec.model_validate(fields)


specs: st.SearchStrategy[JobSpec] = st.one_of(
    st.fixed_dictionaries(
        {**common_fields, "train": train_fields, "gpus": ranged_gpus | fixed_gpus, "kind": st.just(JobKind.MALLEABLE)}
    ),
    st.fixed_dictionaries(
        {
            **common_fields,
            "train": train_fields,
            "gpus": fixed_gpus,
            "kind": st.sampled_from([JobKind.RIGID, JobKind.MOLDABLE]),
        }
    ),
    st.fixed_dictionaries(
        {**common_fields, "command": command_fields, "gpus": fixed_gpus, "kind": st.just(JobKind.RIGID)}
    ),
).map(_spec)
