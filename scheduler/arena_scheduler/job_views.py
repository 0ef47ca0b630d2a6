"""What people are shown of a job beyond its record: what it has had up to now, what its reasons mean. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from arena.domain.grid import Grid
from arena.domain.reason import Reason, ReasonCode, reason
from arena.domain.records import AttemptRecord
from arena.policies.registry import gives_what_is_asked
from arena.rpc.views import JobView


def with_live_time(view: JobView, attempt: AttemptRecord | None, now_s: float) -> JobView:
    """Return a job with the run time and the GPU time of its live attempt, which its record counts at its end."""
    if attempt is None or not attempt.is_live:
        return view
    ran_s = 0.0 if attempt.first_step_at_s is None else max(now_s - attempt.first_step_at_s, 0.0)
    held_s = max(now_s - attempt.launched_at_s, 0.0)
    return replace(
        view,
        run_time_s=view.run_time_s + ran_s,
        gpu_seconds=view.gpu_seconds + held_s * attempt.allocation.gpu_count,
    )


def as_asked(reasons: Iterable[Reason], policy: str, grid: Grid | None) -> tuple[Reason, ...]:
    """Return reasons that do not say that a job needs what only its policy wants for it.

    Args:
        policy: Its name; one that gives a job what it asks for, and nothing less.
        grid: The job's, None where it is not known.
    """
    least = grid.cells[0].group.gpu_count if grid is not None and grid.cells else None
    if least is None or not gives_what_is_asked(policy):
        return tuple(reasons)
    return tuple(_as_asked(one, policy, least) for one in reasons)


def _as_asked(one: Reason, policy: str, least: int) -> Reason:
    if one.code is not ReasonCode.INSUFFICIENT_GPUS or one.numbers.get("needed", 0.0) <= least:
        return one
    facts: dict[str, float | str] = {**one.names, **one.numbers}
    return reason(ReasonCode.ASKED_GPUS, policy=policy, least=least, **facts)
