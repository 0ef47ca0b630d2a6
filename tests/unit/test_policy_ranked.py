"""Policies that displace by rank, where nodes give nothing back and where checkpoints bind jobs to nodes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from arena.domain.grid import Grid
from arena.domain.job import JobId
from arena.domain.launch import NodeId
from arena.policies.base import Holding, Snapshot
from arena.policies.registry import make_policy
from tests.builders import allocation_on, cell, grid_of, node_info, snapshot_of, train_spec

ON_A, ON_B = cell("a", (1,), 1.0), cell("b", (1,), 1.0)
NODES = (node_info("n1", gpus=1, gpu_type="a"), node_info("n2", gpus=1, gpu_type="a"))
LONGEST, LONG, SHORT = (JobId(name) for name in ("longest", "long", "short"))
GPU_SECONDS = {LONGEST: 900_000.0, LONG: 10_000.0, SHORT: 0.0}
OTHER = node_info("n3", gpus=1, gpu_type="b")


def holding(node: str) -> Holding:
    return Holding(
        group=ON_A.group,
        plan=ON_A.best.plan,
        estimate=ON_A.best.estimate,
        allocation=allocation_on((node, [0])),
        movable=True,
        since_s=1000.0,
    )


def two_run_and_one_waits(*, with_other: bool = False, **fields: Any) -> Snapshot:
    """The longest job runs on n1, a long one on n2, and a short one waits for a GPU of their type."""
    grids: dict[str, Grid] = {"longest": grid_of(ON_A, ON_B), "long": grid_of(ON_A), "short": grid_of(ON_A)}
    steps = {"longest": 3000, "long": 2000, "short": 10}
    known = {name: (train_spec(name, stop={"steps": steps[name]}), grid) for name, grid in grids.items()}
    nodes = [*NODES, *([OTHER] if with_other else [])]
    running = {"longest": holding("n1"), "long": holding("n2")}
    found = snapshot_of(nodes, known, running=running, now_s=1000.0, **fields)
    return replace(found, jobs={name: replace(job, gpu_seconds=GPU_SECONDS[name]) for name, job in found.jobs.items()})


@pytest.mark.parametrize("name", ["srtf", "tiresias"])
def test_a_job_on_a_node_that_takes_no_work_is_not_displaced_in_vain(name: str) -> None:
    """The lowest rank runs on a drained node: its devices would not come back, so the next lowest makes room."""
    snapshot = two_run_and_one_waits()
    drained = snapshot.capacity.with_devices(NodeId("n1"), ("a", "default"), ())
    choices = make_policy(name).decide(replace(snapshot, capacity=drained)).choices
    assert set(choices) == {LONG, SHORT}
    assert choices[LONG] is None
    started = choices[SHORT]
    assert started is not None
    assert started.allocation == allocation_on(("n2", [0]))


@pytest.mark.parametrize("name", ["srtf", "tiresias"])
@pytest.mark.parametrize(("disk", "moves"), [("one", True), ("another", False)])
def test_a_displaced_job_moves_only_where_its_checkpoints_are(name: str, disk: str, moves: bool) -> None:
    places = {NodeId("n1"): {"/ckpt": "one"}, NodeId("n2"): {"/ckpt": "one"}, NodeId("n3"): {"/ckpt": disk}}
    snapshot = two_run_and_one_waits(with_other=True, places=places, checkpoint_root="/ckpt")
    choices = make_policy(name).decide(snapshot).choices
    assert choices[SHORT] is not None
    moved = choices[LONGEST]
    assert (moved is not None) == moves
    assert moved is None or moved.allocation == allocation_on(("n3", [0]))
