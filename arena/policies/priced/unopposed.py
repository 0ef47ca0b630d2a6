"""Decisions where nobody is in anybody's way: all that waits starts, all that runs goes on. Pure: no I/O, no clock.

Where every job could be given one thing only, and all of that is free or its own, giving everybody that is the best
choice at any values: each is worth more than nothing. So no value needs to be known. That is the usual decision on a
cluster of scripts that is not full, and takes a hundredth of the time of one that weighs thousands of jobs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from arena.domain.job import JobId, JobKind, JobSpec
from arena.domain.reason import Reason
from arena.domain.records import JobRecord
from arena.policies.base import Choice, Decision, Snapshot
from arena.policies.choose import PLANNING, choice_of
from arena.policies.priced.market import Market, Tables, waiting_market
from arena.policies.priced.moves import rested_among_s
from arena.policies.priced.seating import Seats, seated
from arena.policies.priced.shortages import no_cell
from arena.policies.priced.urgency import late_at_s


def unopposed(snapshot: Snapshot, tables: Tables, wait_max_s: float) -> Decision | None:
    """Return the decision where nothing has to be weighed; None where something may have to be.

    Its numbers leave out what all is worth, which nobody asked for; the gap is 0 whatever that is.

    Args:
        wait_max_s: See ``urgency``: who has waited too long comes before all others.
    """
    market = waiting_market(snapshot, tables)
    if len(market.job) != len(market.contenders) or (market.usage.sum(axis=0) > market.supply).any():
        return None
    running = [snapshot.jobs[job_id] for job_id in snapshot.holding]
    waiting = [snapshot.jobs[job_id] for job_id in snapshot.waiting]
    if any(_is_shapeable(spec) or _has_claims(snapshot, spec) for spec in _specs(running)):
        return None
    if any(_has_claims(snapshot, spec) or (snapshot.tenants and not spec.preemptible) for spec in _specs(waiting)):
        return None
    late_s = late_at_s(snapshot, market, wait_max_s).values()
    if any(at_s <= snapshot.now_s for at_s in late_s):
        return None
    count = len(market.contenders)
    seats = seated(snapshot, market, np.arange(count), np.zeros(count))
    if seats.cuts:
        return None
    choices = _choices(market, seats)
    reasons = {**_kept_waiting(snapshot, market), **{job_id: (choice.cause,) for job_id, choice in choices.items()}}
    rested_s = rested_among_s(running, snapshot.now_s)
    return Decision(
        choices=choices,
        reasons=dict(sorted(reasons.items())),
        look_again_at_s=min([*late_s, *([] if rested_s is None else [rested_s])], default=None),
        numbers={"gap": 0.0, **{f"price {row}": 0.0 for row in market.rows}},
    )


def _specs(jobs: Sequence[JobRecord]) -> Iterable[JobSpec]:
    """Return what jobs are, those with one specification once."""
    return {id(job.spec): job.spec for job in jobs}.values()


def _has_claims(snapshot: Snapshot, spec: JobSpec) -> bool:
    """Tell whether a job may come before others, or not be given what there is: for a deadline, a share, a budget."""
    if spec.deadline_s is not None or (spec.budget_usd is not None and snapshot.usd_per_hour):
        return True
    return bool(snapshot.tenants) and spec.project in snapshot.tenants


def _is_shapeable(spec: JobSpec) -> bool:
    """Tell whether a job that runs could be given something else."""
    return spec.kind is JobKind.MALLEABLE and spec.preemptible


def _choices(market: Market, seats: Seats) -> dict[JobId, Choice]:
    chosen = {one.job_id: choice_of(market.cell(at), seats.allocations[at]) for at, one in enumerate(market.contenders)}
    return dict(sorted(chosen.items()))


def _kept_waiting(snapshot: Snapshot, market: Market) -> dict[JobId, tuple[Reason, ...]]:
    """Return why those wait that could be given nothing at all."""
    competing = {one.job_id for one in market.contenders}
    rest = [job_id for job_id in snapshot.waiting if job_id not in competing]
    return {
        job_id: no_cell(snapshot, snapshot.grids[job_id]) if job_id in snapshot.grids else PLANNING for job_id in rest
    }
