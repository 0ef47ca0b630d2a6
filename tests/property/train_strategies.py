"""Strategies of workloads of every family."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from arena.domain.capability import TRAINED_FAMILIES
from arena.domain.job import DataSpec, ModelFamily, TrainSpec


@st.composite
def _trains(draw: st.DrawFn) -> TrainSpec:
    family = draw(st.sampled_from(TRAINED_FAMILIES))
    fields = draw(resnets() if family is ModelFamily.WIDE_RESNET else transformers(family))
    is_image = family in {ModelFamily.VIT, ModelFamily.WIDE_RESNET}
    return TrainSpec.model_validate(
        {
            "model": {"family": family, **fields},
            "global_batch": draw(st.integers(1, 64)),
            "precision": draw(st.sampled_from(["fp32", "bf16"])),
            "data": DataSpec()
            if is_image
            else draw(st.sampled_from([DataSpec(), DataSpec(source="tokens", path="/t")])),
        }
    )


@st.composite
def transformers(draw: st.DrawFn, family: ModelFamily) -> dict[str, Any]:
    """Fields of a transformer whose widths divide."""
    heads = draw(st.sampled_from([4, 8, 12]))
    fields: dict[str, Any] = {
        "layers": draw(st.integers(1, 12)),
        "hidden": heads * draw(st.sampled_from([16, 64, 128])),
        "heads": heads,
        "kv_heads": draw(st.sampled_from([None, 2])),
        "vocab_size": draw(st.sampled_from([258, 32000])),
        "seq_len": draw(st.sampled_from([63, 64, 1024])),
        "dropout": draw(st.sampled_from([0.0, 0.1])),
        "attention_dropout": draw(st.sampled_from([0.0, 0.1])),
    }
    if family is ModelFamily.MOE:
        fields["expert_count"] = draw(st.sampled_from([2, 6, 8]))
    if family is ModelFamily.VIT:
        fields |= {"image_size": 32, "patch_size": draw(st.sampled_from([4, 32])), "class_count": 10}
    elif draw(st.booleans()):
        fields["tied_embeddings"] = True
    return fields


@st.composite
def resnets(draw: st.DrawFn) -> dict[str, Any]:
    """Fields of a Wide-ResNet."""
    depths = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=3)))
    return {
        "layers": sum(depths),
        "group_depths": depths,
        "hidden": draw(st.sampled_from([16, 48, 160])),
        "norm_groups": draw(st.sampled_from([4, 8])),
        "image_size": 32,
        "class_count": draw(st.sampled_from([10, 1000])),
    }


trains = _trains()
