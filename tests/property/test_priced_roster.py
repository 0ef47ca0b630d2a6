"""What `arena` carries over from one decision to the next never changes an answer."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from arena.domain.launch import NodeId
from arena.domain.records import Progress
from arena.policies.base import Snapshot
from arena.policies.capacity import Capacity
from arena.policies.priced.market import Tables, market_of
from arena.policies.priced.policy import PricedPolicy
from tests.builders import allocation_on, cell, grid_of, holding_of, node_info, snapshot_of, train_spec
from tests.property.test_priced_policy import snapshots


@st.composite
def successions(draw: st.DrawFn) -> list[Snapshot]:
    """A snapshot and what may have become of it: jobs make steps, are moved, end, come again, are planned anew."""
    first = draw(snapshots())
    found = [first]
    for _ in range(draw(st.integers(1, 3))):
        found.append(later(draw, draw(st.sampled_from([first, found[-1]]))))
    return found


def later(draw: st.DrawFn, snapshot: Snapshot) -> Snapshot:
    now_s = snapshot.now_s + draw(st.sampled_from([0.0, 7.0, 4000.0]))
    jobs, holding, capacity = snapshot.jobs, snapshot.holding, snapshot.capacity
    for job_id in sorted(holding):
        match draw(st.sampled_from(["same", "stepped", "moved", "over"])):
            case "stepped":
                progress = Progress(step=draw(st.integers(1, 90)), reported_at_s=now_s, step_time_s=0.5)
                jobs = jobs.set(job_id, replace(jobs[job_id], progress=progress))
            case "moved":
                jobs = jobs.set(job_id, replace(jobs[job_id], epoch=5, launched_at_s=(now_s,) * 4))
                holding = holding.set(job_id, replace(holding[job_id], since_s=now_s))
            case "over":
                capacity = capacity.restore(holding[job_id].allocation)
                jobs, holding = jobs.delete(job_id), holding.delete(job_id)
    waiting = tuple(job_id for job_id in snapshot.waiting if draw(st.booleans()))
    grids = snapshot.grids
    for job_id in waiting:
        if draw(st.booleans()):
            grids = grids.set(job_id, grids[draw(st.sampled_from(waiting))])
    for node_id in sorted(capacity.devices):
        if draw(st.integers(0, 3)) == 3:
            capacity = without(capacity, node_id)
    return replace(snapshot, now_s=now_s, jobs=jobs, holding=holding, capacity=capacity, waiting=waiting, grids=grids)


def without(capacity: Capacity, node_id: NodeId) -> Capacity:
    """What is there when a node is lost; who runs there has its devices until that is known."""
    pool = capacity.devices[node_id].pool
    return capacity.with_node(node_id, pool, ()).with_devices(node_id, pool, ())


@settings(max_examples=60, deadline=None)
@given(succession=successions())
def test_every_decision_is_as_if_it_were_the_first(succession: list[Snapshot]):
    used = PricedPolicy()
    for snapshot in succession:
        assert used.decide(snapshot) == PricedPolicy().decide(snapshot)
        assert used.weighed(snapshot) == PricedPolicy().weighed(snapshot)


@settings(max_examples=30, deadline=None)
@given(succession=successions())
def test_so_is_every_market(succession: list[Snapshot]):
    tables = Tables()
    for snapshot in succession:
        used, first = market_of(snapshot, tables), market_of(snapshot, Tables())
        assert [one.job_id for one in used.contenders] == [one.job_id for one in first.contenders]
        assert used.speed.tolist() == first.speed.tolist()
        assert used.usage.tolist() == first.usage.tolist()
        assert used.supply.tolist() == first.supply.tolist()


def test_in_which_order_a_mapping_lists_who_has_something_changes_nothing():
    """Maps list strings by their hashes, which differ from one process to the next."""
    nodes = [node_info(f"n{at}", gpus=2, gpu_type="a") for at in range(2)]
    grid = grid_of(cell("a", (2,), 1.0))
    known = {f"j{at}": (train_spec(f"j{at}", stop={"steps": 900}, deadline_s=950.0), grid) for at in range(3)}
    running = {
        f"j{at}": holding_of(grid, allocation_on((f"n{at}", (0, 1))), movable=False, since_s=900.0) for at in range(2)
    }
    snapshot = snapshot_of(nodes, known, running=running, now_s=1000.0)
    names = sorted(snapshot.holding)
    for order in (names, names[::-1]):
        seen = replace(snapshot, holding={job_id: snapshot.holding[job_id] for job_id in order})
        assert [one.job_id for one in market_of(seen, Tables()).outside] == names
