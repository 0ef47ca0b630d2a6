"""Profiles: what was measured holds, what was not is corrected by it, and mistakes say what would work."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arena.domain.allocation import GpuGroup
from arena.domain.cluster import GpuType
from arena.domain.job import TrainSpec
from arena.domain.parallel import parse_plan
from arena.domain.profile import LayerTime, LinkKind, MessageKind, MessageTime, Profile
from arena.errors import SpecError
from arena.planner.candidates import candidate_of
from arena.planner.communication import send_tiers_of
from arena.planner.cost import evaluate
from arena.planner.hardware import catalog
from arena.planner.implementation import Implementation
from arena.planner.model import model_cost
from arena.planner.profile_files import (
    LayerRow,
    is_sailor_profile,
    read_profile,
    read_sailor_profile,
    sailor_sends,
)
from arena.planner.profiles import PassTimes, Told, differences, link_of

A100 = catalog()["a100-80"]
TRAIN = TrainSpec.model_validate(
    {
        "model": {"family": "gpt", "layers": 4, "hidden": 1024, "heads": 16, "vocab_size": 32000, "seq_len": 1024},
        "global_batch": 64,
        "precision": "bf16",
    }
)
FILE: dict[str, Any] = {
    "arena_profile": 1,
    "gpu_type": "a100-80",
    "precision": "bf16",
    "model": TRAIN.model.model_dump(mode="json"),
    "includes_collectives": True,
    "layers": [
        {
            "layer": layer,
            "tp": tp,
            "micro_batch_size": size,
            "forward_s": one * size / tp,
            "backward_s": 2 * one * size / tp,
        }
        for layer, one in (("beginning", 0.001), ("layer", 0.01), ("ending", 0.02))
        for tp in (1, 2)
        for size in (1, 2, 8)
    ],
}


def measured(**changes: Any) -> GpuType:
    profile = read_profile(json.dumps(FILE | changes), source="p.json", gpu_types=sorted(catalog()))
    return replace(A100, profiles=(profile,))


def step(plan: str, gpu_type: GpuType, train: TrainSpec = TRAIN) -> tuple[float, Mapping[str, Any]]:
    made = parse_plan(plan, layer_count=train.model.layers)
    found = evaluate(train, gpu_type, GpuGroup.of("a100-80", [made.gpu_count]), candidate_of(made, train.global_batch))
    return float(found.iter_time_s[0]), {name: float(part[0]) for name, part in found.breakdown_s.items()}


@pytest.mark.parametrize("size", [1, 2, 8])
def test_a_measured_size_takes_what_was_measured(size: int) -> None:
    seconds, breakdown = step(f"dp1 tp1 pp1 mb{size}", measured())
    # Beginning, four layers and ending, forward and backward, for 64 samples.
    assert breakdown["compute"] == pytest.approx(64 * 3 * (0.001 + 4 * 0.01 + 0.02))
    assert seconds == pytest.approx(breakdown["compute"] + breakdown["update"])


def test_measured_times_of_split_layers_hold_their_collectives() -> None:
    _, breakdown = step("dp1 tp2 pp1 mb2", measured())
    whole = 64 * 3 * (0.001 + 4 * 0.01 + 0.02) / 2
    assert breakdown["tensor_parallel"] > 0
    assert breakdown["compute"] + breakdown["tensor_parallel"] == pytest.approx(whole)
    _, apart = step("dp1 tp2 pp1 mb2", measured(includes_collectives=False))
    assert apart["compute"] == pytest.approx(whole)


def test_recomputation_takes_a_measured_forward_pass_more() -> None:
    _, none = step("dp1 tp1 pp1 mb2", measured())
    _, full = step("dp1 tp1 pp1 mb2 recompute=full", measured())
    assert full["compute"] - none["compute"] == pytest.approx(64 * 4 * 0.01, rel=0.1)


def test_a_size_between_two_lies_between_them() -> None:
    _, breakdown = step("dp1 tp1 pp1 mb4", measured())
    assert breakdown["compute"] == pytest.approx(64 * 3 * 0.061, rel=0.1)


def test_degrees_and_sizes_nobody_measured_are_corrected_like_the_nearest() -> None:
    for plan in ("dp1 tp4 pp1 mb2", "dp1 tp1 pp1 mb32"):
        near = plan.replace("tp4", "tp2").replace("mb32", "mb8")
        ratio = step(near, measured())[1]["compute"] / step(near, A100)[1]["compute"]
        found = step(plan, measured())[1]["compute"] / step(plan, A100)[1]["compute"]
        assert found == pytest.approx(ratio, rel=0.05)


def test_a_time_above_that_of_more_samples_is_noise() -> None:
    rows = [
        row | {"forward_s": 0.5} if (row["layer"], row["micro_batch_size"]) == ("layer", 1) else row
        for row in FILE["layers"]
    ]
    _, breakdown = step("dp1 tp1 pp1 mb1", measured(layers=rows))
    # Two samples took 0.02 forward: one takes half of that.
    assert breakdown["compute"] == pytest.approx(64 * 3 * (0.001 + 4 * 0.01 + 0.02))


def test_other_layers_than_the_job_s_are_not_used() -> None:
    other = TRAIN.model_copy(update={"precision": "fp32"})
    assert step("dp1 tp1 pp1 mb1", measured(), other) == step("dp1 tp1 pp1 mb1", A100, other)
    (profile,) = measured().profiles
    assert differences(profile, other) == ["it was measured in bf16, the job trains in fp32"]
    wider = TRAIN.model_copy(update={"model": TRAIN.model.model_copy(update={"hidden": 2048})})
    assert differences(profile, wider) == ["its hidden is 1024, the job's 2048"]
    deeper = TRAIN.model_copy(update={"model": TRAIN.model.model_copy(update={"layers": 8})})
    assert differences(profile, deeper) == []


@settings(deadline=None)
@given(
    latency_s=st.floats(1e-6, 1e-3),
    rate=st.floats(1e9, 1e12),
    sizes=st.lists(st.floats(1e4, 1e9), min_size=2, max_size=8, unique=True),
    ranks=st.integers(2, 16),
)
def test_a_latency_and_a_bandwidth_are_found_again(
    latency_s: float, rate: float, sizes: list[float], ranks: int
) -> None:
    if max(sizes) < 2 * min(sizes):
        return
    share = 2.0 * (ranks - 1) / ranks
    messages = tuple(
        MessageTime(
            kind=MessageKind.ALL_REDUCE,
            link=LinkKind.NODE,
            ranks=ranks,
            size_bytes=size,
            seconds=latency_s + share * size / rate,
        )
        for size in sizes
    )
    (profile,) = measured().profiles
    link = link_of(
        replace(A100, profiles=(replace(profile, messages=messages),)), MessageKind.ALL_REDUCE, LinkKind.NODE
    )
    assert link is not None
    told = [link.latency_s + link.s_per_byte * share * size for size in sizes]
    assert told == pytest.approx([one.seconds for one in messages], rel=1e-4)


@pytest.mark.parametrize("seconds", [(2e-5, 1e-5), (1e-5, 1e-5)])
def test_messages_whose_size_makes_no_difference_tell_no_bandwidth(seconds: tuple[float, float]) -> None:
    """Noise of latencies, which would be a bandwidth below zero or without end: what is modelled stands."""
    messages = tuple(
        MessageTime(kind=MessageKind.SEND, link=LinkKind.NETWORK, ranks=2, size_bytes=size, seconds=each)
        for size, each in zip((1e3, 1e6), seconds, strict=True)
    )
    (profile,) = measured().profiles
    told = replace(A100, profiles=(replace(profile, messages=messages),))
    assert send_tiers_of(told) == send_tiers_of(A100)


def test_measured_sends_stand_for_the_network() -> None:
    sends = sailor_sends([0.0, 0.0, 20.0], LinkKind.NETWORK)
    (profile,) = measured().profiles
    _, across = send_tiers_of(replace(A100, profiles=(replace(profile, messages=sends),)))
    assert across.bandwidth_bytes_per_s == pytest.approx(20e9)
    assert across.latency_s == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"gpu_type": "a100-8"}, "did you mean 'a100-80'"),
        ({"gpu_type": "a100-8"}, "known: "),
        ({"precision": "fp8"}, "precision: Input should be 'fp32', 'bf16' or 'fp16'"),
        ({"layers": [FILE["layers"][0]]}, "has no layer"),
        ({"layers": [FILE["layers"][6]] * 2}, "comes twice"),
        ({"layers": [FILE["layers"][6] | {"layer": 9}]}, "number layers from 1 to 4"),
        ({"layers": [FILE["layers"][6] | {"forward_s": -1.0}]}, "forward_s: Input should be greater than 0"),
        ({"arena_profile": 2}, "a profile looks like this"),
    ],
)
def test_a_wrong_profile_says_what_would_work(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(SpecError) as caught:
        read_profile(json.dumps(FILE | changes), source="p.json", gpu_types=sorted(catalog()))
    assert told.lower() in caught.value.message.lower()


@pytest.mark.parametrize(
    "text", ["", "[]", "[" * 100_000, "{", "null", '{"1": {"1": {"0": [1]}}}', '{"1": {"1": {"0": [-1, 0, 0]}}}']
)
def test_what_is_no_profile_at_all_is_refused(text: str) -> None:
    with pytest.raises(SpecError):
        read_profile(text, source="p", gpu_types=["a100-80"])
    with pytest.raises(SpecError):
        read_sailor_profile(text, source="p", gpu_type="a100-80", model=TRAIN.model)


def test_sailor_s_form_is_read_with_what_it_does_not_say() -> None:
    table = {"2": {"4": {str(unit): [0.001 * (unit + 1), 0.002, 0.0006] for unit in range(6)}}}
    text = json.dumps(table)
    assert is_sailor_profile(text)
    assert not is_sailor_profile(json.dumps(FILE))
    profile = read_sailor_profile(text, source="p", gpu_type="a100-80", model=TRAIN.model)
    assert profile.layers[3] == LayerTime(
        unit=3, tp=4, micro_batch_size=2, forward_s=0.004, backward_s=0.002, update_s=pytest.approx(0.0001)
    )
    with pytest.raises(SpecError, match="has 4 layers between its two ends: the model has 5"):
        read_sailor_profile(text, source="p", gpu_type="a100-80", model=TRAIN.model.model_copy(update={"layers": 5}))


def test_measured_updates_are_shared_out_by_zero() -> None:
    table = {"1": {"1": {str(unit): [0.01, 0.02, 0.6] for unit in range(6)}}}
    train = TRAIN.model_copy(update={"precision": "fp32"})
    profile = read_sailor_profile(json.dumps(table), source="p", gpu_type="a100-80", model=train.model)
    gpu_type = replace(A100, profiles=(profile,))
    assert step("dp1 tp1 pp1 mb1", gpu_type, train)[1]["update"] == pytest.approx(0.6)
    shared = step("dp2 tp1 pp1 mb1 zero1", gpu_type, train)[1]
    assert shared["update"] == pytest.approx(0.3)
    assert np.isfinite(shared["data_parallel"])


def test_profiles_of_no_times_change_nothing() -> None:
    empty = Profile(gpu_type="a100-80", model=TRAIN.model, precision="bf16", layers=(), includes_collectives=False)
    assert step("dp2 tp2 pp1 mb1", replace(A100, profiles=(empty,)))[0] == pytest.approx(
        step("dp2 tp2 pp1 mb1", A100)[0]
    )


@pytest.mark.parametrize(
    ("plan", "nodes", "batch", "measured_s"),
    [
        ("dp16 tp4 pp1 mb8", 16, 1024, 1.92557),
        ("dp16 tp4 pp2 mb8", 32, 1024, 1.22476),
        ("dp2 tp4 pp4 mb8 layers=4,7,7,6", 8, 512, 2.69795),
    ],
)
def test_sailor_s_measured_plans_of_opt_350m(plan: str, nodes: int, batch: int, measured_s: float) -> None:
    """Steps measured on nodes of four GH200 (Sailor, SOSP'25), from its profile of micro-batches of eight."""
    shape = {"family": "gpt", "layers": 24, "hidden": 1024, "heads": 16, "vocab_size": 50272, "seq_len": 2048}
    train = TrainSpec.model_validate({"model": shape, "global_batch": batch, "precision": "fp32"})
    ends = {0: [0.000922, 0.000001, 0.000479], 25: [0.004014, 0.005944, 0.000479]}
    table = {"8": {"4": {str(unit): ends.get(unit, [0.002683, 0.00647, 0.000479]) for unit in range(26)}}}
    sends = sailor_sends([-0.1657, 2.7943, 11.7441], LinkKind.NETWORK)
    profile = read_sailor_profile(json.dumps(table), source="p", gpu_type="gh200", model=train.model, messages=sends)
    found = evaluate(
        train,
        replace(catalog()["gh200"], profiles=(profile,)),
        GpuGroup.of("gh200", [4] * nodes),
        candidate_of(parse_plan(plan, layer_count=24), batch),
        implementation=Implementation(sends_in_turn=True),
    )
    assert found.iter_time_s[0] == pytest.approx(measured_s, rel=0.05)


@settings(deadline=None)
@given(
    times=st.dictionaries(st.sampled_from([1, 2, 4, 8, 16, 32]), st.floats(1e-5, 1.0), min_size=2),
    asked=st.lists(st.floats(1.0, 64.0), min_size=1, max_size=8),
)
def test_noise_never_makes_more_samples_faster(times: dict[int, float], asked: list[float]) -> None:
    layers = tuple(
        LayerTime(unit=1, tp=1, micro_batch_size=size, forward_s=one, backward_s=2 * one) for size, one in times.items()
    )
    profile = Profile(gpu_type="a100-80", model=TRAIN.model, precision="bf16", layers=layers)
    told = Told(profile=profile, model=model_cost(TRAIN.model))
    sizes = np.array(sorted(asked))

    def alike(measured: np.ndarray, degrees: np.ndarray) -> PassTimes:
        return PassTimes(forward_s=np.ones_like(measured), backward_s=np.ones_like(degrees))

    forward, backward = told.ratios(1, (sizes, np.ones_like(sizes)), alike)
    for found, least in ((forward, min(times.values())), (backward, 2 * min(times.values()))):
        assert np.all(np.diff(found) >= -1e-12)
        assert np.all(found >= least * (1 - 1e-12))
        assert np.all(found <= max(times.values()) * 2)


@pytest.mark.parametrize("value", [True, "0.01", None, [0.01]])
def test_a_time_is_a_number_and_nothing_that_looks_like_one(value: object) -> None:
    with pytest.raises(ValueError, match="forward_s"):
        LayerRow.model_validate({"layer": 1, "micro_batch_size": 1, "forward_s": value, "backward_s": 0.01})
    LayerRow.model_validate({"layer": 1, "micro_batch_size": 1, "forward_s": 1, "backward_s": 0.01})
