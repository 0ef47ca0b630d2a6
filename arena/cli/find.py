"""Jobs found by what people type: an id, a name, or the beginning of an id."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from arena.cli.quoting import quoted
from arena.errors import NotFoundError, UserError

if TYPE_CHECKING:
    from arena.client import ArenaClient, JobDetail
    from arena.rpc.views import JobView

Tell = Callable[[str], None]

_SHOWN_MAX = 5
_BEGINNING = re.compile(r"[^-]*-[0-9]")
"""What a beginning of an id holds at least: all ids of a scheduler are alike up to there, so that less is a slip."""


def find_job(client: ArenaClient, text: str, *, explain: bool = False, tell: Tell | None = None) -> JobDetail:
    """Return the job with this id; or else the one of this name; or else the only one whose id begins so.

    A beginning reaches at least to the first digit behind the dash of an id: what is shorter, or empty because a
    script's variable was not set, would stand for some job of some user. A name is often used again: of several jobs of
    one name the only one that is not over is meant, and where all are over the newest, unless something is to be done
    to it.

    Args:
        explain: Whether the policy is asked about it as well.
        tell: Told in a sentence which of several jobs of a name it is; None takes none that is over of several.

    Raises:
        NotFoundError: There is none.
        UserError: There are several.
    """
    try:
        return client.job(text, explain=explain)
    except NotFoundError as error:
        missing = error
    jobs = tuple(client.jobs())
    found = _found(jobs, text, takes_ended=tell is not None)
    if found is None:
        raise _too_short(missing, jobs, text)
    if len(found.candidates) > 1:
        raise _ambiguous(text, found.candidates)
    job = found.candidates[0]
    if tell is not None and found.other_count:
        which = "the newest" if job.state.is_terminal else "the only one that is not over"
        tell(f"{quoted(text)} stands for {found.other_count + 1} jobs: this is {which}, {quoted(job.job_id)}")
    return client.job(job.job_id, explain=explain)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """Jobs that a text may stand for.

    Args:
        candidates: One that is meant, or several of which nobody can say.
        other_count: Of its name, and over for longer than the one that is meant.
    """

    candidates: tuple[JobView, ...]
    other_count: int = 0


def _found(jobs: tuple[JobView, ...], text: str, *, takes_ended: bool) -> _Found | None:
    """Return what a text may stand for among jobs, newest first; None where nothing."""
    by_name = tuple(job for job in jobs if job.name == text)
    if not by_name:
        by_beginning = tuple(job for job in jobs if _BEGINNING.match(text) and job.job_id.startswith(text))
        return _Found(candidates=by_beginning) if by_beginning else None
    alive = tuple(job for job in by_name if not job.state.is_terminal)
    if len(alive) == 1 or (takes_ended and not alive):
        meant = alive or by_name[:1]
        return _Found(candidates=meant, other_count=len(by_name) - 1)
    return _Found(candidates=alive or by_name)


def find_job_id(client: ArenaClient, text: str, *, tell: Tell | None = None) -> str:
    """Return the id of the job that a text stands for (see ``find_job``)."""
    return find_job(client, text, tell=tell).job.job_id


def _too_short(missing: NotFoundError, jobs: Sequence[JobView], text: str) -> NotFoundError:
    """Return the error of a text that nothing has; where ids begin so, it says how much of one has to be given."""
    if not text or not any(job.job_id.startswith(text) for job in jobs):
        return missing
    return NotFoundError(
        missing.what,
        why="the beginning of an id stands for a job only from the first digit behind its dash on",
        fix="give more of the id, or the name; `arena jobs` lists both",
        details=missing.details,
    )


def _ambiguous(text: str, found: Sequence[JobView]) -> UserError:
    names = ", ".join(quoted(job.job_id) for job in found[:_SHOWN_MAX])
    more = f" and {len(found) - _SHOWN_MAX} more" if len(found) > _SHOWN_MAX else ""
    return UserError(f"{text!r} stands for {len(found)} jobs", why=f"{names}{more}", fix="give more of the id")
