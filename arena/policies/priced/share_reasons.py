"""What shares have to do with what a job has, in words with numbers. Pure: no I/O, no clock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from arena.domain.job import JobId
from arena.domain.reason import Reason, ReasonCode, reason
from arena.domain.tenants import Guarantee
from arena.policies.base import Choice, Snapshot
from arena.policies.priced.allocation import Answer
from arena.policies.priced.columns import Columns
from arena.policies.priced.market import Market, Row
from arena.policies.priced.seating import Seats

BORROWERS_NAMED_MAX = 5
OTHERS_NAMED_MAX = 8
_SLACK = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """What a decision does about shares.

    Args:
        market: With the rows of shares, and what is claimed.
        given_to: Tenants that claim something and are given devices, by device, with its type.
        borrowers: Projects that have more than they are guaranteed.
        claimed: GPUs that each tenant claims, by type.
    """

    snapshot: Snapshot
    market: Market
    columns: Columns
    answer: Answer
    given_to: Mapping[str, tuple[str, str]]
    borrowers: frozenset[str]
    claimed: Mapping[tuple[str, str], float]

    def reason(self, at: int) -> Reason | None:
        """Return why shares take something from a contender, or keep it from starting; None where they do not."""
        market, keeping, column = self.market, int(self.market.keeping[at]), int(self.answer.chosen[at])
        if not self.snapshot.tenants:
            return None
        if keeping < 0:
            return _held_back(self.snapshot, market, self.answer, at) if column < 0 else None
        if column == keeping:
            return None
        lost = float(market.gpu_count[keeping] - (market.gpu_count[column] if column >= 0 else 0.0))
        if lost <= 0.0:
            return None
        found = self._taken_back(at)
        if found is not None:
            return reason(ReasonCode.RECLAIMED, count=lost, **found)
        row = _row_against(market, self.columns, self.answer, (keeping, column))
        return None if row is None else reason(ReasonCode.RECLAIMED, count=lost, **_facts(self.snapshot, market, row))

    def _taken_back(self, at: int) -> dict[str, float | str] | None:
        """Return whose share the GPUs were that a borrower gives up, None where no tenant has them that claims some."""
        contender = self.market.contenders[at]
        project = self.snapshot.jobs[contender.job_id].spec.project
        if contender.holding is None or project not in self.borrowers:
            return None
        devices = [device for share in contender.holding.allocation.shares for device in share.device_ids]
        takers = Counter(self.given_to[device] for device in devices if device in self.given_to)
        taken = sorted((-count, kind) for (name, kind), count in takers.items() if name != project)
        if not taken:
            return None
        kind = taken[0][1]
        names = sorted({name for name, other in takers if other == kind and name != project})
        return {
            "project": ", ".join(names),
            "gpu_type": kind,
            "claimed": sum(self.claimed.get((name, kind), 0.0) for name in names),
            "guaranteed": float(sum(self.snapshot.tenants[name].gpu_count for name in names)),
        }


def shares_of(snapshot: Snapshot, market: Market, columns: Columns, settled: tuple[Answer, Seats]) -> Shares:
    """Return what a decision does about shares.

    Args:
        market: With the rows of shares, and what is claimed.
        settled: What was chosen, with its devices.
    """
    answer, seats = settled
    named = market.contenders if market.claims else ()
    project = [snapshot.jobs[one.job_id].spec.project for one in named]
    given_to: dict[str, tuple[str, str]] = {}
    claimed: Counter[tuple[str, str]] = Counter()
    plain = [(at, row.pool[0]) for at, row in enumerate(market.rows) if _is_plain(row)]
    for column in sorted(market.claims):
        at = int(market.job[column])
        for row, kind in plain:
            claimed[project[at], kind] += market.usage[column, row]
        for share in seats.allocations[at].shares if at in seats.allocations else ():
            kind = snapshot.capacity.devices[share.node_id].pool[0]
            given_to.update(dict.fromkeys(share.device_ids, (project[at], kind)))
    return Shares(
        snapshot=snapshot,
        market=market,
        columns=columns,
        answer=answer,
        given_to=given_to,
        borrowers=_borrowing(snapshot) if snapshot.tenants else frozenset(),
        claimed=claimed,
    )


def with_share_causes(shares: Shares, choices: Mapping[JobId, Choice | None]) -> dict[JobId, Choice | None]:
    """Return the choices, those that shares brought about with that as their cause."""
    told = dict(choices)
    if not shares.snapshot.tenants:
        return told
    for at, contender in enumerate(shares.market.contenders):
        choice = choices.get(contender.job_id)
        found = None if choice is None else shares.reason(at)
        if choice is not None and found is not None:
            told[contender.job_id] = replace(choice, cause=found)
    return told


def _borrowing(snapshot: Snapshot) -> frozenset[str]:
    """Return the projects that have more than they are guaranteed, in all or of a type."""
    used: dict[str, Counter[str]] = {}
    for job_id, holding in snapshot.holding.items():
        own = used.setdefault(snapshot.jobs[job_id].spec.project, Counter())
        for part in holding.group.parts:
            own[part.gpu_type] += part.gpu_count
    return frozenset(name for name, own in used.items() if _is_beyond(snapshot.tenants.get(name), own))


def _is_beyond(share: Guarantee | None, used: Counter[str]) -> bool:
    if share is None or share.is_of_any_type:
        return used.total() > (0 if share is None else share.gpu_count)
    return any(count > share.of(kind) for kind, count in used.items())


def _is_plain(row: Row) -> bool:
    """Tell whether a row is of all GPUs of a pool."""
    return row.chunk == 1 and not row.kept_for and not row.is_lasting


def share_use(snapshot: Snapshot, job_id: JobId) -> tuple[Reason, ...]:
    """Return what a job's project is guaranteed, what its jobs have, and who has what it does not use."""
    if not snapshot.tenants:
        return ()
    used: Counter[str] = Counter()
    for other, holding in snapshot.holding.items():
        used[snapshot.jobs[other].spec.project] += holding.group.gpu_count
    project = snapshot.jobs[job_id].spec.project
    share = snapshot.tenants.get(project)
    guaranteed = 0 if share is None else share.gpu_count
    names = _borrowers(snapshot, used, project)
    shown = ", ".join(names[:BORROWERS_NAMED_MAX]) or "nobody"
    more = f" and {len(names) - BORROWERS_NAMED_MAX} more" if len(names) > BORROWERS_NAMED_MAX else ""
    return (
        reason(
            ReasonCode.SHARE,
            project=project,
            share="no GPUs" if share is None else str(share),
            guaranteed=guaranteed,
            used=used[project],
            others=_others(snapshot, used, project),
            borrowers=shown + more,
        ),
    )


def _others(snapshot: Snapshot, used: Mapping[str, int], project: str) -> str:
    """Return what the projects with shares use of them, then all other projects together."""
    shares = [(name, share) for name, share in sorted(snapshot.tenants.items()) if name != project]
    told = [f"{name} {used.get(name, 0)} of {share.gpu_count}" for name, share in shares[:OTHERS_NAMED_MAX]]
    told += [f"and {len(shares) - OTHERS_NAMED_MAX} projects more"] if len(shares) > OTHERS_NAMED_MAX else []
    rest = sum(count for name, count in used.items() if name != project and name not in snapshot.tenants)
    return ", ".join([*told, *([f"projects without a share {rest}"] if rest else [])]) or "none"


def _borrowers(snapshot: Snapshot, used: Mapping[str, int], project: str) -> list[str]:
    """Return the jobs of other projects that have more than they are guaranteed, each with its GPUs."""
    found = []
    for other, holding in sorted(snapshot.holding.items()):
        owner = snapshot.jobs[other].spec.project
        share = snapshot.tenants.get(owner)
        if owner != project and used[owner] > (0 if share is None else share.gpu_count):
            found.append(f"{other} ({holding.group}, {owner})")
    return found


def _held_back(snapshot: Snapshot, market: Market, answer: Answer, at: int) -> Reason | None:
    column = int(answer.priced.top[at])
    usage, prices = market.usage[column], answer.priced.prices
    counts = (usage > 0) & ((prices > 0) | (usage > market.supply + _SLACK))
    share = [row for row in np.flatnonzero(counts).tolist() if market.rows[row].kept_for or market.rows[row].is_lasting]
    part = float((usage * prices)[share].sum())
    is_shut_out = any(usage[row] > market.supply[row] + _SLACK for row in share)
    if not share or (float(answer.priced.reduced[column]) + part <= 0.0 and not is_shut_out):
        return None
    row = min(share, key=lambda row: (not market.rows[row].is_lasting, market.supply[row], row))
    project = snapshot.jobs[market.contenders[at].job_id].spec.project
    if market.rows[row].is_lasting:
        within = f"within the share of project {project} or " if project in snapshot.tenants else ""
        left = max(float(market.supply[row]), 0.0)
        return reason(ReasonCode.BEYOND_SHARE, group=str(market.group(column)), within=within, left=left)
    return reason(ReasonCode.KEPT_FOR_SHARE, group=str(market.group(column)), **_facts(snapshot, market, row))


def _row_against(market: Market, columns: Columns, answer: Answer, change: tuple[int, int]) -> int | None:
    """Return the row of shares that costs most of those that keep a job from what it has.

    Args:
        change: The column of what it has, and that of what it gets instead.
    """
    keeping, column = change
    usage, prices, reduced = market.usage[keeping], answer.priced.prices, answer.priced.reduced
    must_go = columns.value[keeping] < 0.0
    rows = [at for at, row in enumerate(market.rows) if row.kept_for and not row.is_lasting and usage[at] > 0]
    rows = [at for at in rows if must_go or prices[at] > 0]
    without = float(reduced[keeping] + (usage * prices)[rows].sum())
    instead = 0.0 if column < 0 else float(reduced[column] + (market.usage[column] * prices)[rows].sum())
    if not rows or (without <= instead and not must_go):
        return None
    return min(rows, key=lambda at: (-usage[at] * prices[at], market.rows[at].chunk, at))


def _facts(snapshot: Snapshot, market: Market, row: int) -> dict[str, float | str]:
    """Return whose share a row keeps, how much of it they claim there, and what they are guaranteed."""
    kept = market.rows[row]
    return {
        "project": ", ".join(kept.kept_for),
        "gpu_type": kept.pool[0],
        "claimed": kept.kept_count,
        "guaranteed": float(sum(snapshot.tenants[name].gpu_count for name in kept.kept_for)),
    }
