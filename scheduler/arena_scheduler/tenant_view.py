"""Guaranteed shares as they stand: read from their file, and what became of them. The view is pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from arena.domain.records import JobState
from arena.domain.tenants import ANY_TYPE, Guarantee, Guarantees, too_much
from arena.engine.state import ClusterState
from arena.errors import UserError
from arena.planner.hardware import catalog
from arena.planner.tenantfile import parse_tenants
from arena.policies.registry import keeps_shares
from arena.rpc.views import TenantShare

OTHERS = ""
"""Stands for all projects that are guaranteed nothing."""


def tenants_from_file(path: Path | None, policy: str) -> Guarantees:
    """Return the guaranteed shares of a file, none without one.

    Raises:
        UserError: It cannot be read, is not right, or the policy would not keep to it.
    """
    if path is None:
        return {}
    if not keeps_shares(policy):
        raise UserError(
            f"policy {policy} does not keep guaranteed shares", fix="use --policy arena, or leave out --tenants"
        )
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"the tenants file {path} cannot be read", why=str(error.strerror)) from error
    except UnicodeDecodeError as error:
        raise UserError(
            f"the tenants file {path} is no UTF-8 text", why=f"byte {error.start}: {error.reason}"
        ) from error
    return parse_tenants(text, source=str(path), gpu_types=catalog())


def warnings_of(tenants: Guarantees, state: ClusterState) -> Iterator[str]:
    """Yield what is guaranteed beyond what the nodes have; nothing before the first of them is there."""
    if state.shape.pools:
        for problem in too_much(tenants, state.shape.gpu_count_by_type):
            yield f"guaranteed shares cannot all be kept: {problem}"


def tenant_shares(tenants: Guarantees, state: ClusterState, free_by_type: Mapping[str, int]) -> tuple[TenantShare, ...]:
    """Return the shares with what is used and lent of each, then all other projects together.

    What is idle of a share counts as free first, in the order of the projects' names, and only the rest as lent.

    Args:
        free_by_type: Free GPUs.
    """
    if not tenants:
        return ()
    used, running, waiting = _uses(tenants, state)
    lent = dict(_lent(tenants, used, Counter(free_by_type)))
    names = [*sorted(tenants), OTHERS]
    return tuple(
        TenantShare(
            project=name,
            guaranteed=tenants[name].gpu_count_by_type if name in tenants else {},
            used=used.get(name, Counter()).total(),
            lent=lent.get(name, 0),
            running_jobs=running[name],
            waiting_jobs=waiting[name],
        )
        for name in names
        if name in tenants or running[name] or waiting[name]
    )


def _uses(tenants: Guarantees, state: ClusterState) -> tuple[dict[str, Counter[str]], Counter[str], Counter[str]]:
    """Return the GPUs that jobs have by project and type, and how many jobs run and wait."""
    used: dict[str, Counter[str]] = {}
    running, waiting = Counter[str](), Counter[str]()
    for job in state.jobs.values():
        name = job.spec.project if job.spec.project in tenants else OTHERS
        attempt = state.attempts.get(job.attempt_id) if job.attempt_id else None
        if attempt is None:
            waiting[name] += job.state is not JobState.HELD
            continue
        running[name] += 1
        for part in attempt.group.parts:
            used.setdefault(name, Counter())[part.gpu_type] += part.gpu_count
    return used, running, waiting


def _lent(tenants: Guarantees, used: Mapping[str, Counter[str]], free: Counter[str]) -> Iterator[tuple[str, int]]:
    """Yield how many GPUs of each share others use; those of named types are looked at first."""
    for name in sorted(tenants, key=lambda name: (tenants[name].is_of_any_type, name)):
        others = sum((counts for other, counts in used.items() if other != name), Counter[str]())
        lent = 0
        for kinds, idle in _idle(tenants[name], used.get(name, Counter()), free):
            left = idle
            for kind in kinds:
                covered = min(left, free[kind])
                free[kind] -= covered
                left -= covered
            lent += min(left, sum(others[kind] for kind in kinds))
        yield name, lent


def _idle(share: Guarantee, own: Counter[str], known: Iterable[str]) -> Iterator[tuple[tuple[str, ...], int]]:
    """Yield the types that a part of a share may be of, and how much of it its project does not use."""
    if share.is_of_any_type:
        yield tuple(sorted(known)), max(share.gpu_count_by_type[ANY_TYPE] - own.total(), 0)
        return
    for gpu_type, count in sorted(share.gpu_count_by_type.items()):
        yield (gpu_type,), max(count - own[gpu_type], 0)
