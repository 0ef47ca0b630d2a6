"""What a decision costs on 10,000 GPUs with 2,000 queued jobs, and what a grid costs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from time import perf_counter

import pytest

from arena.planner.source import PlannerGridSource
from arena.policies.base import Snapshot
from arena.policies.registry import make_policy
from tests.builders import allocation_on, capacity_of, node_info, scaling_grid, shape, snapshot_of, train_spec

NODE_COUNT, JOB_COUNT = 1_250, 2_000


def best_of(times: int, call: Callable[[], object]) -> float:
    """Seconds of the fastest call, which other load on the machine disturbs least."""
    found = []
    for _ in range(times):
        start_s = perf_counter()
        call()
        found.append(perf_counter() - start_s)
    return min(found)


def full_cluster() -> Snapshot:
    """Every node has a hole of one or three GPUs; the queue's first job asks for 32."""
    nodes = [node_info(f"n{index:04d}", gpus=8, gpu_type="a100-80") for index in range(NODE_COUNT)]
    taken = [allocation_on((node.node_id, range(7 if index % 2 else 5))) for index, node in enumerate(nodes)]
    grid = scaling_grid("a100-80", [[1], [2], [4], [8], [8, 8], [8, 8, 8, 8]])
    jobs = {f"j{index:04d}": (train_spec(f"j{index:04d}"), grid) for index in range(JOB_COUNT)}
    return replace(snapshot_of(nodes, jobs), capacity=capacity_of(nodes, taken))


@pytest.mark.benchmark
def test_fcfs_looks_only_at_the_head():
    snapshot, policy = full_cluster(), make_policy("fcfs")
    cost_s = best_of(200, lambda: policy.decide(snapshot))
    print(f"\nfcfs, head does not fit: {1e6 * cost_s:.0f} us a decision")
    assert cost_s < 100e-6


@pytest.mark.benchmark
def test_elastic_admits_thousands_in_a_second():
    snapshot, policy = full_cluster(), make_policy("elastic")
    decision = policy.decide(snapshot)
    cost_s = best_of(3, lambda: policy.decide(snapshot))
    print(f"\nelastic, {len(decision.choices)} jobs start: {1e3 * cost_s:.0f} ms a decision")
    assert cost_s < 5.0


@pytest.mark.benchmark
def test_a_grid_of_a_large_job_on_a_large_cluster():
    model = {
        "family": "llama",
        "layers": 32,
        "hidden": 4096,
        "heads": 32,
        "ffn_hidden": 11008,
        "vocab_size": 32000,
        "seq_len": 2048,
    }
    spec = train_spec(model=model, train={"global_batch": 256, "precision": "bf16"})
    cluster = shape(("a100-80", 8, NODE_COUNT), ("v100-16", 8, 32))
    grid = PlannerGridSource().grid(spec, cluster)
    cost_s = best_of(3, lambda: PlannerGridSource().grid(spec, cluster))
    print(f"\ngrid of {len(grid.cells)} cells and {len(grid.infeasible)} infeasible groups: {1e3 * cost_s:.0f} ms")
    assert cost_s < 5.0
