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
