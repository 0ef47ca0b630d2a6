"""How long `arena status` takes, whole process, on a cluster of 1,000 nodes with 10,000 jobs."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from arena.domain.allocation import GpuGroup
from arena.domain.events import GridBuilt, Tick
from arena.domain.job import JobId
from arena.domain.launch import attempt_id
from arena.domain.parallel import ParallelPlan
from arena.domain.reason import ReasonCode, reason
from arena.domain.records import AttemptRecord, AttemptState, JobRecord, JobState, NodeRecord
from arena.engine.ports import Step
from arena_scheduler.store.writes import SqliteStore
from tests.builders import allocation_on, job_record, node_info, scaling_grid, shape, train_spec

NODES = 1_000
GPUS_PER_NODE = 8
RUNNING = 2_000
QUEUED = 4_000
ENDED = 4_000
REPEATS = 7


def _running(job: JobRecord, index: int) -> tuple[JobRecord, AttemptRecord]:
    first = index % 2 * 4
    devices = allocation_on((f"n{index // 2:04d}", range(first, first + 4)))
    attempt = AttemptRecord(
        attempt_id=attempt_id(job.job_id, 1),
        job_id=job.job_id,
        epoch=1,
        plan=ParallelPlan.uniform(layer_count=4, dp=4),
        group=GpuGroup.of("a100-80", [4]),
        estimate=None,
        allocation=devices,
        master_addr="127.0.0.1",
        master_port=20000,
        cause=reason(ReasonCode.STARTED, group="a100-80 4"),
        decision_index=1,
        decided_at_s=1.0,
        launched_at_s=1.0,
        state=AttemptState.RUNNING,
    )
    return replace(job, state=JobState.RUNNING, epoch=1, attempt_id=attempt.attempt_id), attempt


def build_database(path: Path) -> None:
    """Write the cluster through the store, as an engine would have."""
    store = SqliteStore.open(path)
    spec = train_spec("pretraining of a model with a long name", gpus={"max": 8})
    jobs = [
        job_record(f"{store.identity}-{number}", spec, submitted_at_s=float(number), user=f"user{number % 50}")
        for number in range(RUNNING + QUEUED + ENDED)
    ]
    nodes = [node_info(f"n{index:04d}", gpus=GPUS_PER_NODE, gpu_type="a100-80") for index in range(NODES)]
    store.commit([Step(event=Tick(), at_s=1.0, nodes=tuple(NodeRecord(node_id=n.node_id, info=n) for n in nodes))])
    running = [_running(job, index) for index, job in enumerate(jobs[:RUNNING])]
    queued = jobs[RUNNING : RUNNING + QUEUED]
    ended = [replace(job, state=JobState.SUCCEEDED) for job in jobs[RUNNING + QUEUED :]]
    records = (*(job for job, _ in running), *queued, *ended)
    store.commit([Step(event=Tick(), at_s=1.0, jobs=records, attempts=tuple(attempt for _, attempt in running))])
    grid = scaling_grid("a100-80", [[1], [2], [4], [8]])
    cluster = shape(("a100-80", GPUS_PER_NODE, NODES))
    open_jobs = [JobId(job.job_id) for job in records if not job.state.is_terminal]
    store.commit([Step(event=GridBuilt(job_id=name, shape=cluster, grid=grid), at_s=1.0) for name in open_jobs])
    store.close()


@pytest.mark.benchmark
def test_status_of_a_large_cluster(tmp_path: Path) -> None:
    database, address_file = tmp_path / "arena.db", tmp_path / "address"
    build_database(database)
    arena = str(Path(sys.executable).with_name("arena"))
    started_s = time.monotonic()
    serve = [arena, "scheduler", "--db", str(database), "--port", "0", "--address-file", str(address_file)]
    scheduler = subprocess.Popen([*serve, "--node-grace", "600", "--policy", "fcfs"], stderr=subprocess.DEVNULL)
    try:
        while not address_file.exists() and time.monotonic() - started_s < 60:
            time.sleep(0.05)
        start_s = time.monotonic() - started_s
        command = [arena, "status", "--scheduler", address_file.read_text().strip()]
        times_s = []
        for _ in range(REPEATS):
            begun_s = time.monotonic()
            answer = subprocess.run(command, capture_output=True, text=True, check=True)
            times_s.append(time.monotonic() - begun_s)
        shown = json.loads(subprocess.run([*command, "--json"], capture_output=True, text=True, check=True).stdout)
    finally:
        scheduler.terminate()
        scheduler.wait(timeout=30)
    result = {
        "status_s_median": round(sorted(times_s)[REPEATS // 2], 3),
        "status_s_min": round(min(times_s), 3),
        "scheduler_start_s": round(start_s, 2),
        "nodes": NODES,
        "jobs": RUNNING + QUEUED + ENDED,
    }
    print("\nstatus:", json.dumps(result))
    assert answer.stdout
    assert shown["status"]["job_count_by_state"] == {"running": RUNNING, "queued": QUEUED, "succeeded": ENDED}
    assert result["status_s_median"] < 5.0
