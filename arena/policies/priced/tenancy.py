"""Which jobs are of which tenant, and what tenants are guaranteed and could still be given. Pure: no I/O, no clock."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from arena.domain.tenants import ANY_TYPE
from arena.policies.base import Snapshot
from arena.policies.priced.columns import NONE, Floats, Ints
from arena.policies.priced.market import Market, Row


@dataclass(frozen=True, slots=True, kw_only=True)
class Lasting:
    """GPUs for waiting jobs that may not be stopped.

    Args:
        rows: All of each type, then of all types.
        supply: What there is for them of each; shape (kinds,).
        usage: What each column takes; shape (columns, kinds).
        claims: What is only for jobs of one tenant; shape (tenants, kinds).
    """

    rows: tuple[Row, ...]
    supply: Floats
    usage: Floats
    claims: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenancy:
    """Who belongs to which tenant.

    Args:
        names: Tenants.
        tenant: Of each column, ``NONE`` for those of others; shape (columns,).
        kinds: GPU types, then ``ANY_TYPE``.
        by_kind: GPUs that each column takes; shape (columns, kinds).
        guaranteed: Shape (tenants, kinds); under ``ANY_TYPE`` all of a tenant's.
        limits: What of its guarantee each tenant may still be given, infinite where a kind does not limit it.
        lasting: What jobs that may not be stopped start on, None where none of them waits.
    """

    names: tuple[str, ...]
    tenant: Ints
    kinds: tuple[str, ...]
    by_kind: Floats
    guaranteed: Floats
    limits: Floats
    lasting: Lasting | None


def tenancy_of(snapshot: Snapshot, market: Market, closed: Collection[str]) -> Tenancy:
    """Return the tenants of a snapshot.

    Args:
        closed: GPU types on which jobs that may not be stopped start only within their tenant's share.
    """
    names = tuple(sorted(snapshot.tenants))
    index = {name: at for at, name in enumerate(names)}
    project = [snapshot.jobs[one.job_id].spec.project for one in market.contenders]
    tenant = np.array([index.get(name, NONE) for name in project], dtype=np.intp)[market.job]
    kinds = (*sorted(snapshot.shape.gpu_count_by_type), ANY_TYPE)
    by_kind = _by_kind(market, kinds)
    guaranteed = _guaranteed(snapshot, names, kinds)
    held, lasting = _held(snapshot, market, index, kinds)
    limits = np.maximum(guaranteed - held[:-1], 0.0)
    for at, name in enumerate(names):
        is_any = snapshot.tenants[name].is_of_any_type
        limits[at, : -1 if is_any else None] = np.inf if is_any else limits[at]
        limits[at, -1] = limits[at, -1] if is_any else np.inf
    return Tenancy(
        names=names,
        tenant=tenant,
        kinds=kinds,
        by_kind=by_kind,
        guaranteed=guaranteed,
        limits=limits,
        lasting=_lasting(snapshot, market, (kinds, by_kind), (guaranteed, lasting), closed),
    )


def _by_kind(market: Market, kinds: Sequence[str]) -> Floats:
    """Return how many GPUs of each type every column takes, then how many in all; shape (columns, kinds)."""
    of_type = np.array([[row.chunk == 1 and row.pool[0] == kind for kind in kinds[:-1]] for row in market.rows])
    typed = market.usage @ of_type.astype(np.float64)
    return np.column_stack([typed, typed.sum(axis=1)])


def _guaranteed(snapshot: Snapshot, names: Sequence[str], kinds: Sequence[str]) -> Floats:
    """Return what each tenant is guaranteed of each type by name, and in all; shape (tenants, kinds)."""
    shares = [snapshot.tenants[name] for name in names]
    typed = [[0 if one.is_of_any_type else one.of(kind) for kind in kinds[:-1]] for one in shares]
    return np.array([[*counts, one.gpu_count] for counts, one in zip(typed, shares, strict=True)], dtype=np.float64)


def _held(snapshot: Snapshot, market: Market, index: Mapping[str, int], kinds: Sequence[str]) -> tuple[Floats, Floats]:
    """Return what jobs have that may not be touched now, and what of it those have that may never be stopped.

    Shape (tenants + 1, kinds); the last is of jobs of other projects.
    """
    held, lasting = np.zeros((len(index) + 1, len(kinds))), np.zeros((len(index) + 1, len(kinds)))
    place = {kind: at for at, kind in enumerate(kinds)}
    competing = {one.job_id for one in market.contenders}
    for job_id, holding in snapshot.holding.items():
        if job_id in competing:
            continue
        spec = snapshot.jobs[job_id].spec
        at = index.get(spec.project, NONE)
        counts = np.zeros(len(kinds))
        for part in holding.group.parts:
            if part.gpu_type in place:
                counts[place[part.gpu_type]] += part.gpu_count
        counts[-1] = counts[:-1].sum()
        held[at] += counts
        if not spec.preemptible:
            lasting[at] += counts
    return held, lasting


def _lasting(
    snapshot: Snapshot,
    market: Market,
    takes: tuple[Sequence[str], Floats],
    parts: tuple[Floats, Floats],
    closed: Collection[str],
) -> Lasting | None:
    """Return the GPUs for jobs that may not be stopped: what nobody is guaranteed, and each one's share."""
    (kinds, by_kind), (guaranteed, held) = takes, parts
    waits = [one.holding is None and not snapshot.jobs[one.job_id].spec.preemptible for one in market.contenders]
    if not any(waits):
        return None
    total = np.zeros(len(kinds))
    for room in snapshot.capacity.devices.values():
        if room.pool[0] in kinds:
            total[kinds.index(room.pool[0])] += len(room.free)
    total[-1] = total.sum()
    beyond = np.maximum(held[:-1] - guaranteed, 0.0).sum(axis=0) + held[-1]
    nobodys = np.maximum(total - guaranteed.sum(axis=0) - beyond, 0.0)
    nobodys[[at for at, kind in enumerate(kinds) if kind in closed]] = 0.0
    left = np.maximum(guaranteed - held[:-1], 0.0)
    return Lasting(
        rows=tuple(Row((kind, ""), 1, is_lasting=True) for kind in kinds),
        supply=nobodys + left.sum(axis=0),
        usage=np.where(np.array(waits)[market.job][:, None], by_kind, 0.0),
        claims=left,
    )
