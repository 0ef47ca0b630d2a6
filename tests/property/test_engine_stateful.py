"""The engine under any order of events: invariants hold after each, no job is lost, no device is held twice.

The model keeps what agents know: which attempts live on which node. It answers commands late, twice, or never, loses
nodes and takes them back, and plays the user.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from arena.domain.commands import AcknowledgeEnd, AnswerRegistration, BuildGrid, Command, LaunchAttempt, StopAttempt
from arena.domain.events import (
    AttemptEnded,
    AttemptStarted,
    DevicesChanged,
    EndedAttempt,
    Event,
    GridBuilt,
    HeldAttempt,
    JobsCancelled,
    JobSubmitted,
    JobWishChanged,
    NodeDisconnected,
    NodeDrainChanged,
    NodeNoticeChanged,
    NodeRegistered,
    ReclaimNotice,
    SchedulerStarted,
    Tick,
    WorkerReported,
)
from arena.domain.job import JobId
from arena.domain.launch import AttemptId, CheckpointSaved, Finished, NodeId, Progress, Ready, StepPoint, WorkerError
from arena.domain.records import EndKind, JobState, NodeEnd
from arena.engine.config import EngineConfig
from arena.engine.engine import Engine, replay
from arena.engine.invariants import violations
from arena.engine.ports import Step
from arena.engine.state import ClusterState
from arena.policies.registry import make_policy
from tests.builders import command_spec, node_info, train_spec
from tests.fakes.grids import PowerLawGrids
from tests.fakes.restarts import FORGOTTEN, restored_from

NODES = ("n1", "n2", "n3")
WITHIN_S = st.sampled_from([None, None, 0.0, 0.5, 20.0, 90.0, 5000.0])
ENDS = st.sampled_from([EndKind.FAILED, EndKind.KILLED, EndKind.STOPPED, EndKind.LAUNCH_FAILED, EndKind.FINISHED])


@dataclass
class ModelNode:
    """What an agent knows: the devices of its live attempts, ends nobody acknowledged, epochs it has seen."""

    connected: bool = False
    incarnation: int = 0
    live: dict[AttemptId, frozenset[str]] = field(default_factory=dict)
    ended: dict[AttemptId, NodeEnd] = field(default_factory=dict)
    epochs: dict[str, int] = field(default_factory=dict)
    notice: ReclaimNotice | None = None


class EngineMachine(RuleBasedStateMachine):
    policy = "elastic"

    @initialize()
    def start(self) -> None:
        self.config = EngineConfig(shape_settle_s=0.0)
        self.engine = Engine(make_policy(self.policy), self.config)
        self.now_s = 0.0
        self.steps: list[Step] = []
        self.inbox: list[Command] = []
        self.nodes = {name: ModelNode() for name in NODES}
        self.submitted: set[JobId] = set()
        self.terminal: dict[JobId, JobState] = {}
        self.launched: dict[JobId, set[int]] = {}
        for name in NODES[:2]:
            self.node_registers(name, new_life=True, lose_all=False)

    def feed(self, event: Event) -> None:
        step = self.engine.handle(event, self.now_s)
        self.steps.append(step)
        self.inbox += [command for command in step.commands if not isinstance(command, BuildGrid)]
        for job in step.jobs:
            assert self.terminal.get(job.job_id, job.state) is job.state, f"{job.job_id} left a terminal state"
            if job.state.is_terminal:
                self.terminal[job.job_id] = job.state
        for attempt in step.attempts:
            if attempt.epoch not in self.launched.setdefault(attempt.job_id, set()):
                self.launched[attempt.job_id].add(attempt.epoch)
                leaving = [name for name in attempt.allocation.node_ids if self.engine.state.nodes[name].leaving]
                assert not leaving, f"{attempt.attempt_id} was given devices of {leaving}, which takes no work"
        for command in step.commands:
            if isinstance(command, BuildGrid):
                grid = PowerLawGrids().grid(command.spec, command.shape)
                self.feed(GridBuilt(job_id=command.job_id, shape=command.shape, grid=grid))

    # Time and users

    @rule(wait_s=st.sampled_from([0.0, 0.5, 3.0, 20.0, 70.0, 400.0]))
    def time_passes(self, wait_s: float) -> None:
        self.now_s += wait_s
        self.feed(Tick())

    @rule(
        kind=st.sampled_from(["malleable", "moldable", "rigid", "command"]),
        count=st.integers(1, 5),
        priority=st.integers(-1, 1),
        preemptible=st.booleans(),
    )
    def user_submits(self, kind: str, count: int, priority: int, preemptible: bool) -> None:
        name = JobId(f"j{len(self.submitted)}")
        common = {"priority": priority, "preemptible": preemptible}
        if kind == "command":
            spec = command_spec(name, count=count, **common)
        elif kind == "rigid":
            spec = train_spec(name, kind=kind, gpus={"count": count}, **common)
        else:
            spec = train_spec(name, kind=kind, gpus={"min": 1, "max": count}, **common)
        self.submitted.add(name)
        self.feed(JobSubmitted(job_id=name, spec=spec, user="ann", request_id=name))

    @precondition(lambda self: self.submitted)
    @rule(data=st.data(), wish=st.sampled_from(["run", "hold", "cancel"]))
    def user_wishes(self, data: st.DataObject, wish: str) -> None:
        name = data.draw(st.sampled_from(sorted(self.submitted)))
        self.feed(JobWishChanged(job_id=name, wish=wish, by="ann"))  # type: ignore[arg-type]

    @precondition(lambda self: self.submitted)
    @rule(data=st.data())
    def user_cancels_many(self, data: st.DataObject) -> None:
        names = data.draw(st.lists(st.sampled_from(sorted(self.submitted)), min_size=2, max_size=4))
        self.feed(JobsCancelled(job_ids=tuple(names), by="ann"))

    @rule(name=st.sampled_from(NODES), drain=st.booleans(), within_s=WITHIN_S)
    def admin_drains(self, name: str, drain: bool, within_s: float | None) -> None:
        self.feed(NodeDrainChanged(node_id=NodeId(name), drain=drain, by="root", why="test", within_s=within_s))

    @rule(name=st.sampled_from(NODES), within_s=WITHIN_S)
    def lender_speaks(self, name: str, within_s: float | None) -> None:
        notice = ReclaimNotice(within_s=within_s, why="test") if within_s is not None else None
        self.nodes[name].notice = notice
        if self.nodes[name].connected:
            self.feed(NodeNoticeChanged(node_id=NodeId(name), notice=notice))

    # Agents

    @rule(name=st.sampled_from(NODES), new_life=st.booleans(), lose_all=st.booleans())
    def node_registers(self, name: str, new_life: bool, lose_all: bool) -> None:
        node = self.nodes[name]
        node.connected = True
        node.incarnation += new_life
        if new_life and lose_all:  # a reboot: nothing lives on
            node.live.clear()
        self.inbox = [command for command in self.inbox if getattr(command, "node_id", None) != name]
        self.feed(
            NodeRegistered(
                info=node_info(name, incarnation=f"{name}-{node.incarnation}"),
                held=tuple(HeldAttempt(attempt_id=held, started=True) for held in sorted(node.live)),
                ended=tuple(EndedAttempt(attempt_id=key, end=end) for key, end in sorted(node.ended.items())),
                notice=node.notice,
            )
        )

    @rule(name=st.sampled_from(NODES))
    def node_disconnects(self, name: str) -> None:
        node = self.nodes[name]
        node.connected = False
        incarnation = f"{name}-{node.incarnation}"
        self.feed(NodeDisconnected(node_id=NodeId(name), incarnation=incarnation, why="test"))

    @precondition(lambda self: self.inbox)
    @rule(data=st.data(), drop=st.booleans())
    def one_command_arrives(self, data: st.DataObject, drop: bool) -> None:
        self.arrive(self.inbox.pop(data.draw(st.integers(0, min(3, len(self.inbox) - 1)))), drop=drop)

    @precondition(lambda self: self.inbox)
    @rule()
    def all_commands_arrive(self) -> None:
        inbox, self.inbox = self.inbox, []
        for command in inbox:
            self.arrive(command, drop=False)

    def arrive(self, command: Command, *, drop: bool) -> None:
        match command:
            case LaunchAttempt() if self.nodes[command.node_id].connected and not drop:
                self.launch(self.nodes[command.node_id], command)
            case StopAttempt() if self.nodes[command.node_id].connected and not drop:
                self.end(command.node_id, command.attempt_id, EndKind.STOPPED)
            case AnswerRegistration() if self.nodes[command.node_id].connected:
                for name in command.kill:
                    self.end(command.node_id, name, EndKind.KILLED)
            case AcknowledgeEnd():
                self.nodes[command.node_id].ended.pop(command.attempt_id, None)
            case _:
                pass  # lost on its way

    def launch(self, node: ModelNode, command: LaunchAttempt) -> None:
        launch = command.launch
        if node.epochs.get(launch.job_id, 0) >= launch.epoch:
            return  # an agent refuses an epoch it has seen
        node.epochs[launch.job_id] = launch.epoch
        wanted = frozenset(launch.device_ids)
        for other, devices in node.live.items():
            assert not wanted & devices, f"{launch.attempt_id} launched on devices that {other} still has"
        node.live[launch.attempt_id] = wanted
        self.feed(AttemptStarted(node_id=command.node_id, attempt_id=launch.attempt_id))

    def end(self, node_id: NodeId, name: AttemptId, kind: EndKind, code: str = "") -> None:
        node = self.nodes[node_id]
        if node.live.pop(name, None) is None and name not in node.ended:
            return
        end = node.ended.setdefault(name, NodeEnd(node_id=node_id, kind=kind, error_code=code, message="x"))
        if node.connected:
            self.feed(AttemptEnded(node_id=node_id, attempt_id=name, end=end))

    def living(self) -> list[tuple[str, AttemptId]]:
        return [(name, attempt) for name, node in self.nodes.items() for attempt in sorted(node.live)]

    @precondition(lambda self: self.living())
    @rule(data=st.data(), kind=ENDS)
    def attempt_ends(self, data: st.DataObject, kind: EndKind) -> None:
        name, attempt = data.draw(st.sampled_from(self.living()))
        self.end(NodeId(name), attempt, kind)

    @precondition(lambda self: self.living())
    @rule(data=st.data())
    def attempt_runs_out_of_memory(self, data: st.DataObject) -> None:
        name, attempt = data.draw(st.sampled_from(self.living()))
        self.end(NodeId(name), attempt, EndKind.FAILED, "oom")

    @precondition(lambda self: self.living())
    @rule(step=st.integers(1, 50))
    def all_workers_step(self, step: int) -> None:
        point = StepPoint(step=step, loss=1.0, step_time_s=1.0, tokens_per_s=1.0)
        for name, attempt in self.living():
            if self.nodes[name].connected:
                for report in (
                    Ready(resumed_step=0, checkpoint=None, rendezvous_s=0.0, load_s=0.0),
                    Progress(points=(point,)),
                ):
                    self.feed(WorkerReported(node_id=NodeId(name), attempt_id=attempt, report=report))

    @precondition(lambda self: self.living())
    @rule(data=st.data(), step=st.integers(1, 50), last=st.sampled_from(["", "saved", "finished", "error"]))
    def worker_reports(self, data: st.DataObject, step: int, last: str) -> None:
        name, attempt = data.draw(st.sampled_from(self.living()))
        if not self.nodes[name].connected:
            return
        point = StepPoint(step=step, loss=1.0, step_time_s=1.0, tokens_per_s=1.0)
        reports = [
            Ready(resumed_step=0, checkpoint=None, rendezvous_s=0.0, load_s=0.0),
            Progress(points=(point,)),
            *([CheckpointSaved(step=step, name="s", size_bytes=1, save_s=0.1)] if last == "saved" else []),
            *([Finished(step=step, loss=1.0, output=None)] if last == "finished" else []),
            *([WorkerError(code="crash", rank=0, message="x")] if last == "error" else []),
        ]
        for report in reports:
            self.feed(WorkerReported(node_id=NodeId(name), attempt_id=attempt, report=report))

    @precondition(lambda self: self.living())
    @rule(data=st.data(), within_s=WITHIN_S, wait_s=st.sampled_from([0.5, 20.0, 90.0]))
    def a_busy_node_is_reclaimed(self, data: st.DataObject, within_s: float | None, wait_s: float) -> None:
        """Its workers step, its lender speaks, and the stops do not arrive in time."""
        name, _ = data.draw(st.sampled_from(self.living()))
        self.all_workers_step(step=data.draw(st.integers(1, 50)))
        self.lender_speaks(name=name, within_s=within_s)
        self.time_passes(wait_s=wait_s)

    @rule(name=st.sampled_from(NODES), dirty=st.sampled_from([None, "pid 7"]))
    def device_changes(self, name: str, dirty: str | None) -> None:
        devices = node_info(name).devices
        changed = (replace(devices[0], dirty=dirty), *devices[1:])
        self.feed(DevicesChanged(node_id=NodeId(name), devices=changed))

    @rule()
    def scheduler_restarts(self) -> None:
        restored = restored_from(self.steps)
        before = self.engine.state
        self.engine = Engine(make_policy(self.policy), self.config, restored)
        for one in fields(ClusterState):
            if one.name not in FORGOTTEN:
                assert getattr(self.engine.state, one.name) == getattr(before, one.name), one.name
        self.inbox = []
        for node in self.nodes.values():
            node.connected = False
        self.feed(SchedulerStarted(scheduler_version="1", policy=self.policy, policy_version="1"))

    # What must hold

    @invariant()
    def state_is_sound(self) -> None:
        assert violations(self.engine.state) == []

    @invariant()
    def no_job_is_lost(self) -> None:
        known = {JobId(name) for name in self.engine.state.jobs} | set(self.terminal)
        assert known == self.submitted

    @invariant()
    def a_wakeup_is_never_in_the_past_after_a_tick(self) -> None:
        if self.steps and isinstance(self.steps[-1].event, Tick):
            wakeup_s = self.engine.next_wakeup_s
            assert wakeup_s is None or wakeup_s > self.now_s, "a driver would spin"

    @invariant()
    def nothing_is_left_to_run_on_a_node_that_should_be_empty(self) -> None:
        if not self.steps or not isinstance(self.steps[-1].event, Tick):
            return
        for attempt in self.engine.state.attempts.values():
            for name in set(attempt.allocation.node_ids) - attempt.ended_nodes:
                empty_at_s = self.engine.state.nodes[name].empty_at_s
                if empty_at_s is not None and empty_at_s <= self.now_s:
                    assert attempt.stop_mode == "kill", f"{attempt.attempt_id} is left on {name}"

    def teardown(self) -> None:
        if not getattr(self, "steps", None):
            return
        if any(isinstance(step.event, SchedulerStarted) for step in self.steps):
            return  # what an engine forgot at a restart (the order of its deadlines) is not part of the log
        again = Engine(make_policy(self.policy), self.config)
        for step, old in zip(replay(again, [(s.at_s, s.event) for s in self.steps]), self.steps, strict=True):
            assert step == old


class FcfsMachine(EngineMachine):
    policy = "fcfs"


TestElasticEngine = EngineMachine.TestCase
TestElasticEngine.settings = settings(max_examples=60, stateful_step_count=80, deadline=None)
TestFcfsEngine = FcfsMachine.TestCase
TestFcfsEngine.settings = settings(max_examples=40, stateful_step_count=80, deadline=None)
