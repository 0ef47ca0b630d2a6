"""When a job leaves a node that is to be empty by an instant. Pure: no I/O, no clock.

One rule for the scheduler, which asks jobs to leave, and for an agent that has no scheduler to ask it.
"""

from __future__ import annotations

from arena.domain.job import JobSpec

LEAVE_AHEAD_S = 600.0
"""So long before its node is to be empty a job that can be saved leaves it, and may be stopped at all."""

GRACES_TO_SPARE = 2.0
"""Graces of its job that an attempt is left before its node goes, where it is not stopped long before."""


def leave_at_s(spec: JobSpec, until_s: float, *, ahead_s: float = LEAVE_AHEAD_S) -> float:
    """Return when a job leaves that will not have ended by itself.

    Early, so that it is saved and starts elsewhere in time. One that may not be stopped is left for as long as it can
    still be saved: the word may be withdrawn. A program that keeps no checkpoints loses all it did: it is only told
    shortly before.

    Args:
        until_s: When its node is to be empty.
        ahead_s: Time to spare for one that may be stopped.
    """
    if not spec.keeps_checkpoints:
        return until_s - spec.grace_s
    graces_s = GRACES_TO_SPARE * spec.grace_s
    return until_s - (max(ahead_s, graces_s) if spec.preemptible else graces_s)


def last_leave_at_s(spec: JobSpec, told_at_s: float, until_s: float) -> float:
    """Return until when a job that would end by itself is waited for: with two graces to spare, or half of the time."""
    return until_s - min(GRACES_TO_SPARE * spec.grace_s, (until_s - told_at_s) / 2)


def may_be_repeated(spec: JobSpec) -> bool:
    """Return whether a job may start anew after its node had to be left: only its user knows that of a program."""
    return spec.preemptible or spec.restarts_max > 0 or spec.keeps_checkpoints
