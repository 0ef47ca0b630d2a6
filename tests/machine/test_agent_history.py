"""The history checker is silent over the real machine under a careless scheduler, and not over broken ones."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from immutables import Map

from arena.domain.launch import AttemptId, DeviceId, Launch, NodeId
from arena.domain.records import EndKind, NodeEnd
from arena_agent.epochs import SpentEpochs
from arena_agent.files import StateFiles
from arena_agent.journal import AgentStarted, Journal, read_entries
from arena_agent.machine import (
    AgentEvent,
    AgentState,
    EndAcknowledged,
    LaunchAsked,
    Outcome,
    RanksUp,
    StartSupervisor,
    StopAsked,
    StopShare,
    SupervisorUp,
    VerifiedGone,
    Write,
    handle,
    replay,
)
from arena_agent.procfs import ProcessIdentity
from arena_agent.shim.order import ExitRecord
from tests.agent_histories import (
    AttemptsOverlap,
    DeviceHeldTwice,
    EndedBeforeGone,
    EpochWentBack,
    LaunchedTwice,
    check_state_dirs,
)
from tests.fakes.agent_process import command_launch

NODE = NodeId("n1")
Handle = Callable[[AgentState, AgentEvent], Outcome]


@dataclass
class Host:
    """A host without processes: an agent's machine, its journal on disk, and a scheduler that asks for anything."""

    directory: Path
    handle: Handle
    random: random.Random
    now_s: float = 0.0
    state: AgentState = field(default_factory=lambda: AgentState(node_id=NODE))
    # Attempts whose processes live, with the instant at which they will be gone once they are stopped.
    processes: dict[AttemptId, float | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.files = StateFiles(directory=self.directory)
        self.files.attempts.mkdir(parents=True)
        self.journal = Journal(self.files.journal, wall_s=lambda: self.now_s, boot_s=lambda: self.now_s)
        self.journal.open()
        self.journal.append(AgentStarted(node_id=NODE, incarnation="i", boot_id="b", pid=1))

    def run(self, step_count: int) -> None:
        for _ in range(step_count):
            self.now_s += 1.0
            self._let_processes_end()
            self.take(self._wish())

    def take(self, event: AgentEvent) -> None:
        self.state, effects = self.handle(self.state, event)
        self.journal.append(*(effect.record for effect in effects if isinstance(effect, Write)))
        for effect in effects:
            match effect:
                case StartSupervisor(launch=launch):
                    self._start(launch)
                case StopShare(attempt_id=attempt_id) if self.processes.get(attempt_id, 0.0) is None:
                    self.processes[attempt_id] = self.now_s + self.random.uniform(0.5, 4.0)
                case _:
                    pass

    def _start(self, launch: Launch) -> None:
        self.processes[launch.attempt_id] = None
        supervisor = ProcessIdentity(pid=self.random.randrange(1000), start_ticks=int(self.now_s))
        self.take(SupervisorUp(attempt_id=launch.attempt_id, supervisor=supervisor))
        self.take(RanksUp(attempt_id=launch.attempt_id))

    def _let_processes_end(self) -> None:
        for attempt_id, gone_s in sorted(self.processes.items()):
            if gone_s is not None and gone_s <= self.now_s:
                del self.processes[attempt_id]
                files = self.files.attempt(attempt_id)
                files.directory.mkdir(exist_ok=True)
                files.exit.write_text(ExitRecord(attempt_id=attempt_id, gone_boot_s=gone_s).to_json())
                end = NodeEnd(node_id=NODE, kind=EndKind.KILLED)
                self.take(VerifiedGone(attempt_id=attempt_id, end=end, gone_boot_s=gone_s))

    def _wish(self) -> AgentEvent:
        """What a scheduler without any memory might want."""
        name = self.random.choice(("a", "b", "c"))
        epoch = self.random.randint(1, 6)
        launch = command_launch("x", job=name, epoch=epoch, first_gpu=self.random.randrange(2), master_port=20_000)
        wishes: list[AgentEvent] = [
            LaunchAsked(launch=launch),
            LaunchAsked(launch=launch),
            EndAcknowledged(attempt_id=launch.attempt_id),
        ]
        wishes += [StopAsked(attempt_id=share.attempt_id, mode="kill", grace_s=0.0) for share in self.state.live]
        return self.random.choice(wishes)


def forgets_epochs(state: AgentState, event: AgentEvent) -> Outcome:
    return handle(replace(state, spent=SpentEpochs()), event)


def forgets_who_holds_what(state: AgentState, event: AgentEvent) -> Outcome:
    """Both looks at live shares find nothing at a launch."""
    if not isinstance(event, LaunchAsked) or event.launch.attempt_id in state.shares:
        return handle(state, event)
    blind, effects = handle(replace(state, shares=Map()), event)
    return replace(blind, shares=state.shares.update(blind.shares)), effects


def frees_at_the_stop(state: AgentState, event: AgentEvent) -> Outcome:
    """Takes the request to stop for the end."""
    stopped, effects = handle(state, event)
    if isinstance(event, StopAsked) and any(isinstance(effect, StopShare) for effect in effects):
        end = NodeEnd(node_id=NODE, kind=EndKind.KILLED)
        gone, more = handle(stopped, VerifiedGone(attempt_id=event.attempt_id, end=end, gone_boot_s=0.0))
        return gone, (*effects, *more)
    return stopped, effects


def forgets_ended_shares(state: AgentState, event: AgentEvent) -> Outcome:
    """Loses an attempt and its epoch as soon as it has ended, and launches it anew when it is asked again."""
    after, effects = handle(state, event)
    if isinstance(event, VerifiedGone):
        left = Map({k: v for k, v in after.shares.items() if k != event.attempt_id})
        return replace(after, shares=left, spent=SpentEpochs()), effects
    return after, effects


def history_of(directory: Path, handle_: Handle, seed: int, step_count: int = 80) -> tuple[object, ...]:
    host = Host(directory / f"{handle_.__name__}-{seed}", handle_, random.Random(seed))
    host.run(step_count)
    host.journal.close()
    return check_state_dirs([host.directory])


@pytest.mark.parametrize("seed", range(8))
def test_the_real_machine_leaves_a_clean_history(tmp_path, seed):
    assert history_of(tmp_path, handle, seed) == ()


@pytest.mark.parametrize(
    ("broken", "kinds"),
    [
        (forgets_epochs, {EpochWentBack}),
        (forgets_who_holds_what, {DeviceHeldTwice, AttemptsOverlap}),
        (frees_at_the_stop, {DeviceHeldTwice, EndedBeforeGone}),
        (forgets_ended_shares, {LaunchedTwice, EpochWentBack}),
    ],
)
def test_every_broken_machine_is_caught(tmp_path, broken, kinds):
    found = [violation for seed in range(4) for violation in history_of(tmp_path, broken, seed)]
    assert kinds <= {type(violation) for violation in found}


@pytest.mark.parametrize("seed", range(4))
def test_the_journal_gives_the_state_back(tmp_path, seed):
    host = Host(tmp_path / "state", handle, random.Random(seed))
    host.run(60)
    host.journal.close()
    entries, _ = read_entries(host.files.journal)
    assert replay(NODE, [entry.record for entry in entries]) == host.state


def test_two_nodes_of_one_host_with_two_attempts_of_a_job_are_caught(tmp_path):
    for index, epoch in ((1, 1), (2, 2)):
        directory = tmp_path / f"n{index}"
        directory.mkdir()
        host = Host(directory / "state", handle, random.Random(0), now_s=float(index))
        launch = command_launch("x", job="a", epoch=epoch, master_port=20_000)
        host.take(LaunchAsked(launch=replace(launch, device_ids=(DeviceId(f"n{index}/vgpu-0"),))))
        host.journal.close()
    found = check_state_dirs([tmp_path / "n1" / "state", tmp_path / "n2" / "state"])
    assert [type(violation) for violation in found] == [AttemptsOverlap]
