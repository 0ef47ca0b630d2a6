"""What is believed of a job's length: a distribution, from what it declares, the history, and what it has done. Pure.

A job that declares its steps is believed to make about as many: the ratio of actual to declared steps is log-normal,
with a bias and a spread learned from the jobs of its user and kind of work, shrunk to those of the user's jobs, of all
jobs, and to a prior. One that declares nothing is believed to be as long as such jobs were: in steps where the same
work has been seen, else in GPU-seconds. With no history either it ranks by attained service: as much is believed to be
left as has been done.

Where declarations are right, understating does not pay: past what it declared a job soon ranks by attained service
(see ``arena.policies.gittins``), which, when it ends, is its true length. Nobody gets to the end without having ranked
there once, and who declares right ranks there at the start. Where declarations scatter, one that is too small by less
than they do cannot be told from an honest error, and wins a little until the user's history shows it: what a user's
jobs overrun is added to what the next ones declare.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from arena.domain.history import LengthHistory, workload_name
from arena.domain.job import JobId, JobSpec
from arena.domain.records import JobState
from arena.errors import InternalError
from arena.policies.base import Snapshot
from arena.policies.gittins import DOUBT, Floats, gittins_table
from arena.policies.length_estimates import (
    DEFAULT_PRIOR,
    BeliefSource,
    JobKeys,
    LengthPrior,
    declared_ratios,
    source_of_length,
    usual_lengths,
)
from arena.policies.lengths import measured_step_s, steps_done

FLOOR_GPU_S = 60.0
"""Work that a job of which nothing is known is believed to have left at least."""

STEPS_MIN = 1e-3
"""Least that is ever believed to be left: a job that has not ended has something left."""

_REFUTED_SCORE = 3.0
"""Standard scores past its median from which on a job is floored as if nothing were known of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthBelief:
    """The distribution of a job's total steps.

    Args:
        median_steps: None where nothing is known: then it ranks by attained service.
        sigma: Of the logarithm about it; 0 is certainty.
        floor_steps: Least that is believed to be left where nothing is known, or what was known turned out wrong.
        limit_steps: Steps by which its time limit ends it at its present pace.
        source: Where the belief comes from.
    """

    median_steps: float | None
    sigma: float
    floor_steps: float = STEPS_MIN
    limit_steps: float = math.inf
    source: BeliefSource = BeliefSource.DECLARED

    def effective_remaining_steps(self, done: float) -> float:
        """Return the Gittins quantity after so many steps; the job that has the least of it is served first."""
        terms = np.array([[_median_term(self.median_steps), self.sigma, self.floor_steps, self.limit_steps]])
        return float(_effective(terms, np.array([done]))[0])

    def mean_remaining_steps(self, done: float) -> float:
        """Return the expected steps left; for what is doubtful, which has no mean, half of such jobs end sooner."""
        median = self.median_steps
        if median is None:
            return self._limited(max(done, self.floor_steps), done)
        left = (1.0 - DOUBT) * self._mean_excess(median, done)
        sure, doubtful = (1.0 - DOUBT) * _tail(_score(done, median, self.sigma)), DOUBT * _pareto_tail(done, median)
        left_in_doubt = max(done, self.floor_steps) if done >= median else 2.0 * median - done
        return self._limited((left + doubtful * left_in_doubt) / (sure + doubtful), done)

    def quantile_remaining_steps(self, done: float, share: float) -> float:
        """Return the steps left within which such a share of jobs like this one end (0.5 is the median).

        Raises:
            InternalError: The share is not between 0 and 1.
        """
        if not 0.0 < share < 1.0:
            raise InternalError(f"a quantile is of a share between 0 and 1, not {share}")
        median = self.median_steps
        if median is None:
            return self._limited(max(done, self.floor_steps) * share / (1.0 - share), done)
        wanted = (1.0 - share) * self._going(done, median)
        low, high = done, max(done, median)
        while self._going(high, median) > wanted:
            low, high = high, 2.0 * high
        for _ in range(60):
            middle = (low + high) / 2.0
            low, high = (middle, high) if self._going(middle, median) > wanted else (low, middle)
        return self._limited(high - done, done)

    def _mean_excess(self, median: float, done: float) -> float:
        """Return E[(S - done)+] of the log-normal length."""
        score = _score(done, median, self.sigma)
        mean = median * math.exp(self.sigma * self.sigma / 2.0)
        return max(mean * _tail(score - self.sigma) - done * _tail(score), 0.0)

    def _going(self, steps: float, median: float) -> float:
        """Return the probability that the job makes more steps than these."""
        return (1.0 - DOUBT) * _tail(_score(steps, median, self.sigma)) + DOUBT * _pareto_tail(steps, median)

    def _limited(self, left: float, done: float) -> float:
        return max(min(left, self.limit_steps - done), STEPS_MIN)


def belief(
    snapshot: Snapshot,
    job_id: JobId,
    gpu_s_per_step: float,
    *,
    floor_gpu_s: float = FLOOR_GPU_S,
    prior: LengthPrior = DEFAULT_PRIOR,
) -> LengthBelief:
    """Return what is believed of a job's total steps.

    Args:
        gpu_s_per_step: GPU-seconds that a step of the job costs, by which lengths of other work are translated; > 0.
        floor_gpu_s: GPU-seconds believed to be left at least where nothing is known.
        prior: What is believed before any job has ended.
    """
    costs = np.array([gpu_s_per_step])
    median, sigma, floor, limit = _terms(snapshot, [job_id], costs, floor_gpu_s, prior)[0].tolist()
    job = snapshot.jobs[job_id]
    is_declared = declared_steps(job.spec) is not None
    return LengthBelief(
        median_steps=None if math.isnan(median) else median,
        sigma=sigma,
        floor_steps=floor,
        limit_steps=limit,
        source=BeliefSource.DECLARED
        if is_declared
        else source_of_length(snapshot.history, (job.user, workload_name(job.spec))),
    )


def effective_remaining(
    snapshot: Snapshot,
    job_ids: Sequence[JobId],
    gpu_s_per_step: Floats,
    steps: Floats,
    *,
    floor_gpu_s: float = FLOOR_GPU_S,
    prior: LengthPrior = DEFAULT_PRIOR,
) -> Floats:
    """Return the effective remaining steps of many jobs, each as its ``belief`` says.

    Args:
        gpu_s_per_step: As for ``belief``, ``[jobs]``.
        steps: What each has done, ``[jobs]``.
    """
    return _effective(_terms(snapshot, job_ids, gpu_s_per_step, floor_gpu_s, prior), steps)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LengthFacts:
    """What jobs say of their lengths.

    Args:
        declared: Steps, NaN where none are declared, ``[jobs]``.
        limit_steps: By which their time limits end them at their present pace, ``[jobs]``.
    """

    keys: JobKeys
    declared: Floats
    limit_steps: Floats

    def effective_remaining(self, history: LengthHistory, gpu_s_per_step: Floats, steps: Floats) -> Floats:
        """Return the effective remaining steps of the jobs, see the function of this name."""
        return _effective(_terms_of(history, self, gpu_s_per_step, FLOOR_GPU_S, DEFAULT_PRIOR), steps)


def _effective(terms: Floats, done: Floats) -> Floats:
    """Return the effective remaining steps from ``[jobs, (median, sigma, floor, limit)]``; a NaN median is unknown."""
    median, sigma, floor, limit = terms.T
    attained = np.maximum(done, floor)
    is_known = ~np.isnan(median)
    known = np.where(is_known, median, 1.0)
    left = gittins_table().remaining(known, sigma, done)
    is_refuted = done >= known * np.exp(_REFUTED_SCORE * sigma)
    left = np.where(is_refuted, np.maximum(left, floor), left)
    left = np.where(is_known, left, attained)
    return np.asarray(np.maximum(np.minimum(left, limit - done), STEPS_MIN))


def _terms(
    snapshot: Snapshot, job_ids: Sequence[JobId], gpu_s_per_step: Floats, floor_gpu_s: float, prior: LengthPrior
) -> Floats:
    """Return what ``_effective`` takes."""
    jobs = [snapshot.jobs[job_id] for job_id in job_ids]
    limits = [
        math.inf if job.spec.stop.time_limit_s is None else _limit_steps(snapshot, job.job_id, float(cost))
        for job, cost in zip(jobs, gpu_s_per_step, strict=True)
    ]
    facts = LengthFacts(
        keys=JobKeys.of([(job.user, workload_name(job.spec)) for job in jobs]),
        declared=np.array([declared_steps(job.spec) for job in jobs], dtype=np.float64),  # None becomes NaN
        limit_steps=np.array(limits, dtype=np.float64),
    )
    return _terms_of(snapshot.history, facts, gpu_s_per_step, floor_gpu_s, prior)


def _terms_of(
    history: LengthHistory, facts: LengthFacts, gpu_s_per_step: Floats, floor_gpu_s: float, prior: LengthPrior
) -> Floats:
    declared = facts.declared
    terms = np.empty((len(declared), 4))
    log_ratios, terms[:, 1] = declared_ratios(history, prior, facts.keys, declared)
    terms[:, 0] = declared * np.exp(log_ratios)
    unsaid = np.flatnonzero(np.isnan(declared))
    if len(unsaid):
        costs, their_keys = gpu_s_per_step[unsaid], facts.keys.only(unsaid)
        terms[unsaid, 0], terms[unsaid, 1] = usual_lengths(history, prior, their_keys, costs)
    terms[:, 2] = floor_gpu_s / gpu_s_per_step
    terms[:, 3] = facts.limit_steps
    return terms


def declared_steps(spec: JobSpec) -> int | None:
    """Return the steps that a job declares; the usual case without the way over tokens, which takes longer."""
    return spec.stop.steps if spec.stop.tokens is None else spec.step_limit


def _limit_steps(snapshot: Snapshot, job_id: JobId, gpu_s_per_step: float) -> float:
    """Return how far a job gets in its time, at its pace: measured, else estimated, else on its fewest GPUs."""
    job, holding = snapshot.jobs[job_id], snapshot.holding.get(job_id)
    assert job.spec.stop.time_limit_s is not None
    run_s, step_s = job.run_time_s, measured_step_s(job)
    if holding is not None and job.state is JobState.RUNNING:
        run_s += snapshot.now_s - holding.since_s
    if not step_s and holding is not None and holding.estimate is not None:
        step_s = holding.estimate.iter_time_s
    step_s = step_s or gpu_s_per_step / job.spec.gpus.count_min
    return steps_done(snapshot, job_id) + max(job.spec.stop.time_limit_s - run_s, 0.0) / step_s


def _median_term(median: float | None) -> float:
    return math.nan if median is None else median


def _score(steps: float, median: float, sigma: float) -> float:
    """Return the standard score of a number of steps."""
    if steps <= 0.0:
        return -math.inf
    if sigma <= 0.0:
        return -math.inf if steps < median else math.inf
    return (math.log(steps) - math.log(median)) / sigma  # of their quotient nothing may be left


def _tail(score: float) -> float:
    return 0.5 * math.erfc(score / math.sqrt(2.0))


def _pareto_tail(steps: float, median: float) -> float:
    return 1.0 if steps <= median else median / steps
