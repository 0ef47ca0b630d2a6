"""Modelled agents and workers: the simulated implementation of the engine's world port. Pure: no I/O, no clock."""

from __future__ import annotations

from dataclasses import dataclass, replace

from arena.domain.cluster import ClusterShape
from arena.domain.commands import AcknowledgeEnd, AnswerRegistration, BuildGrid, Command, LaunchAttempt, StopAttempt
from arena.domain.events import AttemptEnded, AttemptStarted, Event, GridBuilt, GridFailed, WorkerReported
from arena.domain.grid import Grid, GridSource
from arena.domain.job import JobId, JobSpec
from arena.domain.launch import (
    AttemptId,
    CheckpointSaved,
    Finished,
    Launch,
    NodeId,
    Progress,
    Ready,
    StepPoint,
    Stopped,
    WorkerReport,
)
from arena.domain.records import EndKind, NodeEnd
from arena.errors import ArenaError
from arena.sim.kernel import Kernel

REPORTS_FIRST = 0
ENDS_AFTER = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SimCosts:
    """What the modelled agents take.

    Args:
        start_s: From launch to processes up.
        load_s: From processes up to ready.
        save_s: A checkpoint.
        exit_s: From the last word of a worker until its processes are gone.
    """

    start_s: float = 1.0
    load_s: float = 2.0
    save_s: float = 1.0
    exit_s: float = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """A modelled attempt: its launch and, once rank 0 is ready, when and where it began to step."""

    launch: Launch
    nodes: tuple[NodeId, ...]
    began_at_s: float | None = None
    began_step: int = 0
    step_s: float = 1.0


class SimWorld:
    """Carries out commands by scheduling the events that answer them.

    A modelled job steps at the pace its grid says, saves when it is asked to stop, and finishes at its step limit.

    Args:
        kernel: Virtual time, shared with the run.
        grids: Makes the grids, at once.
        costs: Durations of the modelled agents.
    """

    def __init__(self, kernel: Kernel[Event], grids: GridSource, costs: SimCosts) -> None:
        self._kernel = kernel
        self._grids = grids
        self._costs = costs
        self._runs: dict[AttemptId, _Run] = {}
        self._durable: dict[JobId, int] = {}
        self._cache: dict[tuple[JobId, ClusterShape], Grid] = {}
        self.sent: list[Command] = []

    def send(self, command: Command) -> None:
        """Start carrying out a command."""
        self.sent.append(command)
        match command:
            case LaunchAttempt():
                self._launch(command)
            case StopAttempt():
                self._stop(command)
            case BuildGrid():
                self._kernel.push(self._kernel.now_s, self._grid(command.job_id, command.spec, command.shape))
            case AcknowledgeEnd() | AnswerRegistration():
                pass

    def step_of(self, job_id: JobId) -> int:
        """Return the step in a job's last checkpoint."""
        return self._durable.get(job_id, 0)

    def lose_node(self, node_id: NodeId) -> None:
        """Kill what runs on a node without a word, as a power cut does."""
        gone = {name for name, run in self._runs.items() if node_id in run.nodes}
        for name in gone:
            del self._runs[name]
        self._kernel.drop(lambda event: getattr(event, "node_id", None) == node_id)

    def _grid(self, job_id: JobId, spec: JobSpec, shape: ClusterShape) -> Event:
        key = (job_id, shape)
        try:
            if key not in self._cache:
                self._cache[key] = self._grids.grid(spec, shape)
        except ArenaError as error:
            return GridFailed(job_id=job_id, error=error.message)
        return GridBuilt(job_id=job_id, shape=shape, grid=self._cache[key])

    def _launch(self, command: LaunchAttempt) -> None:
        launch, now_s = command.launch, self._kernel.now_s
        name = launch.attempt_id
        started_at_s = now_s + self._costs.start_s
        self._kernel.push(started_at_s, AttemptStarted(node_id=command.node_id, attempt_id=name))
        run = self._runs.get(name)
        nodes = (*(run.nodes if run else ()), command.node_id)
        first = launch if launch.node_index == 0 else (run.launch if run else launch)
        self._runs[name] = _Run(launch=first, nodes=nodes)
        if len(nodes) == launch.node_count:
            self._begin(name, self._runs[name], started_at_s)

    def _begin(self, name: AttemptId, run: _Run, started_at_s: float) -> None:
        began_step = self.step_of(run.launch.job_id)
        began_at_s = started_at_s + self._costs.load_s
        step_s = self._step_s(run.launch)
        run = replace(run, began_at_s=began_at_s, began_step=began_step, step_s=step_s)
        self._runs[name] = run
        ready = Ready(
            resumed_step=began_step,
            checkpoint=f"step-{began_step}" if began_step else None,
            rendezvous_s=0.0,
            load_s=self._costs.load_s,
        )
        self._report(began_at_s, run, ready)
        self._report(began_at_s + step_s, run, self._progress(run, began_step + 1))
        limit = run.launch.spec.step_limit
        if limit is not None:
            self._finish(name, run, began_at_s + max(limit - began_step, 0) * step_s, limit)

    def _step_s(self, launch: Launch) -> float:
        grids = [grid for (job_id, _), grid in sorted(self._cache.items(), key=str) if job_id == launch.job_id]
        for grid in reversed(grids):
            for cell in grid.cells:
                if cell.group.gpu_count == launch.world_size and cell.best.plan == launch.plan:
                    return cell.best.estimate.iter_time_s
        return 1.0

    @staticmethod
    def _progress(run: _Run, step: int) -> Progress:
        point = StepPoint(step=step, loss=1.0, step_time_s=run.step_s, tokens_per_s=1.0 / run.step_s)
        return Progress(points=(point,))

    def _report(self, at_s: float, run: _Run, report: WorkerReport) -> None:
        node_id = run.nodes[0]
        event = WorkerReported(node_id=node_id, attempt_id=run.launch.attempt_id, report=report)
        self._kernel.push(at_s, event, priority=REPORTS_FIRST)

    def _finish(self, name: AttemptId, run: _Run, at_s: float, step: int) -> None:
        self._report(at_s, run, self._progress(run, step))
        self._report(at_s, run, Finished(step=step, loss=1.0, output=None))
        self._end(name, run, at_s + self._costs.exit_s, EndKind.FINISHED)

    def _end(self, name: AttemptId, run: _Run, at_s: float, kind: EndKind) -> None:
        for node_id in run.nodes:
            end = NodeEnd(node_id=node_id, kind=kind)
            self._kernel.push(at_s, AttemptEnded(node_id=node_id, attempt_id=name, end=end), priority=ENDS_AFTER)

    def _stop(self, command: StopAttempt) -> None:
        run = self._runs.pop(command.attempt_id, None)
        if run is None:
            return
        name, now_s = command.attempt_id, self._kernel.now_s
        self._kernel.drop(lambda event: getattr(event, "attempt_id", None) == name)
        if command.mode == "kill":
            self._end(name, run, now_s + self._costs.exit_s, EndKind.KILLED)
            return
        step = self._steps_done(run, now_s)
        self._durable[run.launch.job_id] = step
        saved_at_s = now_s + self._costs.save_s
        saved = CheckpointSaved(step=step, name=f"step-{step}", size_bytes=0, save_s=self._costs.save_s)
        self._report(saved_at_s, run, saved)
        self._report(saved_at_s, run, Stopped(step=step, durable_step=step))
        self._end(name, run, saved_at_s + self._costs.exit_s, EndKind.STOPPED)

    def _steps_done(self, run: _Run, now_s: float) -> int:
        if run.began_at_s is None or now_s <= run.began_at_s:
            return run.began_step
        done = run.began_step + int((now_s - run.began_at_s) / run.step_s + 1e-9)
        limit = run.launch.spec.step_limit
        return done if limit is None else min(done, limit)
