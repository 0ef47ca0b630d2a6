"""How fast jobs run against their estimates, from those that run or ran to those that wait. Pure: no I/O, no clock.

What is expected of a job on GPUs of some type is what those of its work have measured there that ended of late; where
none has, what those measure that run now with its grid; else what its work has measured on other types; else what all
that run measure. Were it believed to be as estimated instead, whoever runs would look worse than whoever waits, and
equal jobs would displace each other for ever.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from arena.domain.allocation import GpuGroup
from arena.domain.job import JobId
from arena.domain.paces import TRUST_S_MIN, PaceHistory, estimator, types_name, work_name
from arena.policies.base import Snapshot
from arena.policies.priced.columns import Floats, Ints

if TYPE_CHECKING:
    from arena.policies.priced.market import Market
    from arena.policies.priced.roster import Numbered, Work

PACE_TOLERANCE = 0.05
PACE_MAX = 10.0
"""Measured step times count where they are off by more than the first and by less than the second factor."""

TRUST_RESTARTS = 10.0
"""A measurement over so many restarts, a minute at least, counts as much as what was expected before it."""

_LOG_MAX = math.log(PACE_MAX)
_LOG_TOLERANCE = math.log1p(PACE_TOLERANCE)


def at_their_paces(market: Market, snapshot: Snapshot, works: Numbered[Work]) -> Market:
    """Return a market with the speeds that are expected, where these are not what the grids say.

    Args:
        works: What contenders do, by the numbers that facts have of it.
    """
    known = _remembered(snapshot.paces, works, market)
    kept = known.kind[market.keeping]
    pace = _paces(market.facts, known.log_pace, kept, now_s=snapshot.now_s, restart_s=snapshot.restart_s)
    if (pace == 1.0).all():
        return market
    return replace(market, speed=market.speed * pace[market.job, known.kind], has_typed_paces=pace.shape[1] > 1)


def remembered_paces(snapshot: Snapshot, job_id: JobId, groups: Sequence[GpuGroup]) -> Floats:
    """Return by which factors jobs like one that have ended were faster than its grid says, 1 where none has.

    For jobs that do not compete, which are few.

    Args:
        groups: On which it could be; shape of what is returned.
    """
    job, grid = snapshot.jobs[job_id], snapshot.grids.get(job_id)
    if grid is None or not snapshot.paces.kinds:
        return np.ones(len(groups))
    ended = snapshot.paces.of_work(estimator(grid), work_name(job.spec, job.user))
    if not ended:
        return np.ones(len(groups))
    known = {one.kind.gpu_types: _bounded(one.log_pace) for one in ended}
    usual = float(np.median(list(known.values())))
    return _factors(np.array([known.get(types_name(group), usual) for group in groups]))


def pace_on(market: Market, column: int) -> float:
    """Return with how many times the estimated speed a column is counted."""
    contender, entry = market.contenders[int(market.job[column])], int(market.entry[column])
    estimated = contender.kept_speed if entry < 0 else float(contender.table.speed[entry])
    return float(market.speed[column]) / estimated


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Remembered:
    """What those have measured that ended.

    Args:
        log_pace: Of the work of each contender on each kind of group, nan where none was; shape (jobs, kinds). The
            kinds are the sets of GPU types that there are, or one for all where that makes no difference.
        kind: Of each column; shape (columns,).
    """

    log_pace: Floats
    kind: Ints


def _remembered(history: PaceHistory, works: Numbered[Work], market: Market) -> _Remembered:
    """Return what is remembered of a market's contenders."""
    known = [(at, one) for one in history.kinds.values() if (at := works.number.get(one.kind[:2])) is not None]
    work = market.facts["work"]
    has_any = np.zeros(max(len(works), 1), dtype=bool)
    has_any[[at for at, _ in known]] = True
    if not has_any[work].any():
        return _Remembered(log_pace=np.full((len(work), 1), np.nan), kind=np.zeros(len(market.job), dtype=np.intp))
    names, kind = _kinds(market)
    log_pace = np.full((len(works), len(names)), np.nan)
    for at, one in known:
        if one.kind.gpu_types in names:
            log_pace[at, names.index(one.kind.gpu_types)] = _bounded(one.log_pace)
    return _Remembered(log_pace=log_pace[work], kind=kind)


def _bounded(log_pace: float) -> float:
    return min(max(log_pace, -_LOG_MAX), _LOG_MAX)


def _kinds(market: Market) -> tuple[Sequence[str], Ints]:
    """Return the sets of GPU types that columns are of, by name as in ``types_name``, and which one each is of."""
    types = sorted({row.pool[0] for row in market.rows})
    if len(types) == 1:
        return types, np.zeros(len(market.job), dtype=np.intp)
    bits = np.zeros(len(market.job), dtype=np.intp)
    for place, gpu_type in enumerate(types):
        own = [at for at, row in enumerate(market.rows) if row.pool[0] == gpu_type]
        bits |= (market.usage[:, own] > 0.0).any(axis=1).astype(np.intp) << place
    found, kind = np.unique(bits, return_inverse=True)
    return ["+".join(one for place, one in enumerate(types) if bit >> place & 1) for bit in found.tolist()], kind


def _paces(facts: NDArray[Any], known: Floats, kept: Ints, *, now_s: float, restart_s: float) -> Floats:
    """Return by which factor each job is faster than its grid says, on groups of each kind; shape (jobs, kinds).

    Estimates are wrong alike for like jobs: a job that is not measured is off by what is expected (see the module). A
    measurement starts from the same expectation and is trusted with time, since the first steps are slow; by what it
    differs from what was expected there, the job differs everywhere.

    Args:
        facts: Of the contenders, see ``roster``.
        known: See ``_Remembered``.
        kept: Kind of what each has.
    """
    measured = np.flatnonzero(~np.isnan(facts["log_pace"]))
    own = np.clip(facts["log_pace"][measured], -_LOG_MAX, _LOG_MAX)
    if max(np.abs(own).max(initial=0.0), np.nanmax(np.abs(known), initial=0.0)) < _LOG_TOLERANCE:
        return np.ones(known.shape)  # whatever is between them
    log_paces = np.where(np.isnan(known), _elsewhere(facts, known, measured, own)[:, None], known)
    ran_s = np.maximum(now_s - facts["since_s"][measured] - restart_s, 0.0)
    trust = ran_s / (ran_s + max(TRUST_RESTARTS * restart_s, TRUST_S_MIN))
    surprise = trust * (own - log_paces[measured, kept[measured]])
    log_paces[measured] += surprise[:, None]
    return _factors(log_paces)


def _elsewhere(facts: NDArray[Any], known: Floats, measured: Ints, own: Floats) -> Floats:
    """Return what is expected of each job where nothing is remembered of its work."""
    expected = np.full(len(facts), float(np.median(own)) if len(own) else 0.0)
    on_others = np.flatnonzero(~np.isnan(known).all(axis=1))
    if len(on_others):
        expected[on_others] = np.nanmedian(known[on_others], axis=1)
    if len(own):
        grids, middle = _medians(facts["table"][measured], own)
        of_grid = np.full(int(facts["table"].max()) + 1, np.nan)
        of_grid[grids] = middle
        alike = of_grid[facts["table"]]
        expected = np.where(np.isnan(alike), expected, alike)
    return expected


def _medians(group: Ints, values: Floats) -> tuple[Ints, Floats]:
    """Return the groups that there are, and the median of the values of each."""
    order = np.lexsort((values, group))
    found, starts, counts = np.unique(group[order], return_index=True, return_counts=True)
    ordered = values[order]
    return found, (ordered[starts + (counts - 1) // 2] + ordered[starts + counts // 2]) / 2.0


def _factors(log_paces: Floats) -> Floats:
    """Return factors from their logarithms, 1 where they are small."""
    factors = np.ones(log_paces.shape)
    counts = np.abs(log_paces) >= _LOG_TOLERANCE
    values, which = np.unique(log_paces[counts], return_inverse=True)
    factors[counts] = np.array([math.exp(one) for one in values.tolist()])[which]
    return factors
