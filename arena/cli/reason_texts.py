"""What people are told of a job's reasons: the times in older ones as instants. Pure: no I/O, no clock.

A policy says "in 27 s" of the instant at which it decided. Whoever reads it does so later, by seconds or by days.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from arena.cli import words
from arena.cli.quoting import escaped
from arena.domain.reason import Reason, ReasonCode, cause_of_refusal
from arena.domain.records import JobState
from arena.rpc.views import JobView

ABOUT_THE_DEADLINE = frozenset(code for code in ReasonCode if code.value.startswith("deadline_"))
"""Words on how it stands with a job's deadline: the policy's word of now takes the place of all that came before."""

_INSTANTS: Mapping[str, tuple[str, str]] = {
    "left_s": ("in {} s", "at {}"),
    "from_s": ("from {} s from now on", "from {} on"),
    "start_s": ("in {} s", "at {}"),
    "rest_s": ("for {} s", "until {}"),
    "wait_s": ("in {} s", "at {}"),
}
"""Numbers that count from when a reason was given: how its sentence has them, and how it has an instant instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """A reason and the sentence that its reader is told."""

    reason: Reason
    text: str


def said_of(job: JobView, explanation: Sequence[Reason] = ()) -> list[Said]:
    """Return a job's reasons with what the policy says now, which takes the place of an older word of the same kind."""
    fresh = {one.code for one in explanation}
    if fresh & ABOUT_THE_DEADLINE:
        fresh |= ABOUT_THE_DEADLINE
    older = [Said(reason=one, text=older_text(one, job)) for one in job.reasons if one.code not in fresh]
    return [*older, *(Said(reason=one, text=escaped(str(one))) for one in explanation)]


def sentence(said: Iterable[Said]) -> str:
    """Return reasons as one sentence."""
    return "; ".join(one.text for one in said) or words.NOTHING


def older_text(one: Reason, job: JobView) -> str:
    """Return what a reason of some time ago says, its times as instants as far as it is known when it was given."""
    return escaped(_with_instants(str(one), one, job))


def older_cause_text(one: Reason, job: JobView) -> str:
    """Return why a deadline was not promised when the job came, alike."""
    return escaped(_with_instants(cause_of_refusal(one), one, job))


def _with_instants(text: str, one: Reason, job: JobView) -> str:
    given_at_s = _given_at_s(one, job)
    if given_at_s is None:
        return text
    for name, (relative, absolute) in _INSTANTS.items():
        if name in one.numbers:
            after_s = one.numbers[name]
            instant = words.time_text(given_at_s + after_s)
            text = text.replace(relative.format(f"{after_s:.0f}"), absolute.format(instant), 1)
    return text


def _given_at_s(one: Reason, job: JobView) -> float | None:
    """Return when a reason was given, as far as that can be told: by an instant that it tells of, or by the decision.

    A job that has GPUs is shown with words of later decisions than the one that it was last changed by.
    """
    if one.code in ABOUT_THE_DEADLINE and job.deadline_at_s is not None and "left_s" in one.numbers:
        return job.deadline_at_s - one.numbers["left_s"]
    if one.code is ReasonCode.BACKOFF and "wait_s" in one.numbers:
        return job.not_before_s - one.numbers["wait_s"]
    return job.evaluated_at_s if job.state is JobState.QUEUED else None
