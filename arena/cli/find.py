"""Jobs found by what people type: an id, the beginning of one, or a name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from arena.cli.quoting import quoted
from arena.errors import NotFoundError, UserError

if TYPE_CHECKING:
    from arena.client import ArenaClient, JobDetail
    from arena.rpc.views import JobView

_SHOWN_MAX = 5


def find_job(client: ArenaClient, text: str, *, explain: bool = False) -> JobDetail:
    """Return the job with this id; or else the only one whose id begins so; or else the only one of this name.

    With ``explain`` the policy is asked about it as well.

    Raises:
        NotFoundError: There is none.
        UserError: There are several.
    """
    try:
        return client.job(text, explain=explain)
    except NotFoundError as error:
        missing = error
    jobs = tuple(client.jobs())
    by_prefix = [job for job in jobs if text and job.job_id.startswith(text)]
    by_name = [job for job in jobs if job.name == text]
    # A name is often used again: the jobs that are still alive come first.
    alive = [job for job in by_name if not job.state.is_terminal]
    for found in (by_prefix, alive, by_name):
        if len(found) == 1:
            return client.job(found[0].job_id, explain=explain)
        if found:
            raise _ambiguous(text, found)
    raise missing


def find_job_id(client: ArenaClient, text: str) -> str:
    """Return the id of the job that a text stands for (see ``find_job``)."""
    return find_job(client, text).job.job_id


def _ambiguous(text: str, found: list[JobView]) -> UserError:
    names = ", ".join(quoted(job.job_id) for job in found[:_SHOWN_MAX])
    more = f" and {len(found) - _SHOWN_MAX} more" if len(found) > _SHOWN_MAX else ""
    return UserError(f"{text!r} stands for {len(found)} jobs", why=f"{names}{more}", fix="give more of the id")
