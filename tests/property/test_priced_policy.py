"""What the policy `arena` promises on any snapshot, beyond what every policy does."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arena.domain.allocation import Allocation, GpuGroup
from arena.domain.cluster import NodeInfo
from arena.domain.grid import Grid
from arena.domain.job import JobId, JobKind, JobSpec
from arena.policies.base import Decision, Holding, Snapshot
from arena.policies.capacity import Capacity
from arena.policies.placement import place
from arena.policies.priced.changes import ChangeRules
from arena.policies.priced.policy import PricedPolicy
from tests.builders import allocation_on, cell, command_spec, grid_of, node_info, snapshot_of, train_spec

sized = settings(max_examples=30, deadline=None)
TYPES = ("a", "b")
SHAPES = ((1,), (2,), (1, 1), (4,), (2, 2), (4, 4))
priorities = st.sampled_from([0, 0, 0, -30, 30])
"""Each step counts twice as much: what some jobs are worth is lost in the rounding of what others are."""


@st.composite
def grids(draw: st.DrawFn, *, cells_max: int) -> Grid:
    offers = [(gpu_type, counts) for gpu_type in TYPES for counts in SHAPES]
    drawn = draw(st.lists(st.sampled_from(offers), min_size=1, max_size=cells_max, unique=True))
    return grid_of(*(cell(gpu_type, counts, draw(st.floats(0.1, 10.0))) for gpu_type, counts in drawn))


@st.composite
def jobs(draw: st.DrawFn, job_id: str) -> tuple[JobSpec, Grid]:
    kind = draw(st.sampled_from(["command", *JobKind]))
    fields = {"preemptible": draw(st.booleans()), "priority": draw(priorities)}
    if kind in {"command", JobKind.RIGID}:
        grid = draw(grids(cells_max=1))
        count = grid.cells[0].group.gpu_count
        if kind == "command":
            return command_spec(job_id, count=count, **fields), grid
        return train_spec(job_id, kind="rigid", gpus={"count": count}, **fields), grid
    steps = draw(st.sampled_from([1, 100, 1_000_000]))
    return train_spec(job_id, kind=kind, stop={"steps": steps}, **fields), draw(grids(cells_max=5))


@st.composite
def snapshots(draw: st.DrawFn, *, is_empty: bool = False) -> Snapshot:
    """Some nodes, jobs that wait and, unless it is to be empty, jobs that hold the first devices that fit."""
    nodes = [
        node_info(f"n{index}", gpus=draw(st.sampled_from([1, 2, 4])), gpu_type=draw(st.sampled_from(TYPES)))
        for index in range(draw(st.integers(1, 5)))
    ]
    known = {f"j{index}": draw(jobs(f"j{index}")) for index in range(draw(st.integers(1, 6)))}
    free = {node.node_id: list(range(len(node.devices))) for node in nodes}
    running: dict[str, Holding] = {}
    for job_id, (_, grid) in known.items() if not is_empty else ():
        holding = draw(st.none() | holdings(nodes, free, grid))
        if holding is not None:
            running[job_id] = holding
    return snapshot_of(nodes, known, running=running, restart_s=draw(st.sampled_from([0.0, 10.0, 600.0])))


@st.composite
def holdings(draw: st.DrawFn, nodes: list[NodeInfo], free: dict[str, list[int]], grid: Grid) -> Holding | None:
    found = draw(st.sampled_from(grid.cells))
    (part,) = found.group.parts
    shares: list[tuple[str, list[int]]] = []
    for count in part.node_counts:
        used = {name for name, _ in shares}
        fitting = [
            node.node_id
            for node in nodes
            if node.gpu_type == part.gpu_type and len(free[node.node_id]) >= count and node.node_id not in used
        ]
        if not fitting:
            return None
        shares.append((fitting[0], free[fitting[0]][:count]))
    for name, indexes in shares:
        free[name] = free[name][len(indexes) :]
    return Holding(
        group=found.group,
        plan=found.best.plan,
        estimate=found.best.estimate,
        allocation=allocation_on(*shares),
        movable=draw(st.booleans()),
        since_s=0.0,
    )


def after(snapshot: Snapshot, decision: Decision) -> Capacity:
    """What is free once a decision is carried out."""
    capacity = snapshot.capacity
    for job_id in decision.choices:
        if job_id in snapshot.holding:
            capacity = capacity.restore(snapshot.holding[job_id].allocation)
    for choice in decision.choices.values():
        if choice is not None:
            capacity = capacity.take_all(choice.allocation)
    return capacity


def fitting(snapshot: Snapshot, job_id: JobId, capacity: Capacity) -> list[GpuGroup]:
    """Groups of a job's grid that could be placed."""
    groups = [one.group for one in snapshot.grids[job_id].cells]
    return [group for group in groups if isinstance(place(capacity, group), Allocation)]


@sized
@given(snapshot=snapshots(is_empty=True))
def test_an_empty_cluster_does_not_leave_a_job_waiting_that_fits(snapshot: Snapshot):
    decision = PricedPolicy().decide(snapshot)
    room = after(snapshot, decision)
    startable = any(fitting(snapshot, job_id, snapshot.capacity) for job_id in snapshot.waiting)
    assert any(choice is not None for choice in decision.choices.values()) or not startable
    for job_id in set(snapshot.waiting) - set(decision.choices):
        assert fitting(snapshot, job_id, room) == []


@sized
@given(snapshot=snapshots())
def test_nobody_waits_for_what_is_left_over(snapshot: Snapshot):
    decision = PricedPolicy().decide(snapshot)
    room = after(snapshot, decision)
    for job_id in set(snapshot.waiting) - set(decision.choices):
        assert fitting(snapshot, job_id, room) == []


@sized
@given(snapshot=snapshots())
def test_what_may_not_be_preempted_is_never_touched(snapshot: Snapshot):
    decision = PricedPolicy().decide(snapshot)
    for job_id, holding in snapshot.holding.items():
        if not holding.movable or not snapshot.jobs[job_id].spec.preemptible:
            assert job_id not in decision.choices


@sized
@given(snapshot=snapshots())
def test_the_numbers_of_a_decision_agree(snapshot: Snapshot):
    numbers = PricedPolicy().weighed(snapshot).numbers
    if not numbers:
        return
    value, bound, gap = numbers["value"], numbers["bound"], numbers["gap"]
    assert value <= bound * (1 + 1e-9) + 1e-9
    assert gap == pytest.approx(max(0.0, 1.0 - value / bound) if bound > 0 else 0.0, abs=1e-12)
    assert all(number >= 0.0 for name, number in numbers.items() if name.startswith("price "))


@sized
@given(snapshot=snapshots())
def test_each_of_its_decisions_is_the_first(snapshot: Snapshot):
    """What it remembers is speed, not state."""
    used = PricedPolicy()
    used.decide(replace(snapshot, restart_s=77.0))
    assert used.decide(snapshot) == PricedPolicy().decide(snapshot)


@sized
@given(snapshot=snapshots())
def test_a_decision_carried_out_is_not_taken_back(snapshot: Snapshot):
    """Asked again at the same instant, with what it gave in place, it changes nothing for the worse of anybody."""
    policy = PricedPolicy(changes=ChangeRules())
    decision = policy.decide(snapshot)
    holding = {job_id: held for job_id, held in snapshot.holding.items() if decision.choices.get(job_id, 0) is not None}
    for job_id, choice in decision.choices.items():
        if choice is not None:
            holding[job_id] = Holding(
                group=choice.group,
                plan=choice.plan,
                estimate=choice.estimate,
                allocation=choice.allocation,
                movable=False,  # the change is under way
                since_s=snapshot.now_s,
            )
    again = replace(
        snapshot,
        holding=holding,
        capacity=after(snapshot, decision),
        waiting=tuple(job_id for job_id in sorted(snapshot.jobs) if job_id not in holding),
    )
    for job_id, choice in policy.decide(again).choices.items():
        assert job_id not in decision.choices or decision.choices[job_id] is None
        assert choice is None or JobId(job_id) in again.jobs
