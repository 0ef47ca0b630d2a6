"""Every row of a parameter is where its layer is computed, once a replica; all who hold it know of each other."""

from __future__ import annotations

from collections import Counter, defaultdict

import pytest
import torch
from hypothesis import given, settings

from arena.domain.job import TrainSpec
from arena.domain.parallel import ParallelPlan, parse_plan
from arena.domain.parameters import Parameter, parameters_of
from arena_agent.worker.groups import Groups
from arena_agent.worker.optimizer import initialise
from arena_agent.worker.placement import Coordinate, Placement
from arena_agent.worker.units import Run, Unit, UnitBuilder, runs_of
from arena_agent.worker.weights import initial_weight
from tests.property.layout_strategies import LAYERS, layouts

Layout = tuple[TrainSpec, ParallelPlan]


def placed(layout: Layout) -> Placement:
    train, plan = layout
    return Placement(spec=train.model, plan=plan)


def uses_of(placement: Placement, parameter: Parameter) -> set[tuple[int, int]]:
    """Return the (stage, replica) that compute with a parameter, from the plan alone."""
    plan = placement.plan
    stages = {
        chunk.index % plan.pp
        for chunk in placement.chunks
        if parameter.place in chunk.layers
        or (chunk.is_first and parameter.place == "first")
        or (chunk.is_last and (parameter.place == "last" or parameter.is_tied))
    }
    places = {(stage, replica) for stage in stages for replica in range(len(plan.stages[stage].replicas))}
    if parameter.expert is None:
        return places
    owner = parameter.expert * plan.expert_parallel // (placement.spec.expert_count or 1)
    return {(stage, replica) for stage, replica in places if replica % plan.expert_parallel == owner}


def rows_of(placement: Placement, parameter: Parameter, at: Coordinate) -> range:
    """Return the rows of a parameter that a rank holds, from the plan alone."""
    if (at.stage, at.replica) not in uses_of(placement, parameter):
        return range(0)
    rows = parameter.shape[0]
    return range(rows * at.tp_index // at.tp, rows * (at.tp_index + 1) // at.tp) if parameter.is_split else range(rows)


@settings(deadline=None)
@given(layout=layouts())
def test_each_replica_that_uses_a_parameter_holds_each_of_its_rows(layout: Layout) -> None:
    """Once where tensor parallelism splits it, on every rank where not; nobody else holds any."""
    placement = placed(layout)
    held: dict[str, Counter[tuple[int, int, int]]] = defaultdict(Counter)
    for at in placement.ranks:
        for one in placement.shares(at.rank):
            held[one.parameter.name].update((at.stage, at.replica, row) for row in range(one.start, one.stop))
    for parameter in parameters_of(placement.spec):
        copies = {
            (stage, replica): 1 if parameter.is_split else placement.plan.stages[stage].replicas[replica].tp
            for stage, replica in uses_of(placement, parameter)
        }
        wanted = {(*place, row): count for place, count in copies.items() for row in range(parameter.shape[0])}
        assert held[parameter.name] == wanted


@settings(deadline=None)
@given(layout=layouts())
def test_cuts_are_all_rows_in_order_each_with_exactly_its_holders(layout: Layout) -> None:
    placement = placed(layout)
    for parameter in parameters_of(placement.spec):
        cuts = placement.cuts(parameter)
        held = {at.rank: rows_of(placement, parameter, at) for at in placement.ranks}
        assert [row for start, stop, _ in cuts for row in range(start, stop)] == list(range(parameter.shape[0]))
        for start, stop, ranks in cuts:
            assert list(ranks) == [rank for rank, rows in held.items() if rows.start <= start and stop <= rows.stop]
            assert ranks in placement.sharer_sets


@settings(deadline=None)
@given(layout=layouts())
def test_sharers_agree_on_what_they_share_and_in_which_order(layout: Layout) -> None:
    placement = placed(layout)
    shares = {
        at.rank: [(share.parameter.name, share.start, share.stop, share.ranks) for share in placement.shares(at.rank)]
        for at in placement.ranks
    }
    for sharers in placement.sharer_sets:
        lists = [[share for share in shares[rank] if share[3] == sharers] for rank in sharers]
        assert lists[0]
        assert all(other == lists[0] for other in lists)
    for rank, own in shares.items():
        assert all(rank in ranks for *_, ranks in own)
        held = {
            (parameter.name, row)
            for parameter in parameters_of(placement.spec)
            for row in rows_of(placement, parameter, placement.ranks[rank])
        }
        assert held == {(name, row) for name, start, stop, _ in own for row in range(start, stop)}


@settings(deadline=None)
@given(layout=layouts())
def test_a_replica_counts_once_in_every_gradient(layout: Layout) -> None:
    """Ranks with copies of one gradient weigh one together; ranks with parts of it, of tokens or rows, one each."""
    placement = placed(layout)
    weights: dict[tuple[str, int, int, int], list[float]] = defaultdict(list)
    for at in placement.ranks:
        for share in placement.shares(at.rank):
            weights[share.parameter.name, share.start, at.stage, at.replica].append(share.gradient_weight)
    by_name = {parameter.name: parameter for parameter in parameters_of(placement.spec)}
    for (name, *_), of_replica in weights.items():
        has_parts = by_name[name].is_split or (placement.plan.sequence_parallel and not name.startswith("head."))
        if has_parts:
            assert of_replica == [1.0] * len(of_replica)
        else:
            assert sum(of_replica) == 1.0


@settings(deadline=None)
@given(layout=layouts())
def test_only_tied_embeddings_are_shared_between_stages(layout: Layout) -> None:
    placement = placed(layout)
    for at in placement.ranks:
        for share in placement.shares(at.rank):
            stages = {placement.ranks[rank].stage for rank in share.ranks}
            assert share.spans_stages == (len(stages) > 1)
            assert stages == {stage for stage, _ in uses_of(placement, share.parameter)}
            assert share.spans_stages == (share.parameter.is_tied and placement.plan.pp > 1)


@settings(max_examples=40, deadline=None)
@given(layout=layouts())
def test_every_element_is_counted_once_written_once_and_starts_alike_everywhere(layout: Layout) -> None:
    train, plan = layout
    placement = placed(layout)
    runs = [(at.rank, run) for at in placement.ranks for run in runs_on(placement, at.rank)]
    for parameter in parameters_of(train.model):
        own = [run for _, run in runs if run.share.parameter.name == parameter.name]
        whole = initial_weight(parameter, train.seed).flatten()
        counted, written = torch.zeros(len(whole)), torch.zeros(len(whole))
        for run in own:
            counted[run.start : run.stop] += run.is_counted
            written[run.start : run.stop] += run.is_written
            assert torch.equal(run.value, whole[run.start : run.stop])
        assert bool((counted == 1).all()), (parameter.name, str(plan))
        assert bool((written == 1).all()), (parameter.name, str(plan))


def runs_on(placement: Placement, rank: int) -> list[Run]:
    """Return a rank's initialised runs; laying them out needs no process group."""
    runs = [run for unit in units_on(placement, rank) for run in runs_of(unit, rank)]
    initialise(runs, 0)
    return runs


def units_on(placement: Placement, rank: int) -> list[Unit]:
    alone = Groups(sharers={}, layer={}, wires={})
    builder = UnitBuilder(placement=placement, rank=rank, groups=alone, dtype=torch.float32, device=torch.device("cpu"))
    return builder.units()


@pytest.mark.parametrize(("text", "has_whole"), [("dp2 zero2", True), ("dp2 zero3", False), ("dp1 zero3", False)])
def test_sharded_weights_are_never_whole_at_once_not_even_at_the_start(text: str, *, has_whole: bool) -> None:
    model = {"family": "gpt", "layers": LAYERS, "hidden": 16, "heads": 4}
    train = TrainSpec.model_validate({"model": model, "global_batch": 8})
    units = units_on(Placement(spec=train.model, plan=parse_plan(text, layer_count=LAYERS)), 0)
    assert {unit.weights.untyped_storage().nbytes() > 0 for unit in units} == {has_whole}


@pytest.mark.parametrize(
    ("text", "cuts"),
    [
        # Rows of wq, 16 in all: halves meet quarters and a whole.
        ("[layers=4 tp2,tp1]", [(0, 8, (0, 2)), (8, 16, (1, 2))]),
        ("[layers=4 tp4,tp2]", [(0, 4, (0, 4)), (4, 8, (1, 4)), (8, 12, (2, 5)), (12, 16, (3, 5))]),
        ("[layers=3 tp1 | layers=1 tp2,tp1]", [(0, 16, (0,))]),
    ],
)
def test_unequal_degrees_by_hand(text: str, cuts: list[tuple[int, int, tuple[int, ...]]]) -> None:
    model = {"family": "gpt", "layers": LAYERS, "hidden": 16, "heads": 4}
    train = TrainSpec.model_validate({"model": model, "global_batch": 8})
    placement = Placement(spec=train.model, plan=parse_plan(text, layer_count=LAYERS))
    [parameter] = [one for one in parameters_of(train.model) if one.name == "layers.0.attn.wq.weight"]
    assert placement.cuts(parameter) == cuts
