"""How fast the engine handles events on a large cluster: 10,000 GPUs, 2,000 jobs (aim: below 0.3 ms an event)."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import pytest

from arena.domain.commands import BuildGrid, LaunchAttempt
from arena.domain.events import (
    AttemptEnded,
    AttemptStarted,
    Event,
    GridBuilt,
    JobSubmitted,
    NodeRegistered,
    WorkerReported,
)
from arena.domain.grid import Grid
from arena.domain.job import JobId
from arena.domain.launch import Finished, Progress, Ready, StepPoint
from arena.domain.records import EndKind, NodeEnd
from arena.engine.config import EngineConfig
from arena.engine.engine import Engine
from arena.engine.ports import Step
from arena.policies.registry import make_policy
from tests.builders import node_info, scaling_grid, train_spec

pytestmark = pytest.mark.benchmark

NODES = 1250
GPUS_PER_NODE = 8
JOBS = 2000
GPUS_PER_JOB = 8


class Cluster:
    """A full cluster with a queue behind it, and the time each event took."""

    def __init__(self, policy: str) -> None:
        # The shape settles once, after all nodes are there.
        self.engine = Engine(make_policy(policy), EngineConfig(shape_settle_s=1e9))
        self.now_s = 0.0
        self.times_s: dict[str, list[float]] = {}
        self.grid: Grid = scaling_grid("cpu", [[GPUS_PER_JOB]])
        for index in range(NODES):
            self.feed(NodeRegistered(info=node_info(f"n{index:04}", gpus=GPUS_PER_NODE)))

    def feed(self, event: Event) -> Step:
        self.now_s += 0.001
        began_s = time.perf_counter()
        step = self.engine.handle(event, self.now_s)
        self.times_s.setdefault(event.kind, []).append(time.perf_counter() - began_s)
        for command in step.commands:
            if isinstance(command, BuildGrid):
                self.grid_built(command.job_id)
        return step

    def grid_built(self, job_id: JobId) -> Step:
        return self.feed(GridBuilt(job_id=job_id, shape=self.engine.state.shape, grid=self.grid))

    def submit(self, name: str) -> Step:
        spec = train_spec(name, kind="rigid", gpus={"count": GPUS_PER_JOB})
        self.feed(JobSubmitted(job_id=JobId(name), spec=spec, user="ann", request_id=name))
        return self.grid_built(JobId(name))

    def start(self, step: Step) -> None:
        for command in step.commands:
            if isinstance(command, LaunchAttempt):
                name = command.launch.attempt_id
                self.feed(AttemptStarted(node_id=command.node_id, attempt_id=name))
                ready = Ready(resumed_step=0, checkpoint=None, rendezvous_s=0.1, load_s=0.1)
                for report in (ready, self.progress(1)):
                    self.feed(WorkerReported(node_id=command.node_id, attempt_id=name, report=report))

    @staticmethod
    def progress(step: int) -> Progress:
        return Progress(points=(StepPoint(step=step, loss=1.0, step_time_s=1.0, tokens_per_s=1.0),))

    def turn_over(self, count: int) -> None:
        """End running jobs; each end starts the next of the queue, and a new job joins it."""
        for index, attempt in enumerate(sorted(self.engine.state.attempts.values(), key=lambda one: one.attempt_id)):
            if index >= count:
                return
            node_id = attempt.allocation.node_ids[0]
            self.feed(WorkerReported(node_id=node_id, attempt_id=attempt.attempt_id, report=self.progress(100)))
            done = Finished(step=100, loss=1.0, output=None)
            self.feed(WorkerReported(node_id=node_id, attempt_id=attempt.attempt_id, report=done))
            end = NodeEnd(node_id=node_id, kind=EndKind.FINISHED)
            self.start(self.feed(AttemptEnded(node_id=node_id, attempt_id=attempt.attempt_id, end=end)))
            self.start(self.submit(f"late-{index:05}"))


@pytest.mark.parametrize("policy", ["fcfs"])
def test_engine_handles_an_event_in_a_fraction_of_a_millisecond(
    policy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = Cluster(policy)
    for index in range(JOBS):
        cluster.start(cluster.submit(f"j{index:05}"))
    assert len(cluster.engine.state.queue) == JOBS - NODES * GPUS_PER_NODE // GPUS_PER_JOB
    cluster.times_s.clear()
    cluster.turn_over(500)
    every = [value for values in cluster.times_s.values() for value in values]
    with capsys.disabled():
        print(f"\nengine.handle, {NODES * GPUS_PER_NODE:,} GPUs, {JOBS:,} jobs, policy {policy}:")
        for kind, values in sorted(cluster.times_s.items()):
            print(f"  {kind:18} {row(values)}")
        print(f"  {'all':18} {row(every)}")


def row(values: list[float]) -> str:
    quantile: Callable[[int], float] = lambda percent: statistics.quantiles(values, n=100)[percent - 1] * 1e3  # noqa: E731
    return f"{len(values):6} events, mean {statistics.mean(values) * 1e3:.3f} ms, p99 {quantile(99):.3f} ms"
