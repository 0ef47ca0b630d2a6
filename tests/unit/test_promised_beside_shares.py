"""What a project's deadline is promised beside the shares of others, part of which runs for good already."""

from __future__ import annotations

from typing import Any

import pytest

from arena.domain.job import JobId
from arena.domain.tenants import ANY_TYPE, Guarantee
from arena.policies.base import Snapshot
from arena.policies.priced.policy import PricedPolicy
from tests.builders import allocation_on, command_spec, holding_of, node_info, scaling_grid, snapshot_of, train_spec

PAIR = scaling_grid("cpu", [(2,)])
ONE = scaling_grid("cpu", [(1,)])


def asking(nodes: list[int], held: dict[str, int], kind: str = "cpu", *, limit_s: float | None = None) -> Snapshot:
    """Speech asks for two GPUs; it and vision are guaranteed two each, of which vision runs one-GPU programs."""
    asked = train_spec("a", kind="rigid", gpus={"count": 2}, stop={"steps": 60}, deadline_s=110.0, project="speech")
    jobs: dict[str, Any] = {"a": (asked, PAIR)}
    stop = {} if limit_s is None else {"time_limit_s": limit_s}
    running = {}
    for at, (node, index) in enumerate(held.items()):
        jobs[f"v{at}"] = (command_spec(f"v{at}", count=1, preemptible=False, project="vision", stop=stop), ONE)
        running[f"v{at}"] = holding_of(ONE, allocation_on((node, (index,))), movable=False, since_s=1_000.0)
    infos = [node_info(f"n{at}", gpus=count) for at, count in enumerate(nodes)]
    tenants = {name: Guarantee(gpu_count_by_type={kind: 2}) for name in ("speech", "vision")}
    return snapshot_of(infos, jobs, running=running, tenants=tenants)


def is_promised(snapshot: Snapshot) -> bool:
    answer = PricedPolicy().admission(snapshot, JobId("a"))
    assert answer is not None
    return answer.is_promised


@pytest.mark.parametrize("limit_s", [None, 5.0, 30.0, 500.0])
@pytest.mark.parametrize("kind", ["cpu", ANY_TYPE])
@pytest.mark.parametrize("nodes", [[4], [2, 2]])
def test_what_a_tenant_runs_for_good_counts_against_its_share_once(
    nodes: list[int], kind: str, limit_s: float | None
) -> None:
    assert is_promised(asking(nodes, {}, kind))
    assert is_promised(asking(nodes, {"n0": 1}, kind, limit_s=limit_s))


def test_what_runs_for_good_apart_leaves_no_two_together() -> None:
    assert not is_promised(asking([2, 2], {"n0": 0, "n1": 0}))


@pytest.mark.parametrize("deadline_s", [120.0, 200.0, 900.0])
@pytest.mark.parametrize("lent", [0, 1])
def test_the_rest_of_a_share_may_lie_where_it_was_wanted_before_others_left_their_nodes(
    deadline_s: float, lent: int
) -> None:
    """A program of vision that starts now takes the only free GPU, of n0, and breaks for good what comes back there."""
    quad, three = scaling_grid("cpu", [(4,)]), scaling_grid("cpu", [(3,)])
    asked = train_spec(
        "a", kind="rigid", gpus={"count": 4}, stop={"steps": 20}, deadline_s=deadline_s, project="speech"
    )
    jobs: dict[str, Any] = {"a": (asked, quad)}
    running = {}
    for name, node, indexes, limit_s in (
        ("s3", "n0", (0, 1, 2), 51.0),
        ("s2", "n1", (0, 1), None),
        ("A", "n1", (2, 3), 47.0),
    ):
        grid = three if len(indexes) == 3 else PAIR
        stop = {} if limit_s is None else {"time_limit_s": limit_s}
        spec = command_spec(name, count=len(indexes), preemptible=False, project="speech", stop=stop)
        jobs[name] = (spec, grid)
        running[name] = holding_of(grid, allocation_on((node, indexes)), movable=False, since_s=1_000.0)
    tenants = {"speech": Guarantee(gpu_count_by_type={"cpu": 8 - lent})}
    if lent:
        tenants["vision"] = Guarantee(gpu_count_by_type={"cpu": lent})
    snapshot = snapshot_of([node_info("n0", gpus=4), node_info("n1", gpus=4)], jobs, running=running, tenants=tenants)
    assert is_promised(snapshot) == (lent == 0)
