"""What shares have to do with what a job has, in words with numbers. Pure: no I/O, no clock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from arena.domain.job import JobId
from arena.domain.reason import Reason, ReasonCode, reason
from arena.policies.base import Choice, Snapshot
from arena.policies.priced.allocation import Answer
from arena.policies.priced.columns import Columns
from arena.policies.priced.market import Market

BORROWERS_NAMED_MAX = 5
OTHERS_NAMED_MAX = 8
_SLACK = 1e-6


def share_reason(snapshot: Snapshot, market: Market, columns: Columns, answer: Answer, at: int) -> Reason | None:
    """Return why shares take something from a contender, or keep it from starting; None where they do not.

    Args:
        market: With the rows of shares.
    """
    keeping, column = int(market.keeping[at]), int(answer.chosen[at])
    if not snapshot.tenants:
        return None
    if keeping < 0:
        return _held_back(snapshot, market, answer, at) if column < 0 else None
    if column == keeping:
        return None
    lost = float(market.gpu_count[keeping] - (market.gpu_count[column] if column >= 0 else 0.0))
    row = _row_against(market, columns, answer, keeping) if lost > 0 else None
    return None if row is None else reason(ReasonCode.RECLAIMED, count=lost, **_facts(snapshot, market, row))


def with_share_causes(
    snapshot: Snapshot, market: Market, columns: Columns, answer: Answer, choices: Mapping[JobId, Choice | None]
) -> dict[JobId, Choice | None]:
    """Return the choices, those that shares brought about with that as their cause."""
    told = dict(choices)
    if not snapshot.tenants:
        return told
    for at, contender in enumerate(market.contenders):
        choice = choices.get(contender.job_id)
        found = None if choice is None else share_reason(snapshot, market, columns, answer, at)
        if choice is not None and found is not None:
            told[contender.job_id] = replace(choice, cause=found)
    return told


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


def _row_against(market: Market, columns: Columns, answer: Answer, keeping: int) -> int | None:
    """Return the row of shares that costs most of those that keep a job from what it has."""
    usage, prices = market.usage[keeping], answer.priced.prices
    must_go = columns.value[keeping] < 0.0
    rows = [at for at, row in enumerate(market.rows) if row.kept_for and not row.is_lasting and usage[at] > 0]
    rows = [at for at in rows if must_go or prices[at] > 0]
    part = float((usage * prices)[rows].sum())
    if not rows or (float(answer.priced.reduced[keeping]) + part <= 0.0 and not must_go):
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
