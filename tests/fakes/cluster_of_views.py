"""A small cluster for tests of what people see: two running jobs, one of a command, two that wait, four nodes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from arena.domain.allocation import GpuGroup
from arena.domain.cluster import Device, NodeState
from arena.domain.job import JobId
from arena.domain.launch import AttemptId, DeviceId, NodeId
from arena.domain.parallel import ParallelPlan
from arena.domain.reason import ReasonCode, reason
from arena.domain.records import (
    AttemptRecord,
    AttemptState,
    Drain,
    EndKind,
    Evaluation,
    JobRecord,
    JobState,
    NodeEnd,
    NodeRecord,
    Progress,
)
from arena.rpc.views import GpuCounts, StatusView, job_view
from tests.builders import allocation_on, command_spec, job_record, node_info, train_spec
from tests.fakes.scheduler_server import FakeScheduler

NOW_S = 1_700_000_000.0


def attempt(
    job_id: str,
    epoch: int,
    shares: tuple[tuple[str, tuple[int, ...]], ...],
    plan: ParallelPlan | None,
    **fields: object,
) -> AttemptRecord:
    """An attempt on some devices, launched twenty seconds after its job was submitted."""
    return AttemptRecord(
        **{
            "attempt_id": AttemptId(f"{job_id}.{epoch}"),
            "job_id": JobId(job_id),
            "epoch": epoch,
            "plan": plan,
            "group": GpuGroup.of("a100-80", [len(devices) for _, devices in shares]),
            "estimate": None,
            "allocation": allocation_on(*shares),
            "master_addr": "10.0.0.1",
            "master_port": 20000,
            "cause": reason(ReasonCode.STARTED, group="a100-80 4"),
            "decision_index": 3,
            "decided_at_s": NOW_S - 3580,
            "launched_at_s": NOW_S - 3579,
            "state": AttemptState.RUNNING,
            **fields,
        }
    )


TRAINING = attempt(
    "7k2-1",
    2,
    (("n1", (0, 1, 2, 3)), ("n2", (0, 1, 2, 3))),
    ParallelPlan.uniform(layer_count=4, dp=2, tp=4, micro_batch_size=4, zero=1),
    cause=reason(ReasonCode.GREW, before=4, after=8, speedup=1.7),
    ready_at_s=NOW_S - 3571.5,
    resumed_step=400,
    last_step=1200,
    save_s=2.25,
)
BEFORE = attempt(
    "7k2-1",
    1,
    (("n1", (0, 1, 2, 3)),),
    ParallelPlan.uniform(layer_count=4, tp=4, micro_batch_size=4),
    state=AttemptState.ENDED,
    outcome=EndKind.FAILED,
    ready_at_s=NOW_S - 3570,
    resumed_step=0,
    last_step=400,
    stop_cause=reason(ReasonCode.WORKER_FAILED, error="rank 2 ran out of memory"),
    ends=(
        NodeEnd(
            node_id=NodeId("n1"),
            kind=EndKind.FAILED,
            message="rank 2 was killed by signal 9",
            log_tail="step 400\nTraceback\x1b[2J",
        ),
    ),
)
COMMAND = attempt("7k2-2", 1, (("n3", (0,)),), None)


def training_job() -> JobRecord:
    """A long job in its second attempt, stalled for a minute."""
    return job_record(
        "7k2-1",
        train_spec("pretrain-a-model-with-a-name-of-forty-chars", stop={"steps": 5000}),
        state=JobState.RUNNING,
        epoch=2,
        attempt_id=TRAINING.attempt_id,
        submitted_at_s=NOW_S - 3600,
        first_started_at_s=NOW_S - 3570,
        reasons=(TRAINING.cause,),
        restart_count=1,
        run_time_s=3500.0,
        gpu_seconds=21000.0,
        progress=Progress(
            step=1234,
            loss=2.34567,
            step_time_s=0.512,
            tokens_per_s=128000.4,
            durable_step=1200,
            durable_at_s=NOW_S - 42,
            reported_at_s=NOW_S - 60,
            lost_steps=12,
            stalled_since_s=NOW_S - 60,
            evaluation=Evaluation(
                step=1200, loss=2.41009, accuracy=0.4512, sample_count=256, evaluate_s=1.5, at_s=NOW_S - 70
            ),
        ),
    )


def command_job() -> JobRecord:
    """A command whose name would steer a terminal and break a shell."""
    return job_record(
        "7k2-2",
        command_spec('a b "c" $(x) 日本語 \u202e'),
        user="bob smith",
        state=JobState.RUNNING,
        epoch=1,
        attempt_id=COMMAND.attempt_id,
        submitted_at_s=NOW_S - 100,
    )


def waiting_jobs() -> tuple[JobRecord, JobRecord]:
    """One job that lacks GPUs, and one that its user holds."""
    return (
        job_record(
            "7k2-3",
            train_spec("big"),
            submitted_at_s=NOW_S - 4000,
            reasons=(
                reason(ReasonCode.INSUFFICIENT_GPUS, needed=8, gpu_type="a100-80", free=3, total=16),
                reason(ReasonCode.BEHIND, job="7k2-1", ahead=1),
            ),
        ),
        job_record(
            "7k2-4",
            train_spec("kept"),
            state=JobState.HELD,
            submitted_at_s=NOW_S - 9,
            reasons=(reason(ReasonCode.HELD, by="ann"),),
        ),
    )


def nodes() -> list[NodeRecord]:
    """Two nodes in use, one that drains, one that is lost; one device is dirty."""
    info = node_info("n3", gpus=4, gpu_type="a100-80", clock_skew_s=7.25)
    dirty = Device(device_id=DeviceId("n3/vgpu-3"), index=3, dirty="process 4711 holds it")
    drain = Drain(by="root", at_s=NOW_S, why="fan noise")
    return [
        NodeRecord(node_id=NodeId("n1"), info=node_info("n1", gpus=4, gpu_type="a100-80")),
        NodeRecord(node_id=NodeId("n2"), info=node_info("n2", gpus=4, gpu_type="a100-80")),
        NodeRecord(
            node_id=NodeId("n3"),
            info=replace(info, devices=(*info.devices[:3], dirty)),
            state=NodeState.DRAINING,
            state_cause="1 attempt left, fan noise (by root)",
            drain=drain,
        ),
        NodeRecord(
            node_id=NodeId("n 4"),
            info=node_info("n 4", gpus=4, gpu_type="t4"),
            state=NodeState.LOST,
            state_cause="silent for 15 s",
            disconnected_at_s=NOW_S - 30,
        ),
    ]


def status() -> StatusView:
    """The whole cluster at a glance."""
    return StatusView(
        scheduler_version="0.1.0",
        policy="elastic",
        now_s=NOW_S,
        started_at_s=NOW_S - 7500,
        read_only_cause="the disk is full",
        gpus=(
            GpuCounts(gpu_type="a100-80", total=12, free=0, used=9, draining=2, dirty=1),
            GpuCounts(gpu_type="t4", total=0, down=4),
        ),
        job_count_by_state={JobState.QUEUED: 7, JobState.HELD: 1, JobState.RUNNING: 2, JobState.SUCCEEDED: 14},
        node_count_by_state={NodeState.READY: 2, NodeState.DRAINING: 1, NodeState.LOST: 1},
        active_jobs=(
            job_view(training_job(), TRAINING, private=True, with_spec=False),
            job_view(command_job(), COMMAND, private=True, with_spec=False),
        ),
        waiting_jobs=tuple(job_view(job, None, private=True, with_spec=False) for job in waiting_jobs()),
        decision_index=41,
        decided_at_s=NOW_S - 3,
        decision_time_s=0.0012,
        warnings=("the clock of node n3 is 7.2 s ahead", "device n3/vgpu-3 is dirty: process 4711 holds it"),
    )


@contextmanager
def served() -> Iterator[FakeScheduler]:
    """Serve this cluster and its jobs."""
    with FakeScheduler() as server:
        server.status = status()
        server.nodes = nodes()
        server.attempts = [BEFORE, TRAINING, COMMAND]
        for job in (*waiting_jobs(), command_job(), training_job()):
            server.add_job(job)
        yield server
