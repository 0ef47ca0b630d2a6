"""Modelled agents and workers: the simulated implementation of the engine's world port. Pure: no I/O, no clock."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from arena.domain.cluster import ClusterShape
from arena.domain.commands import (
    AcknowledgeEnd,
    AnswerRegistration,
    BuildGrid,
    Command,
    DismissNotice,
    LaunchAttempt,
    StopAttempt,
)
from arena.domain.events import (
    AttemptEnded,
    AttemptStarted,
    Event,
    GridBuilt,
    GridFailed,
    JobWishChanged,
    WorkerReported,
)
from arena.domain.grid import GridSource
from arena.domain.job import JobId, JobSpec
from arena.domain.launch import (
    AttemptId,
    CheckpointSaved,
    Finished,
    NodeId,
    Progress,
    Ready,
    StepPoint,
    Stopped,
    WorkerReport,
)
from arena.domain.records import AttemptRecord, EndKind, NodeEnd
from arena.errors import ArenaError
from arena.sim.costs import SimCosts
from arena.sim.kernel import Kernel, Scheduled

REPORTS_FIRST = 0
ENDS_AFTER = 1
ARRIVALS_LAST = 2
"""At one instant departures come before arrivals, so that who arrives finds the devices free."""

FAILED_FOR_GOOD = "data"
"""What a worker calls an error that a repetition cannot mend."""

OUT_OF_MEMORY = "oom"
"""What a worker calls a plan that does not fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fate:
    """How a job really goes, whatever its specification declares.

    Args:
        step_count: Its last step; None when it ends only by its user.
        is_cancelled: Whether its user then kills it, instead of its being finished.
        is_failed: Whether it then fails by itself, for good.
    """

    step_count: int | None
    is_cancelled: bool = False
    is_failed: bool = False


@dataclass(slots=True, kw_only=True)
class _Run:
    """A modelled attempt.

    Args:
        began_at_s: Set once all its nodes are up and it has begun to step.
        saving_since_s: Set once it has been asked to save and stop.
    """

    attempt: AttemptRecord
    spec: JobSpec
    nodes: list[NodeId] = field(default_factory=list)
    began_at_s: float | None = None
    began_step: int = 0
    step_s: float = 1.0
    saving_since_s: float | None = None
    pending: list[Scheduled] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class SimWorld:
    """Carries out commands by scheduling the events that answer them.

    A modelled job steps at the pace its estimate says, or at that of the costs, saves as often as it is told and when
    it is asked to stop, and ends as its fate says. One that may be laid out is profiled before it gets its first grid.
    A foreign program does so too, but tells nobody, here as everywhere: its start and its end are all that is heard.

    Args:
        kernel: Virtual time, shared with the run.
        grids: Makes the grids, at once but for the profile.
        costs: Durations of the modelled agents.
        attempts: Looks up a live attempt.
        fates: How jobs really go; who is missing ends at the limit of its specification.
    """

    kernel: Kernel[Event]
    grids: GridSource
    costs: SimCosts
    attempts: Callable[[AttemptId], AttemptRecord]
    fates: Mapping[JobId, Fate] = field(default_factory=dict)
    _runs: dict[AttemptId, _Run] = field(default_factory=dict)
    _durable: dict[JobId, int] = field(default_factory=dict)
    _kept_s: dict[AttemptId, float] = field(default_factory=dict)
    _profiled_at_s: dict[JobId, float] = field(default_factory=dict)

    def send(self, command: Command) -> None:
        """Start carrying out a command."""
        match command:
            case LaunchAttempt():
                self._launch(command)
            case StopAttempt():
                self._stop(command)
            case BuildGrid():
                at_s = self._profiled_s(command.job_id, command.spec)
                self.kernel.push(at_s, self._grid(command.job_id, command.spec, command.shape))
            case AcknowledgeEnd() | AnswerRegistration() | DismissNotice():
                pass

    def lose_node(self, node_id: NodeId) -> None:
        """Kill what runs on a node without a word, as a power cut does; its peers elsewhere die of it."""
        now_s = self.kernel.now_s
        for run in [run for run in self._runs.values() if node_id in run.nodes]:
            is_saved = run.saving_since_s is not None and now_s >= run.saving_since_s + self._saving_s(run)
            self._forget(run)
            if not is_saved:
                self._keep_saved(run, now_s)
            run.nodes.remove(node_id)
            self._end(run, now_s + self.costs.exit_s, EndKind.FAILED)

    def forget_attempt(self, attempt_id: AttemptId) -> None:
        """Forget an attempt that is over."""
        self._runs.pop(attempt_id, None)
        self._kept_s.pop(attempt_id, None)

    def kept_s(self, attempt_id: AttemptId) -> float:
        """Return how long an attempt that is over, and not forgotten yet, did work that is not to be repeated."""
        return self._kept_s.get(attempt_id, 0.0)

    def forget_job(self, job_id: JobId) -> None:
        """Forget a job that is over, so that memory does not grow with the trace."""
        self._durable.pop(job_id, None)
        self._profiled_at_s.pop(job_id, None)

    def _profiled_s(self, job_id: JobId, spec: JobSpec) -> float:
        """Return when a grid can be made: a profile is made once, however often the cluster changes."""
        now_s = self.kernel.now_s
        if not self.costs.profile_s or spec.command is not None:
            return now_s
        return max(self._profiled_at_s.setdefault(job_id, now_s + self.costs.profile_s), now_s)

    def _saving_s(self, run: _Run) -> float:
        return self.costs.saving_s(run.spec, run.attempt.group)

    def _keep_saved(self, run: _Run, now_s: float) -> None:
        """Have a job go on from its last checkpoint, of which the engine was told when it was written."""
        step = self._saved_step(run, now_s)
        self._keep(run, step)
        if step > run.began_step:
            self._report(run, now_s, CheckpointSaved(step=step, name=f"step-{step}", size_bytes=0, save_s=0.0))

    def _keep(self, run: _Run, step: int) -> None:
        self._durable[run.attempt.job_id] = step
        self._kept_s[run.attempt.attempt_id] = max(step - run.began_step, 0) * run.step_s

    def _grid(self, job_id: JobId, spec: JobSpec, shape: ClusterShape) -> Event:
        try:
            return GridBuilt(job_id=job_id, shape=shape, grid=self.grids.grid(spec, shape))
        except ArenaError as error:
            return GridFailed(job_id=job_id, error=error.message)

    def _launch(self, command: LaunchAttempt) -> None:
        name, started_at_s = command.launch.attempt_id, self.kernel.now_s + self.costs.start_s
        run = self._runs.get(name)
        if run is None:
            run = self._runs[name] = _Run(attempt=self.attempts(name), spec=command.launch.spec)
        run.nodes.append(command.node_id)
        self._push(run, started_at_s, AttemptStarted(node_id=command.node_id, attempt_id=name))
        if len(run.nodes) == command.launch.node_count:
            self._begin(run, started_at_s)

    def _begin(self, run: _Run, started_at_s: float) -> None:
        attempt = run.attempt
        run.began_step = self._durable.get(attempt.job_id, 0)
        load_s = self.costs.restart.restart_s(run.spec, attempt.group, is_first=run.began_step == 0)
        if self.costs.runs_out(run.spec, attempt.group):
            self._end(run, started_at_s + load_s + self.costs.exit_s, EndKind.FAILED, error_code=OUT_OF_MEMORY)
            return
        run.began_at_s = started_at_s + load_s
        run.step_s = self.costs.step_s(run.spec, attempt.group, estimated_s=_estimated_s(attempt))
        if run.spec.command is None:
            self._tell_of_beginning(run, run.began_at_s, load_s)
        fate = self._fate(run)
        if fate.step_count is not None:
            self._finish(run, fate, fate.step_count)

    def _tell_of_beginning(self, run: _Run, began_at_s: float, load_s: float) -> None:
        ready = Ready(
            resumed_step=run.began_step,
            checkpoint=f"step-{run.began_step}" if run.began_step else None,
            rendezvous_s=0.0,
            load_s=load_s,
        )
        self._report(run, began_at_s, ready)
        point = StepPoint(step=run.began_step + 1, loss=1.0, step_time_s=run.step_s, tokens_per_s=1.0 / run.step_s)
        self._report(run, began_at_s + run.step_s, Progress(points=(point,)))

    def _fate(self, run: _Run) -> Fate:
        fate = self.fates.get(run.attempt.job_id)
        return fate if fate is not None else Fate(step_count=run.spec.step_limit)

    def _finish(self, run: _Run, fate: Fate, last_step: int) -> None:
        assert run.began_at_s is not None
        at_s = run.began_at_s + max(last_step - run.began_step, 0) * run.step_s
        if self.costs.round_s:
            # A little less than the multiple: rounding must not add a round.
            at_s = math.ceil(at_s / self.costs.round_s - 1e-9) * self.costs.round_s
        if fate.is_cancelled:
            wish = JobWishChanged(job_id=run.attempt.job_id, wish="cancel", by=run.spec.user or "its user")
            run.pending.append(self.kernel.push(at_s, wish, priority=REPORTS_FIRST))
            return
        self._kept_s[run.attempt.attempt_id] = max(last_step - run.began_step, 0) * run.step_s
        if fate.is_failed:
            # What it did until then is no loss of the scheduler's, so it counts as kept.
            saved = CheckpointSaved(step=last_step, name=f"step-{last_step}", size_bytes=0, save_s=0.0)
            self._report(run, at_s, saved)
            self._end(run, at_s + self.costs.exit_s, EndKind.FAILED, error_code=FAILED_FOR_GOOD)
            return
        self._report(run, at_s, Finished(step=last_step, loss=None, output=None))
        self._end(run, at_s + self.costs.exit_s, EndKind.FINISHED)

    def _stop(self, command: StopAttempt) -> None:
        run, now_s = self._runs.get(command.attempt_id), self.kernel.now_s
        if run is None:
            return
        if run.saving_since_s is not None:
            if command.mode == "kill" and now_s < run.saving_since_s + self._saving_s(run):
                self._forget(run)
                self._keep_saved(run, now_s)
                self._end(run, now_s + self.costs.exit_s, EndKind.KILLED)
            return
        self._forget(run)
        if command.mode == "kill":
            self._keep(run, self._saved_step(run, now_s))
            self._end(run, now_s + self.costs.exit_s, EndKind.KILLED)
            return
        step = self._steps_done(run, now_s)
        self._keep(run, step)
        # Until it is over it is one of those that run: a node that is lost in the meantime takes the checkpoint along.
        self._runs[command.attempt_id], run.saving_since_s = run, now_s
        save_s = self._saving_s(run)
        saved_at_s = now_s + save_s
        saved = CheckpointSaved(step=step, name=f"step-{step}", size_bytes=0, save_s=save_s)
        self._report(run, saved_at_s, saved)
        self._report(run, saved_at_s, Stopped(step=step, durable_step=step))
        self._end(run, saved_at_s + self.costs.exit_s, EndKind.STOPPED)

    def _forget(self, run: _Run) -> None:
        """Take an attempt out of the running ones and call off what it would have done."""
        self._runs.pop(run.attempt.attempt_id, None)
        for entry in run.pending:
            self.kernel.cancel(entry)
        run.pending.clear()

    def _end(self, run: _Run, at_s: float, kind: EndKind, *, error_code: str = "") -> None:
        name = run.attempt.attempt_id
        for node_id in run.nodes:
            end = NodeEnd(node_id=node_id, kind=kind, error_code=error_code)
            self._push(run, at_s, AttemptEnded(node_id=node_id, attempt_id=name, end=end), priority=ENDS_AFTER)

    def _report(self, run: _Run, at_s: float, report: WorkerReport) -> None:
        if run.spec.command is not None:
            return
        event = WorkerReported(node_id=run.nodes[0], attempt_id=run.attempt.attempt_id, report=report)
        self._push(run, at_s, event, priority=REPORTS_FIRST)

    def _push(self, run: _Run, at_s: float, event: Event, *, priority: int = REPORTS_FIRST) -> None:
        run.pending.append(self.kernel.push(at_s, event, priority=priority))

    def _steps_done(self, run: _Run, now_s: float) -> int:
        if run.began_at_s is None or now_s <= run.began_at_s:
            return run.began_step
        until_s = now_s if run.saving_since_s is None else run.saving_since_s
        done = run.began_step + max(int((until_s - run.began_at_s) / run.step_s + 1e-9), 0)
        limit = self._fate(run).step_count
        return done if limit is None else min(done, limit)

    def _saved_step(self, run: _Run, now_s: float) -> int:
        """Return the newest step in a checkpoint that nobody asked for: they are written every so many steps."""
        interval = run.spec.checkpoint.interval_steps
        done = self._steps_done(run, now_s)
        return max(run.began_step, done - done % interval)


def _estimated_s(attempt: AttemptRecord) -> float:
    return attempt.estimate.iter_time_s if attempt.estimate is not None else 1.0
