"""One scenario on the simulated and the live world (real agents, real training): the same commands.

A program on all GPUs shows that they are there. A job takes the whole cluster, shrinks for a second one, grows again
when that is cancelled, leaves a node that its lender takes back, grows again when the lender changes its mind, and is
cancelled itself.
The steps of the scenario wait for what has happened, not for instants: the two worlds have different clocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import pytest

from arena.domain.commands import LaunchAttempt, StopAttempt
from arena.domain.events import JobSubmitted, JobWishChanged, NodeNoticeChanged, NodeRegistered, ReclaimNotice
from arena.domain.job import JobId, JobSpec
from arena.domain.launch import NodeId
from arena.engine.config import EngineConfig
from arena.engine.engine import Engine, replay
from arena.engine.ports import Step
from arena.planner.source import PlannerGridSource
from arena.policies.registry import make_policy
from arena.sim.run import Simulation
from arena_scheduler.store.writes import SqliteStore
from tests.builders import command_spec, node_info, train_spec
from tests.fakes.local_cluster import DEADLINE_S, ELASTIC_AT_ONCE, ProcessCluster, process_cluster, wait_until

pytestmark = pytest.mark.slow

OPTIONS = {"change_interval_s": 0.0}
ENDLESS = {"stop": {"steps": 1_000_000}, "grace_s": 60.0}
MODEL = {"layers": 4, "hidden": 64, "heads": 4, "seq_len": 64}

Told = tuple[str, ...]


def spec(name: str, **gpus: int) -> JobSpec:
    return train_spec(name, model=MODEL, train={"global_batch": 16}, gpus=gpus, **ENDLESS)


class World(Protocol):
    """What the scenario does and waits for."""

    def submit(self, job: JobSpec) -> None: ...

    def cancel(self, name: str) -> None: ...

    def wait_running(self, name: str, gpu_count: int) -> None: ...

    def wait_over(self, name: str) -> None: ...

    def tell(self, node: str, within_s: float | None) -> None: ...


def play(world: World) -> None:
    """Play the scenario."""
    world.submit(command_spec("all", count=4, command={"argv": ["true"]}, stop={"steps": 1}))
    world.wait_over("all")
    world.submit(spec("first", min=1, max=4))
    world.wait_running("first", 4)
    world.submit(spec("second", min=2, max=2))
    world.wait_running("second", 2)
    world.wait_running("first", 2)
    world.cancel("second")
    world.wait_over("second")
    world.wait_running("first", 4)
    world.tell("n2", 600.0)
    world.wait_running("first", 2)
    world.tell("n2", None)
    world.wait_running("first", 4)
    world.cancel("first")
    world.wait_over("first")


def told(steps: Iterable[Step]) -> Iterator[Told]:
    """Commands to agents in words that both worlds share: ids of jobs and names of devices differ."""
    names: dict[str, str] = {}
    for step in steps:
        if isinstance(step.event, JobSubmitted):
            names[step.event.job_id] = step.event.spec.name
        for command in step.commands:
            if isinstance(command, LaunchAttempt):
                launch = command.launch
                devices = ",".join(device.rpartition("/")[2] for device in launch.device_ids)
                yield "launch", names[launch.job_id], str(launch.epoch), command.node_id, str(launch.plan), devices
            elif isinstance(command, StopAttempt):
                job_id, _, epoch = command.attempt_id.rpartition(".")
                yield "stop", names[job_id], epoch, command.node_id, command.mode


@dataclass(slots=True)
class Simulated:
    """The virtual clock and modelled agents."""

    simulation: Simulation

    def submit(self, job: JobSpec) -> None:
        event = JobSubmitted(job_id=JobId(job.name), spec=job, user="tester", request_id=job.name)
        self.simulation.at(self.simulation.kernel.now_s, event)

    def cancel(self, name: str) -> None:
        event = JobWishChanged(job_id=JobId(name), wish="cancel", by="tester")
        self.simulation.at(self.simulation.kernel.now_s, event)

    def wait_running(self, name: str, gpu_count: int) -> None:
        self._run_until(lambda: self._gpu_count(name) == gpu_count)

    def wait_over(self, name: str) -> None:
        self._run_until(lambda: JobId(name) in self.simulation.ended)

    def tell(self, node: str, within_s: float | None) -> None:
        notice = None if within_s is None else ReclaimNotice(within_s=within_s, why="the market")
        event = NodeNoticeChanged(node_id=NodeId(node), notice=notice)
        self.simulation.at(self.simulation.kernel.now_s, event)

    def _gpu_count(self, name: str) -> int:
        state = self.simulation.engine.state
        job = state.jobs.get(JobId(name))
        attempt = state.attempts.get(job.attempt_id) if job is not None and job.attempt_id else None
        return 0 if attempt is None or attempt.first_step_at_s is None else attempt.group.gpu_count

    def _run_until(self, condition: Callable[[], bool]) -> None:
        end_s = self.simulation.kernel.now_s + 10_000.0
        while not condition():
            assert self.simulation.kernel.now_s < end_s
            self.simulation.run(until_s=self.simulation.kernel.now_s + 0.25)
            self.simulation.kernel.now_s += 0.25


@dataclass(slots=True)
class Live:
    """A scheduler and agents as processes, and torch."""

    cluster: ProcessCluster
    ids: dict[str, str] = field(default_factory=dict)

    def submit(self, job: JobSpec) -> None:
        self.ids[job.name] = self.cluster.client.submit(job, allow_infeasible=True).job_id

    def cancel(self, name: str) -> None:
        self.cluster.client.cancel([self.ids[name]])

    def wait_running(self, name: str, gpu_count: int) -> None:
        wait_until(lambda: self._gpu_count(name) == gpu_count, f"{name} runs on {gpu_count} GPUs")

    def wait_over(self, name: str) -> None:
        wait_until(lambda: self.cluster.client.job(self.ids[name]).job.state.is_terminal, f"{name} is over")

    def tell(self, node: str, within_s: float | None) -> None:
        notice = self.cluster.nodes[node].state_dir / "notice"
        if within_s is None:
            notice.unlink()
        else:
            notice.write_text(f"{within_s} the market")

    def _gpu_count(self, name: str) -> int:
        view = self.cluster.client.job(self.ids[name])
        attempt = next((one for one in view.attempts if one.ended_at_s is None), None)
        return 0 if attempt is None or attempt.first_step_at_s is None else attempt.group.gpu_count


def live_commands(directory: Path) -> list[Told]:
    """What the live engine ordered, from its log of inputs: the log is complete, and the engine is deterministic."""
    with process_cluster(directory, nodes=2, gpus=2, words=ELASTIC_AT_ONCE) as cluster:
        play(Live(cluster))
    store = SqliteStore.open(directory / "scheduler.db")
    inputs = [(at_s, event) for _, at_s, event in store.reader.inputs(0, 100_000)]
    store.close()
    config = EngineConfig(
        checkpoint_root=str(directory / "checkpoints"),
        output_root=str(directory / "output"),
        node_grace_s=DEADLINE_S,
    )
    return list(told(replay(Engine(make_policy("elastic", OPTIONS), config), inputs)))


def simulated_commands() -> list[Told]:
    simulation = Simulation(policy=make_policy("elastic", OPTIONS), grids=PlannerGridSource(), check=True)
    for name in ("n1", "n2"):
        simulation.at(0.0, NodeRegistered(info=node_info(name, gpus=2)))
    play(Simulated(simulation))
    return list(told(simulation.steps))


def of_each_job(commands: Iterable[Told]) -> dict[str, list[Told]]:
    """Commands by job, in order: which of two nodes is free first is chance, and with it which job starts first."""
    found: dict[str, list[Told]] = {}
    for command in commands:
        found.setdefault(command[1], []).append(command)
    return found


def test_both_worlds_are_told_the_same(tmp_path: Path) -> None:
    simulated = simulated_commands()
    assert [(kind, name) for kind, name, *_ in simulated].count(("launch", "first")) == 2 + 1 + 2 + 1 + 2
    live = live_commands(tmp_path)
    assert of_each_job(live) == of_each_job(simulated)
    for commands in (live, simulated):
        stopped = commands.index(("stop", "first", "1", "n1", "save"))
        started = next(at for at, command in enumerate(commands) if command[:2] == ("launch", "second"))
        assert stopped < started
