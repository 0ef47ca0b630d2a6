"""Graphs of layers: what crosses a cut, and what stages of an encoder-decoder send and hold."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arena.domain.allocation import GpuGroup
from arena.domain.job import ModelSpec, TrainSpec
from arena.domain.parallel import ParallelPlan, parse_plan
from arena.planner.candidates import candidate_of
from arena.planner.cost import Estimates, evaluate
from arena.planner.graph import chain_messages, layer_graph, messages_of
from arena.planner.hardware import catalog
from arena.planner.holdings import holdings
from arena.planner.memory import memory_of_plan
from arena.planner.model import model_cost

H100 = catalog()["h100"]
T5 = {"family": "t5", "layers": 8, "encoder_layers": 4, "hidden": 1024, "heads": 16, "vocab_size": 32128}


def train_of(**model: Any) -> TrainSpec:
    fields = {**T5, "seq_len": 512, "target_len": 128, **model}
    return TrainSpec.model_validate({"model": fields, "global_batch": 32, "precision": "bf16"})


def priced(train: TrainSpec, plan: ParallelPlan) -> Estimates:
    return evaluate(train, H100, GpuGroup.of("h100", [plan.gpu_count]), candidate_of(plan, train.global_batch))


@settings(deadline=None)
@given(outputs=st.lists(st.floats(1, 1e9), min_size=3, max_size=12))
def test_a_chain_sends_the_output_of_the_unit_before(outputs: list[float]) -> None:
    fast, slow = chain_messages(outputs), messages_of(layer_graph(outputs))
    assert np.array_equal(fast.crossing, slow.crossing)
    assert np.array_equal(fast.carried, slow.carried)
    assert fast.crossing.tolist() == [0, *outputs[:-1], 0]


def test_an_encoder_s_output_crosses_every_cut_between_decoder_layers() -> None:
    """Units: beginning, two encoder layers, three decoder layers, ending."""
    graph = layer_graph([1, 2, 3, 10, 20, 30, 100], encoder_layers=2)
    assert set(graph.successors(2)) == {3, 4, 5}
    messages = messages_of(graph)
    assert messages.crossing.tolist() == [0, 1, 2, 3, 10 + 3, 20 + 3, 30, 0]
    assert messages.carried.tolist() == [0, 0, 0, 0, 3, 3, 0, 0]


def test_a_t5_by_hand() -> None:
    """h = 8, two heads of 4, f = 12, V = 10, s = 6 and 4 positions: one encoder layer, one decoder layer."""
    fields = {"family": "t5", "layers": 2, "encoder_layers": 1, "hidden": 8, "heads": 2, "ffn_hidden": 12}
    cost = model_cost(ModelSpec.model_validate({**fields, "vocab_size": 10, "seq_len": 6, "target_len": 4}))
    attention, feed_forward, relative = 4 * 8 * 8, 2 * 8 * 12, 2 * 32
    assert cost.layer(0).parameters.total == attention + feed_forward + 2 * 8 + relative
    assert cost.layer(1).parameters.total == 2 * attention + feed_forward + 3 * 8 + relative + 8
    assert cost.beginning.parameters.tied == cost.ending.parameters.total - 8 == 10 * 8
    assert cost.layer(0).flops_per_sample == 2 * 6 * (attention + feed_forward) + 4 * 6 * 6 * 8
    own, cross = 2 * 4 * attention + 4 * 4 * 4 * 8 / 2, 2 * (2 * 4 + 2 * 6) * 8 * 8 + 4 * 4 * 6 * 8
    assert cost.layer(1).flops_per_sample == own + cross + 2 * 4 * feed_forward
    assert cost.ending.flops_per_sample == 2 * 4 * 8 * 10
    assert cost.messages.crossing.tolist() == [0, 48, 48, 32, 0]


@pytest.mark.parametrize(("layers", "elements"), [("2,6", 512), ("4,4", 512), ("6,2", 512 + 128), ("7,1", 512 + 128)])
def test_a_cut_costs_what_crosses_it(layers: str, elements: int) -> None:
    train = train_of()
    plan = parse_plan(f"pp2 mb1 layers={layers}", layer_count=8)
    found = priced(train, plan)
    cut = int(layers.split(",", maxsplit=1)[0])
    assert model_cost(train.model).messages.crossing[cut + 1] == elements * 1024
    longer = priced(train_of(target_len=256), plan).breakdown_s["pipeline_send"]
    grows = longer[0] > found.breakdown_s["pipeline_send"][0]
    assert grows == (cut > 4)


def test_stages_behind_the_encoder_keep_its_output_and_those_that_embed_keep_the_embedding() -> None:
    """Four stages of two layers: the embedding is on the first, where the decoder begins, and at a tied end."""
    plan = parse_plan("pp4 mb1", layer_count=8)
    for is_tied, users in ((False, [1, 0, 1, 0]), (True, [1, 0, 1, 1])):
        train = train_of(tied_embeddings=is_tied)
        cost, candidates = model_cost(train.model), candidate_of(plan, train.global_batch)
        held = holdings(cost, candidates)
        stages = [sum(cost.layer(layer).parameters.total for layer in (2 * stage, 2 * stage + 1)) for stage in range(4)]
        ends = [0, 0, 0, cost.ending.parameters.total]
        embedding = 32128 * 1024
        assert held.dense[0].tolist() == [
            layers + end + user * embedding for layers, end, user in zip(stages, ends, users, strict=True)
        ]


def test_a_longer_source_takes_memory_on_every_stage_of_the_decoder() -> None:
    plan = parse_plan("pp4 mb1 recompute=full", layer_count=8)
    short, long = (memory_of_plan(train_of(seq_len=length), plan, H100).activations[0] for length in (512, 1024))
    one = 512 * 1024 * 2
    # The last stage keeps the output that only passed the one before it, and receives it once ahead.
    assert np.all(long - short >= 2 * one)
