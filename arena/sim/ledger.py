"""What a run cost and gave: an account kept step by step, so that memory grows with the jobs only. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from arena.domain.job import JobId
from arena.domain.launch import AttemptId
from arena.domain.records import AttemptRecord, JobRecord, JobState
from arena.engine.ports import Step


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOutcome:
    """How a job went.

    Args:
        gpu_count: GPUs of its last attempt; 0 if it never had any.
        gpu_seconds: All that its attempts held, from launch to verified end, and what its profile took.
        lost_gpu_seconds: What of it went to the profile, to starting, loading, saving and repeated steps.
        attempt_count: Launches; one less is the number of restarts.
        held_s: How long it had GPUs, from each launch to the verified end.
    """

    job_id: JobId
    submitted_at_s: float
    first_started_at_s: float | None
    ended_at_s: float
    state: JobState
    gpu_count: int
    gpu_seconds: float
    lost_gpu_seconds: float
    attempt_count: int
    held_s: float

    @property
    def completion_s(self) -> float:
        """Job completion time (JCT): from submission to end, queueing included."""
        return self.ended_at_s - self.submitted_at_s

    @property
    def waiting_s(self) -> float:
        """Without GPUs: before its first launch, while suspended and between attempts."""
        return self.completion_s - self.held_s

    @property
    def restart_count(self) -> int:
        """Launches beyond the first."""
        return max(self.attempt_count - 1, 0)


@dataclass(slots=True)
class _Account:
    """What a job has had so far; ``kept_step`` is how far its finished attempts are known to have brought it."""

    gpu_count: int = 0
    gpu_seconds: float = 0.0
    lost_gpu_seconds: float = 0.0
    attempt_count: int = 0
    held_s: float = 0.0
    kept_step: int = 0
    step_gpu_seconds: float = 0.0


def estimated_step_s(attempt: AttemptRecord) -> float:
    """Return how long a step of an attempt takes as far as its estimate is right; 0 where there is none."""
    return attempt.estimate.iter_time_s if attempt.estimate is not None else 0.0


@dataclass(slots=True)
class Ledger:
    """Reads every step of a run.

    Attributes:
        step_s: How long a step of an attempt really takes.
        untold_s: How long an attempt that told of no step, as one of a program, did work that is not to be repeated.
        profile_s, profile_gpus: How long a job that may be laid out is profiled, and on how many GPUs.
        outcomes: Of the jobs that ended, in order of their end.
        busy: GPUs held after each change, as (instant, count): a step function over the run.
        decision_count: How often the policy was asked.
    """

    step_s: Callable[[AttemptRecord], float] = estimated_step_s
    untold_s: Callable[[AttemptId], float] = lambda _: 0.0
    profile_s: float = 0.0
    profile_gpus: int = 1
    outcomes: list[JobOutcome] = field(default_factory=list)
    busy: list[tuple[float, int]] = field(default_factory=list)
    decision_count: int = 0
    _accounts: dict[JobId, _Account] = field(default_factory=dict)
    _held: int = 0

    def watch(self, step: Step) -> None:
        """Take a step into account."""
        if step.decision is not None:
            self.decision_count += 1
        for attempt in step.attempts:
            self._attempt(attempt, step.at_s)
        for job in step.jobs:
            if job.ended_at_s is not None:
                self._job(job)

    def _attempt(self, attempt: AttemptRecord, at_s: float) -> None:
        account = self._accounts.get(attempt.job_id)
        if account is None:
            account = self._accounts[attempt.job_id] = _Account()
        if account.attempt_count < attempt.epoch:
            account.attempt_count = attempt.epoch
            account.gpu_count = attempt.group.gpu_count
            self._hold(at_s, account.gpu_count)
        if attempt.resumed_step is not None and attempt.resumed_step > account.kept_step:
            # The attempt before ended without a word, and had saved more than it had told.
            account.lost_gpu_seconds -= (attempt.resumed_step - account.kept_step) * account.step_gpu_seconds
            account.kept_step = attempt.resumed_step
        if attempt.ended_at_s is None:
            return
        count = attempt.group.gpu_count
        self._hold(at_s, -count)
        held_s = attempt.ended_at_s - attempt.launched_at_s
        account.held_s += held_s
        account.gpu_seconds += count * held_s
        if attempt.resumed_step is None:
            account.lost_gpu_seconds += count * (held_s - self.untold_s(attempt.attempt_id))
            return
        steps = _kept_steps(attempt)
        account.step_gpu_seconds = count * self.step_s(attempt)
        account.lost_gpu_seconds += count * held_s - steps * account.step_gpu_seconds
        account.kept_step += steps

    def _hold(self, at_s: float, change: int) -> None:
        self._held += change
        if self.busy and self.busy[-1][0] == at_s:
            self.busy[-1] = (at_s, self._held)
        else:
            self.busy.append((at_s, self._held))

    def _job(self, job: JobRecord) -> None:
        account = self._accounts.pop(job.job_id, None) or _Account()
        assert job.ended_at_s is not None
        profiled = 0.0
        if self.profile_s and job.spec.command is None:  # one that was cancelled early is not profiled any longer
            profiled = self.profile_gpus * min(self.profile_s, job.ended_at_s - job.submitted_at_s)
        self.outcomes.append(
            JobOutcome(
                job_id=job.job_id,
                submitted_at_s=job.submitted_at_s,
                first_started_at_s=job.first_started_at_s,
                ended_at_s=job.ended_at_s,
                state=job.state,
                gpu_count=account.gpu_count,
                gpu_seconds=account.gpu_seconds + profiled,
                lost_gpu_seconds=account.lost_gpu_seconds + profiled,
                attempt_count=account.attempt_count,
                held_s=account.held_s,
            )
        )


def _kept_steps(attempt: AttemptRecord) -> int:
    """Return how many durable steps an attempt is known to have added."""
    assert attempt.resumed_step is not None
    last = attempt.last_step if attempt.finished_report else attempt.durable_step
    return max(last - attempt.resumed_step, 0)
