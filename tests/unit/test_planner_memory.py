"""Memory of each layout: the bytes a rank holds, by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arena.domain.cluster import GpuType
from arena.domain.job import ModelFamily, TrainSpec
from arena.domain.parallel import ParallelPlan, Recompute, parse_plan
from arena.planner.activations import Operators, Spread
from arena.planner.hardware import catalog
from arena.planner.holdings import state_bytes
from arena.planner.memory import Memory, memory_of_plan
from arena.planner.model import model_cost
from arena.units import MIB
from tests.property.train_strategies import trains

CPU, H100 = catalog()["cpu"], catalog()["h100"]
GPT = {"family": "gpt", "layers": 8, "hidden": 256, "heads": 8, "vocab_size": 1024, "seq_len": 128}
MOE = {**GPT, "family": "moe", "expert_count": 8}
MATRIX = 256 * 256


def job(model: dict[str, Any], **train: Any) -> TrainSpec:
    return TrainSpec.model_validate({"model": model, "global_batch": 32, **train})


def plan_of(train: TrainSpec, text: str) -> ParallelPlan:
    return parse_plan(text, layer_count=train.model.layers)


def memory(train: TrainSpec, text: str) -> Memory:
    return memory_of_plan(train, plan_of(train, text), H100)


def state(train: TrainSpec, text: str, stage: int = 0) -> float:
    return float(memory(train, text).state[0, stage])


PARAMETERS = model_cost(job(GPT).model).parameter_count


@pytest.mark.parametrize(
    ("text", "bytes_each"),
    [
        ("dp4", 4 + 4 + 8),
        ("dp4 zero1", 4 + 4 + 8 / 4),
        ("dp4 zero2", 4 + 4 / 4 + 8 / 4),
        ("dp4 zero3", 4 / 4 + 4 / 4 + 8 / 4),
    ],
)
def test_state_in_fp32(text: str, bytes_each: float) -> None:
    assert state(job(GPT), text) == pytest.approx(PARAMETERS * bytes_each)


@pytest.mark.parametrize(
    ("text", "bytes_each"),
    [
        ("dp4", 2 + 4 + 4 + 8),
        ("dp4 zero1", 2 + 4 + (4 + 8) / 4),
        ("dp4 zero2", 2 + (4 + 4 + 8) / 4),
        ("dp4 zero3", (4 + 4 + 8) / 4),
    ],
)
def test_state_in_bf16_where_zero3_divides_the_master_weights_and_has_no_others(text: str, bytes_each: float) -> None:
    assert state(job(GPT, precision="bf16"), text) == pytest.approx(PARAMETERS * bytes_each)


@pytest.mark.parametrize(("momentum", "bytes_each"), [(0.0, 8), (0.9, 12)])
def test_sgd_has_a_moment_only_with_momentum(momentum: float, bytes_each: float) -> None:
    train = job(GPT, optimizer={"name": "sgd", "momentum": momentum})
    assert state(train, "dp1") == PARAMETERS * bytes_each


def test_what_tensor_parallelism_copies_is_shared_by_all_ranks_of_the_stage() -> None:
    cost = model_cost(job(GPT).model)
    parts = [cost.parts[part].parameters for part in cost.part_by_unit]
    split, replicated = sum(part.split for part in parts), sum(part.replicated for part in parts)
    assert split + replicated == PARAMETERS
    assert state(job(GPT), "dp2 tp4") == pytest.approx(16 * (split / 4 + replicated))
    assert state(job(GPT), "dp2 tp4 zero3") == pytest.approx(16 * (split / 8 + replicated / 8))


def test_experts_are_divided_by_ep_and_shared_by_what_is_left_of_dp() -> None:
    cost = model_cost(job(MOE).model)
    expert = 8 * cost.layer(0).parameters.expert
    dense = cost.parameter_count - expert
    assert state(job(MOE), "dp8 ep4") == pytest.approx(16 * (dense + expert / 4))
    assert state(job(MOE), "dp8 ep4 zero3") == pytest.approx(16 * (dense / 8 + expert / 4 / 2))
    assert state(job(MOE), "dp4 ep4 zero1") == pytest.approx(8 * (dense + expert / 4) + 8 * (dense / 4 + expert / 4))


def test_tied_embeddings_are_on_both_ends_and_shared_by_both() -> None:
    tied = job({**GPT, "tied_embeddings": True})
    embedding = 1024 * 256
    alone, first, last = state(tied, "dp1"), state(tied, "pp2"), state(tied, "pp2", 1)
    assert first + last - alone == 16 * embedding
    untied = job(GPT)
    assert state(tied, "dp2 pp2 zero3") - state(untied, "dp2 pp2 zero3") == pytest.approx(
        16 * embedding * (1 / 4 - 1 / 2)
    )


def test_stages_hold_their_own_layers_and_replicas() -> None:
    plan = "[layers=6 tp1*2 | layers=2 tp2] zero1"
    cost = model_cost(job(GPT).model)
    layer, first, last = (part.parameters for part in (cost.layer(0), cost.beginning, cost.ending))
    assert state(job(GPT), plan) == pytest.approx((8 + 8 / 2) * (6 * layer.total + first.total))
    split, replicated = 2 * layer.split + last.split, 2 * layer.replicated + last.replicated
    assert state(job(GPT), plan, 1) == pytest.approx(8 * (split / 2 + replicated) + 8 * (split / 2 + replicated / 2))


def test_sharded_weights_of_two_layers_are_whole_at_a_time() -> None:
    layer = model_cost(job(GPT).model).layer(0).parameters.total
    assert memory(job(GPT), "dp4 zero2").gathered.max() == 0
    assert memory(job(GPT), "dp4 zero3").gathered.max() == 4 * 2 * layer
    assert memory(job(GPT, precision="bf16"), "dp4 zero3").gathered.max() == 2 * 2 * layer
    assert memory(job(GPT), "dp1 zero3").gathered.max() == 0


@pytest.mark.parametrize(("gpu_type", "copies"), [(H100, 0), (CPU, 1)])
def test_gradients_of_a_unit_are_on_their_way_when_its_activations_are_gone(gpu_type: GpuType, copies: int) -> None:
    train = job({**GPT, "seq_len": 16}, precision="bf16")
    layer = model_cost(train.model).layer(0).parameters.total
    held = model_cost(train.model).parameter_count
    found = {zero: memory_of_plan(train, plan_of(train, f"dp4 zero{zero}"), gpu_type) for zero in range(4)}
    exchange = {zero: float(one.exchange[0, 0]) for zero, one in found.items()}
    kept = float(found[0].activations[0, 0])
    unit = min(held, 25 * MIB / 4)
    each = max(2 + 4, 4 * (1 + 1 / 4 + copies))
    assert exchange[0] == 0
    assert exchange[1] == pytest.approx(max(0, 4 * unit * copies + 4 * held / 4 - kept))
    assert exchange[2] == pytest.approx(unit * each - kept * unit / held)
    assert exchange[3] == pytest.approx(layer * each - kept * layer / held)


def kept_bytes(train: TrainSpec, *, tp: int = 1, sp: int = 1, mode: Recompute = Recompute.NONE) -> float:
    """What one layer keeps of one sample."""
    divisor = {Spread.SPLIT: tp, Spread.SEQUENCE: sp, Spread.WHOLE: 1}
    each = 4 if train.precision == "fp32" else 2
    part = model_cost(train.model).layer(0)
    return sum(
        tensor.elements * (tensor.element_bytes or each) / divisor[tensor.spread]
        for tensor in part.kept
        if mode in tensor.modes
    )


def test_a_gpt_layer_keeps_these_tensors() -> None:
    """s = 128, h = 256, f = 1024, 8 heads: two norms' inputs and outputs, q, k, v and output, in and activated."""
    stream = 128 * 256
    statistics = 2 * 2 * 128 + 8 * 128
    assert kept_bytes(job(GPT)) == 4 * (4 * stream + 4 * stream + 2 * 128 * 1024 + statistics)
    assert kept_bytes(job(GPT), mode=Recompute.FULL) == 4 * stream
    assert kept_bytes(job(GPT), mode=Recompute.SELECTIVE) == 4 * (3 * stream + 2 * 128 * 1024 + 2 * 128)


@pytest.mark.parametrize(
    ("text", "mode"), [("", "none"), (" recompute=selective", "selective"), (" recompute=full", "full")]
)
def test_activations_are_those_of_the_micro_batches_in_flight(text: str, mode: str) -> None:
    train = job(GPT)
    found = memory(train, f"dp1 pp4 mb2{text}").activations[0]
    layers = 2 * kept_bytes(train, mode=Recompute(mode))
    sent = 4 * 128 * 256
    ahead = 2 * sent
    assert found[1] == 3 * 2 * (layers + sent) + 2 * ahead
    assert found[2] == 2 * 2 * (layers + sent) + 2 * ahead
    assert memory(train, f"dp1 pp4 mb2 gpipe{text}").activations[0, 1] == 16 * 2 * (layers + sent) + 2 * ahead
    assert memory(train, f"dp1 pp4 mb16{text}").activations[0, 1] == 2 * 16 * (layers + sent) + 16 * ahead


def test_sequence_parallelism_divides_what_stands_between_split_layers_and_not_what_they_gather() -> None:
    train = job(GPT)
    stream = 4 * 128 * 256
    plain, divided = (memory(train, f"tp4 pp4 {text}").activations[0, 1] for text in ("", "sp"))
    norms_and_sent = 2 * (2 * stream + 4 * 4 * 128) + stream
    assert plain - divided == pytest.approx((3 * norms_and_sent + 2 * stream) * (1 - 1 / 4))


def test_logits_are_on_the_last_stage_and_wait_under_gpipe() -> None:
    elements = 128 * 1024
    assert list(memory(job(GPT), "pp2 mb2").logits[0]) == [0, 2 * elements * 12]
    assert memory(job(GPT), "tp4 mb2").logits[0, 0] == 2 * elements / 4 * 16
    assert memory(job(GPT), "pp2 mb2 gpipe").logits[0, 1] == 2 * elements * (4 * 16 + 8)
    vit = job({**GPT, "family": "vit", "image_size": 32, "patch_size": 4, "class_count": 10})
    assert memory(vit, "dp1 mb2").logits[0, 0] == 2 * 10 * 12


def test_recomputation_works_on_one_layer_at_a_time() -> None:
    train = job(GPT)
    full, none = memory(train, "mb2 recompute=full"), memory(train, "mb2")
    again = kept_bytes(train) - 4 * 128 * 256
    assert full.working[0, 0] - none.working[0, 0] == pytest.approx(2 * again)
    assert full.total[0, 0] < none.total[0, 0]


def test_a_wide_resnets_early_stages_hold_the_activations_and_late_ones_the_parameters() -> None:
    fields = {"family": "wide_resnet", "layers": 6, "hidden": 32, "group_depths": (2, 2, 2), "image_size": 32}
    found = memory(job({**fields, "class_count": 10}), "pp3 mb32")
    assert list(np.argsort(found.activations[0])) == [2, 1, 0]
    assert list(np.argsort(found.state[0])) == [0, 1, 2]


def test_norms_of_the_cpu_keep_more() -> None:
    spec = job({**GPT, "family": "llama"}).model
    fused, composed = (model_cost(spec, Operators(has_fused_rms_norm=fused)).layer(0) for fused in (True, False))
    assert sum(one.elements for one in composed.kept) - sum(one.elements for one in fused.kept) == 2 * 128 * 256


@settings(max_examples=60, deadline=None)
@given(train=trains, mode=st.sampled_from(Recompute))
def test_parts_sum_to_the_peak_and_sharding_never_needs_more_state(train: TrainSpec, mode: Recompute) -> None:
    plans = [ParallelPlan.uniform(layer_count=train.model.layers, dp=4, zero=zero, recompute=mode) for zero in range(4)]
    found = [memory_of_plan(train, plan, CPU) for plan in plans]
    states = [float(one.state[0, 0]) for one in found]
    assert states == sorted(states, reverse=True)
    assert states[3] == pytest.approx(sum_of_state(train) / 4)
    for one in found:
        moment = max(one.working[0, 0], one.logits[0, 0], one.exchange[0, 0])
        whole = one.state[0, 0] + one.gathered[0, 0] + one.activations[0, 0] + moment + one.context[0, 0]
        assert one.total[0, 0] == pytest.approx(whole)


def sum_of_state(train: TrainSpec) -> float:
    each = state_bytes(train)
    return model_cost(train.model).parameter_count * (each.sharded_weights + each.gradients + each.moments)


@settings(max_examples=60, deadline=None)
@given(train=trains)
def test_less_is_kept_with_more_recomputation(train: TrainSpec) -> None:
    modes = (Recompute.NONE, Recompute.SELECTIVE, Recompute.FULL)
    plans = [ParallelPlan.uniform(layer_count=train.model.layers, recompute=mode) for mode in modes]
    kept = [float(memory_of_plan(train, plan, H100).activations[0, 0]) for plan in plans]
    assert kept[0] >= kept[1] >= kept[2]
    assert kept[0] > kept[2]
    if train.model.family is not ModelFamily.WIDE_RESNET:
        assert kept[0] > kept[1]
