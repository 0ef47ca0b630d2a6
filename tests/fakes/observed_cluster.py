"""A cluster in which everything happens at once, as what is told of it is made from."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from immutables import Map

from arena.domain.cluster import NodeState
from arena.domain.job import JobId
from arena.domain.launch import NodeId
from arena.domain.records import JobState, NodeRecord
from arena.domain.tenants import Guarantee
from arena.engine.queue import JobQueue
from arena.engine.state import ClusterState
from arena_scheduler.metrics import Observed
from tests.builders import cell, device_id, grid_of, job_record, node_info, train_spec
from tests.fakes.cluster_of_views import NOW_S, attempt

LIVE = [state for state in JobState if not state.is_terminal]


def a_state(job_count: int, node_count: int, *, seed: int = 1, zones: int = 3) -> ClusterState:
    """Jobs and nodes in all states; some devices are held, kept for somebody, dirty."""
    draw = random.Random(seed)
    nodes = {}
    for index in range(node_count):
        info = node_info(f"n{index}", gpus=4, gpu_type=draw.choice(["a100-80", "t4"]), zone=f"z{index % zones}")
        devices = tuple(replace(one, dirty=draw.choice([None, None, None, "stuck"])) for one in info.devices)
        silent = draw.choice([None, None, NOW_S - 1.0])
        state = draw.choice([NodeState.READY, *NodeState])
        record = NodeRecord(node_id=NodeId(f"n{index}"), info=replace(info, devices=devices), state=state)
        nodes[record.node_id] = replace(record, disconnected_at_s=silent)
    jobs, attempts, holders, reserved = {}, {}, {}, {}
    for index in range(job_count):
        name = f"j{index}"
        spec = train_spec(name, project=draw.choice(["vision", "speech", f"p{index}"]))
        counts = {f"{kind}_count": draw.randrange(3) for kind in ("restart", "preemption", "reconfiguration")}
        job = job_record(
            name,
            spec,
            user=f"user{index}",
            state=draw.choice(LIVE),
            submitted_at_s=NOW_S - 9000.0,
            changed_at_s=NOW_S - draw.randrange(1, 100),
            gpu_seconds=float(index),
            **counts,
        )
        if job.state is JobState.RUNNING and index < node_count:
            held = attempt(name, 1, ((f"n{index}", (0, 1)),), None)
            job, attempts[held.attempt_id] = replace(job, attempt_id=held.attempt_id), held
            holders.update(dict.fromkeys(held.allocation.device_ids, held.attempt_id))
            reserved[device_id(f"n{index}", 2)] = JobId(name)
        jobs[job.job_id] = job
    grid = grid_of(cell("t4", (1,), 1.0))
    queued = sorted(job.queue_key for job in jobs.values() if job.state is JobState.QUEUED)
    return ClusterState(
        jobs=Map(jobs),
        attempts=Map(attempts),
        nodes=Map(nodes),
        holders=Map(holders),
        reserved=Map(reserved),
        queue=JobQueue(queued),
        grids=Map({job_id: grid for _, _, job_id in queued}),
        decided_at_s=NOW_S - 2.5,
    )


def seen(state: ClusterState, **fields: Any) -> Observed:
    tenants = {"vision": Guarantee(gpu_count_by_type={"any": 8}), "speech": Guarantee(gpu_count_by_type={"t4": 2})}
    defaults: dict[str, Any] = {
        "now_s": NOW_S,
        "version": "0.1.0",
        "policy": "arena",
        "policy_version": "6",
        "tenants": tenants,
        "kept_count_by_state": {JobState.SUCCEEDED: 7},
        "file_bytes": {"database": 4096, "log": 8192},
    }
    return Observed(state=state, **{**defaults, **fields})
