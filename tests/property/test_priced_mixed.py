"""Whatever groups over several GPU types jobs may have or hold, decisions of `arena` can be carried out."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from arena.domain.allocation import Allocation, GpuGroup, GroupPart, splits_tensor_parallel_group
from arena.domain.grid import Cell, Estimate, Grid, PlanEstimate
from arena.domain.parallel import ParallelPlan, Replica, Stage
from arena.policies.base import Choice, Holding, Snapshot
from arena.policies.capacity import Capacity
from arena.policies.placement import place
from arena.policies.priced.policy import PricedPolicy
from tests.builders import capacity_of, cell, grid_of, node_info, snapshot_of, train_spec

ALONE = [(name, counts) for name in ("a", "b") for counts in ((1,), (2,), (4,), (2, 2), (4, 4))]


def mixed_cell(group: GpuGroup, iter_time_s: float) -> Cell:
    """Two stages where each type is on both, so that ranks in order of type are not in order of stages."""
    replicas = [[Replica(gpu_type=part.gpu_type) for _ in range(part.gpu_count // 2)] for part in group.parts]
    odd = [Replica(gpu_type=part.gpu_type) for part in group.parts if part.gpu_count % 2]
    first = tuple(one for some in replicas for one in some) + tuple(odd)
    second = tuple(one for some in replicas for one in some) or tuple(odd[:0])
    stages = [Stage(layer_count=2, replicas=first)] + ([Stage(layer_count=2, replicas=second)] if second else [])
    plan = ParallelPlan(stages=tuple(stages))
    return Cell(group=group, best=PlanEstimate(plan=plan, estimate=Estimate(iter_time_s=iter_time_s)))


@st.composite
def groups(draw: st.DrawFn) -> GpuGroup:
    """Groups of both types, one of them perhaps in two parts."""
    counts = st.sampled_from([(1,), (2,), (4,), (2, 1), (4, 4)])
    parts = [GroupPart(gpu_type="a", node_counts=draw(counts))]
    parts += [GroupPart(gpu_type="b", node_counts=draw(counts)) for _ in range(draw(st.integers(1, 2)))]
    return GpuGroup(parts=tuple(parts))


@st.composite
def grids(draw: st.DrawFn) -> Grid:
    alone = draw(st.lists(st.sampled_from(ALONE), max_size=4, unique=True))
    cells = grid_of(*(cell(name, counts, draw(st.floats(0.1, 10.0))) for name, counts in alone))
    wide = draw(st.lists(groups(), min_size=1, max_size=3, unique=True))
    return replace(cells, mixed=tuple(mixed_cell(group, draw(st.floats(0.05, 5.0))) for group in wide))


@st.composite
def snapshots(draw: st.DrawFn) -> Snapshot:
    nodes = [
        node_info(f"n{index}", gpus=draw(st.sampled_from([1, 2, 4])), gpu_type=draw(st.sampled_from(("a", "b"))))
        for index in range(draw(st.integers(2, 6)))
    ]
    known = {f"j{index}": (train_spec(f"j{index}"), draw(grids())) for index in range(draw(st.integers(1, 5)))}
    capacity, running = capacity_of(nodes), dict[str, Holding]()
    for job_id, (_, grid) in known.items():
        wanted = draw(st.none() | st.sampled_from([*grid.cells, *grid.mixed]))
        found = None if wanted is None else place(capacity, wanted.group)
        if wanted is not None and isinstance(found, Allocation):
            capacity = capacity.take_all(found)
            running[job_id] = Holding(
                group=wanted.group,
                plan=wanted.best.plan,
                estimate=wanted.best.estimate,
                allocation=found,
                movable=draw(st.booleans()),
                since_s=0.0,
            )
    return snapshot_of(nodes, known, running=running, restart_s=draw(st.sampled_from([0.0, 60.0])))


def check_seats(capacity: Capacity, choice: Choice) -> None:
    """Each count of each part has a node of its own, of the part's type, and ranks are where the plan wants them."""
    wanted = [(part.gpu_type, count) for part in choice.group.parts for count in part.node_counts]
    shares = choice.allocation.shares
    assert [(capacity.devices[one.node_id].pool[0], len(one.device_ids)) for one in shares] == wanted
    assert len(set(choice.allocation.node_ids)) == len(shares)
    assert choice.plan is not None
    assert not splits_tensor_parallel_group(choice.plan, [count for _, count in wanted])
    if choice.plan.names_gpus:
        stages = choice.plan.stages
        named = [stages[stage].replicas[replica].gpu_type for stage, replica in choice.plan.replicas_by_rank]
        assert named == [name for name, count in wanted for _ in range(count)]


@settings(max_examples=60, deadline=None)
@given(snapshot=snapshots())
def test_what_is_decided_can_be_carried_out(snapshot: Snapshot) -> None:
    decision = PricedPolicy().decide(snapshot)
    capacity = snapshot.capacity
    for job_id in decision.choices:
        if job_id in snapshot.holding:
            assert snapshot.holding[job_id].movable
            capacity = capacity.restore(snapshot.holding[job_id].allocation)
    for job_id, choice in decision.choices.items():
        if choice is not None:
            check_seats(snapshot.capacity, choice)
            assert snapshot.grids[job_id].cell(choice.group) is not None
            capacity = capacity.take_all(choice.allocation)  # a device that is given twice is an error
    assert decision.numbers.get("value", 0.0) <= decision.numbers.get("bound", 0.0) * (1 + 1e-6) + 1e-9
    assert PricedPolicy().decide(snapshot) == decision
