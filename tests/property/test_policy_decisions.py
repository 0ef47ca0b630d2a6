"""What every policy promises on any snapshot: no device twice, hands off what may not move, the same answer again."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arena.domain.cluster import NodeInfo
from arena.domain.grid import Grid
from arena.domain.job import JobId, JobKind, JobSpec
from arena.domain.launch import DeviceId
from arena.domain.parallel import ParallelPlan
from arena.policies.base import Decision, Holding, ServingWaiting, Snapshot
from arena.policies.registry import make_policy, policy_names
from tests.builders import allocation_on, cell, command_spec, grid_of, node_info, snapshot_of, train_spec

sized = settings(max_examples=40, deadline=None)
TYPES = ("a", "b")
SHAPES = ((1,), (2,), (1, 1), (3,), (2, 1), (4,), (2, 2), (4, 4))


@st.composite
def grids(draw: st.DrawFn, counts: st.SearchStrategy[tuple[tuple[int, ...], ...]]) -> Grid:
    types = draw(st.sets(st.sampled_from(TYPES), min_size=1))
    return grid_of(
        *(cell(gpu_type, shape, draw(st.floats(0.1, 10.0))) for gpu_type in sorted(types) for shape in draw(counts))
    )


shape_sets = st.sets(st.sampled_from(SHAPES), min_size=1).map(lambda shapes: tuple(sorted(shapes)))
one_shape = st.sampled_from(SHAPES).map(lambda shape: (shape,))


@st.composite
def jobs(draw: st.DrawFn, job_id: str) -> tuple[JobSpec, Grid]:
    kind = draw(st.sampled_from(["command", *JobKind]))
    if kind in {"command", JobKind.RIGID}:
        grid = draw(grids(one_shape))
        count = grid.cells[0].group.gpu_count
        if kind == "command":
            return command_spec(job_id, count=count), grid
        return train_spec(job_id, kind="rigid", gpus={"count": count}), grid
    spec = train_spec(job_id, kind=kind, preemptible=draw(st.booleans()))
    return spec, draw(grids(shape_sets))


@st.composite
def snapshots(draw: st.DrawFn) -> tuple[list[NodeInfo], Snapshot]:
    nodes = [
        node_info(f"n{index}", gpus=draw(st.integers(1, 4)), gpu_type=draw(st.sampled_from(TYPES)))
        for index in range(draw(st.integers(1, 5)))
    ]
    known = {f"j{index}": draw(jobs(f"j{index}")) for index in range(draw(st.integers(1, 6)))}
    free = {node.node_id: list(range(len(node.devices))) for node in nodes}
    running: dict[str, Holding] = {}
    for job_id, (_, grid) in known.items():
        holding = draw(st.none() | holdings(nodes, free, grid))
        if holding is not None:
            running[job_id] = holding
    snapshot = snapshot_of(nodes, known, running=running, now_s=draw(st.sampled_from([100.0, 10_000.0])))
    waited_s = draw(st.sampled_from([0.0, 5_000.0]))
    # Later ids came later among those that wait; those that run may have come at any time.
    since_s = {
        job_id: -waited_s + (draw(st.integers(-3, 9)) if job_id in running else index)
        for index, job_id in enumerate(known)
    }
    records = {
        job_id: replace(job, submitted_at_s=snapshot.now_s + since_s[job_id]) for job_id, job in snapshot.jobs.items()
    }
    capacity = snapshot.capacity
    for node in nodes:
        if draw(st.sampled_from([False, False, False, True])):  # draining: what it holds runs on, and never comes back
            pool = (node.gpu_type, node.zone)
            capacity = capacity.with_devices(node.node_id, pool, ()).with_node(node.node_id, pool, ())
    return nodes, replace(snapshot, jobs=records, capacity=capacity)


SUSPENDING = frozenset({"arena", "arena-greedy", "srtf", "tiresias"})
"""Policies that may take everything from a job; the others never do."""


@st.composite
def holdings(draw: st.DrawFn, nodes: list[NodeInfo], free: dict[str, list[int]], grid: Grid) -> Holding | None:
    """What a job runs on: one of its cells, laid over whatever the jobs before it left."""
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
        node_id = draw(st.sampled_from(fitting))
        shares.append((node_id, free[node_id][:count]))
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


@pytest.mark.parametrize("name", policy_names())
@sized
@given(case=snapshots())
def test_no_device_is_given_twice_and_none_that_somebody_keeps(name: str, case: tuple[list[NodeInfo], Snapshot]):
    nodes, snapshot = case
    decision = make_policy(name).decide(snapshot)
    after = {job_id: holding.allocation for job_id, holding in snapshot.holding.items()}
    for job_id, choice in decision.choices.items():
        if choice is None:
            del after[job_id]
        else:
            after[job_id] = choice.allocation
    given_out = Counter(device for allocation in after.values() for device in allocation.device_ids)
    every = {device.device_id for node in nodes for device in node.devices}
    assert set(given_out) <= every
    usable = {device for room in snapshot.capacity.devices.values() for _, device in room.free}
    for choice in decision.choices.values():
        assert choice is None or choice.allocation.device_ids <= usable
    assert max(given_out.values(), default=0) <= 1


SERVING_WAITING = tuple(
    name
    for name in policy_names()
    if isinstance(policy := make_policy(name), ServingWaiting) and policy.serves_waiting_only
)


@pytest.mark.parametrize("name", SERVING_WAITING)
@sized
@given(case=snapshots())
def test_who_serves_waiting_jobs_only_has_nothing_to_say_while_none_waits(
    name: str, case: tuple[list[NodeInfo], Snapshot]
):
    _, snapshot = case
    running = {job_id: snapshot.jobs[job_id] for job_id in snapshot.holding}
    quiet = replace(snapshot, waiting=(), jobs=running)
    assert make_policy(name).decide(quiet) == Decision()


def forgotten(snapshot: Snapshot, decision: Decision) -> set[JobId]:
    """Waiting jobs that neither start nor are told why not."""
    told = {*decision.choices, *decision.reasons}
    return set() if decision.rest is not None else set(snapshot.waiting) - told


@pytest.mark.parametrize("name", policy_names())
@sized
@given(case=snapshots())
def test_nobody_is_forgotten(name: str, case: tuple[list[NodeInfo], Snapshot]):
    _, snapshot = case
    assert forgotten(snapshot, make_policy(name).decide(snapshot)) == set()


@pytest.mark.parametrize("name", policy_names())
@sized
@given(case=snapshots())
def test_only_waiting_and_movable_jobs_are_named(name: str, case: tuple[list[NodeInfo], Snapshot]):
    _, snapshot = case
    for job_id, choice in make_policy(name).decide(snapshot).choices.items():
        holding, spec = snapshot.holding.get(job_id), snapshot.jobs[job_id].spec
        if holding is None:
            assert job_id in snapshot.waiting
            continue
        assert holding.movable
        assert spec.preemptible
        if choice is None:
            assert name in SUSPENDING
            continue
        assert spec.kind is JobKind.MALLEABLE
        assert choice.allocation.device_ids != holding.allocation.device_ids or choice.group != holding.group


@pytest.mark.parametrize("name", policy_names())
@sized
@given(case=snapshots())
def test_a_choice_is_a_cell_of_the_jobs_grid_laid_out_as_the_cell_says(
    name: str, case: tuple[list[NodeInfo], Snapshot]
):
    nodes, snapshot = case
    type_of: dict[DeviceId, str] = {device.device_id: node.gpu_type for node in nodes for device in node.devices}
    for job_id, choice in make_policy(name).decide(snapshot).choices.items():
        if choice is None:  # see the test before
            continue
        found = snapshot.grids[job_id].cell(choice.group)
        assert found is not None
        assert (choice.plan, choice.estimate) == (found.best.plan, found.best.estimate)
        (part,) = choice.group.parts
        assert tuple(len(share.device_ids) for share in choice.allocation.shares) == part.node_counts
        assert {type_of[device] for device in choice.allocation.device_ids} == {part.gpu_type}
        assert isinstance(choice.plan, ParallelPlan)


@pytest.mark.parametrize("name", policy_names())
@sized
@given(case=snapshots(), data=st.data())
def test_the_order_of_mappings_does_not_matter(name: str, case: tuple[list[NodeInfo], Snapshot], data: st.DataObject):
    _, snapshot = case
    order = data.draw(st.permutations(sorted(snapshot.jobs)))
    other = replace(
        snapshot,
        jobs={job_id: snapshot.jobs[job_id] for job_id in order},
        grids={job_id: snapshot.grids[job_id] for job_id in order},
        holding={job_id: snapshot.holding[job_id] for job_id in order if job_id in snapshot.holding},
    )
    policy = make_policy(name)
    assert policy.decide(other) == policy.decide(snapshot) == policy.decide(snapshot)


@pytest.mark.parametrize("name", policy_names())
@sized
@given(case=snapshots())
def test_every_waiting_job_starts_or_is_told_why_not(name: str, case: tuple[list[NodeInfo], Snapshot]):
    _, snapshot = case
    decision = make_policy(name).decide(snapshot)
    for job_id in snapshot.waiting:
        told = decision.reasons.get(job_id, ())
        assert told or decision.rest is not None
        assert all(str(item) and "?" not in str(item) for item in told)


@sized
@given(case=snapshots())
def test_the_first_waiting_job_starts_if_it_fits_without_touching_anybody(case: tuple[list[NodeInfo], Snapshot]):
    """Work conserving at the head: what an empty queue would place, elastic places."""
    _, snapshot = case
    if not snapshot.waiting:
        return
    head = JobId(snapshot.waiting[0])
    alone = replace(snapshot, waiting=(head,))
    decision = make_policy("elastic").decide(snapshot)
    if head in make_policy("elastic").decide(alone).choices:
        assert head in decision.choices
