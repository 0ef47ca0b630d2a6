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
    facts, ended = market.facts, _ended(market, snapshot.paces, works)
    own = np.clip(facts["log_pace"], -_LOG_MAX, _LOG_MAX)  # nan where it is not measured
    known = np.array([log_pace for _, _, log_pace in ended])
    if max(np.nanmax(np.abs(own), initial=0.0), np.abs(known).max(initial=0.0)) < _LOG_TOLERANCE:
        return market  # small deviations count beside larger ones only
    names, kind = _kinds(market) if ended else (("",), np.zeros(len(market.job), dtype=np.intp))
    remembered = _Remembered.of(ended, len(works), names)
    pace = _paces(market, own, remembered, kind[market.keeping], snapshot)
    return replace(market, speed=market.speed * pace[market.job, kind], has_typed_paces=len(names) > 1)


def remembered_paces(snapshot: Snapshot, job_id: JobId, groups: Sequence[GpuGroup]) -> Floats:
    """Return by which factors jobs like one that have ended were faster than its grid says, 1 where none has.

    For jobs that do not compete, which are few.

    Args:
        groups: On which it could be; shape of what is returned.
    """
    job, grid = snapshot.jobs[job_id], snapshot.grids.get(job_id)
    if grid is None or not snapshot.paces.kinds:
        return np.ones(len(groups))
    return paces_of_work(snapshot.paces, estimator(grid), work_name(job.spec, job.user), groups)


def paces_of_work(paces: PaceHistory, source: str, work: str, groups: Sequence[GpuGroup]) -> Floats:
    """Return by which factors a work was faster than its estimates, on each of some groups, 1 where it never ended.

    Args:
        source, work: As in ``PaceKind``.
    """
    ended = paces.of_work(source, work)
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


_Ended = tuple[int, str, float]
"""Number of a work, types of GPUs, and the logarithm of its pace there."""


def _ended(market: Market, history: PaceHistory, works: Numbered[Work]) -> list[_Ended]:
    """Return what is remembered of what contenders do."""
    is_done = np.zeros(len(works), dtype=bool)
    is_done[market.facts["work"]] = True
    found = ((works.number.get(one.kind[:2]), one) for one in history.kinds.values())
    return [(at, one.kind.gpu_types, _bounded(one.log_pace)) for at, one in found if at is not None and is_done[at]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Remembered:
    """What those have measured that ended, by work.

    Args:
        log_pace: On each kind of group, nan where it was not measured; shape (works, kinds).
        usual: The median over the kinds on which it was measured, nan where it was on none; shape (works,).
    """

    log_pace: Floats
    usual: Floats

    @classmethod
    def of(cls, ended: Sequence[_Ended], work_count: int, names: Sequence[str]) -> _Remembered:
        """Return it for kinds of groups by their names."""
        log_pace, usual = np.full((work_count, len(names)), np.nan), np.full(work_count, np.nan)
        by_work: dict[int, list[float]] = {}
        place = {name: at for at, name in enumerate(names)}
        for work, gpu_types, one in ended:
            by_work.setdefault(work, []).append(one)
            if gpu_types in place:
                log_pace[work, place[gpu_types]] = one
        for work, some in by_work.items():
            usual[work] = float(np.median(some))
        return cls(log_pace=log_pace, usual=usual)


def _bounded(log_pace: float) -> float:
    return min(max(log_pace, -_LOG_MAX), _LOG_MAX)


def _kinds(market: Market) -> tuple[Sequence[str], Ints]:
    """Return the sets of GPU types that columns are of, by name as in ``types_name``, and which one each is of."""
    kept = market.keeping[market.keeping >= 0]
    # What a job has on a node that may not be used at present takes nothing of any row.
    unseen = {at: _types_held(market, int(kept[at])) for at in np.flatnonzero(~market.usage[kept].any(axis=1)).tolist()}
    types = sorted({row.pool[0] for row in market.rows}.union(*unseen.values()))
    if len(types) == 1:
        return types, np.zeros(len(market.job), dtype=np.intp)
    # Found on the tables, of which there are few, and on what jobs have.
    _, first, own = np.unique(market.facts["table"], return_index=True, return_inverse=True)
    tables = [market.contenders[at].table for at in first.tolist()]
    usage = np.concatenate([*(one.usage for one in tables), market.usage[kept]])
    has = np.zeros((len(usage), len(types)), dtype=bool)
    for place, gpu_type in enumerate(types):
        of_type = [at for at, row in enumerate(market.rows) if row.pool[0] == gpu_type]
        has[:, place] = (usage[:, of_type] > 0.0).any(axis=1)
    for row, held in unseen.items():
        has[len(usage) - len(kept) + row] = [name in held for name in types]
    _, example, kind = np.unique(np.packbits(has, axis=1), axis=0, return_index=True, return_inverse=True)
    sizes = np.array([len(one.speed) for one in tables], dtype=np.intp)
    at = (np.cumsum(sizes) - sizes)[own][market.job] + market.entry
    at[kept] = sizes.sum() + np.arange(len(kept))
    names = ["+".join(name for name, is_there in zip(types, row, strict=True) if is_there) for row in has[example]]
    return names, kind.reshape(-1)[at]


def _types_held(market: Market, column: int) -> frozenset[str]:
    """Return the GPU types of what a job has."""
    holding = market.contenders[int(market.job[column])].holding
    assert holding is not None
    return frozenset(part.gpu_type for part in holding.group.parts)


def _paces(market: Market, own: Floats, remembered: _Remembered, kept: Ints, snapshot: Snapshot) -> Floats:
    """Return by which factor each job is faster than its grid says, on groups of each kind; shape (jobs, kinds).

    Estimates are wrong alike for like jobs: a job that is not measured is off by what is expected (see the module). A
    measurement starts from the same expectation and is trusted with time, since the first steps are slow; by what it
    differs from what was expected there, the job differs everywhere.

    Args:
        own: What each measures; nan where it does not.
        kept: Kind of what each has.
    """
    facts, restart_s = market.facts, snapshot.restart_s
    measured = np.flatnonzero(~np.isnan(own))
    known = remembered.log_pace[facts["work"]]
    log_paces = np.where(np.isnan(known), _elsewhere(facts, measured, own[measured], remembered)[:, None], known)
    ran_s = np.maximum(snapshot.now_s - facts["since_s"][measured] - restart_s, 0.0)
    trust = ran_s / (ran_s + max(TRUST_RESTARTS * restart_s, TRUST_S_MIN))
    log_paces[measured] += (trust * (own[measured] - log_paces[measured, kept[measured]]))[:, None]
    return _factors(log_paces)


def _elsewhere(facts: NDArray[Any], measured: Ints, own: Floats, remembered: _Remembered) -> Floats:
    """Return what is expected of each job where it is not remembered of its work on those GPUs."""
    usual = remembered.usual[facts["work"]]
    expected = np.where(np.isnan(usual), float(np.median(own)) if len(own) else 0.0, usual)
    if not len(own):
        return expected
    grids, middle = _medians(facts["table"][measured], own)
    of_grid = np.full(int(facts["table"].max()) + 1, np.nan)
    of_grid[grids] = middle
    alike = of_grid[facts["table"]]
    return np.where(np.isnan(alike), expected, alike)


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
