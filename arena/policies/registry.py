"""Policies by name. Pure: no I/O, no clock."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping

from arena.errors import SpecError
from arena.policies.arena_greedy import ArenaGreedy
from arena.policies.base import Policy
from arena.policies.easy import EasyBackfill
from arena.policies.elastic import Elastic
from arena.policies.elastic_rules import ElasticRules
from arena.policies.fcfs import FirstComeFirstServed
from arena.policies.srtf import ShortestRemainingTimeFirst
from arena.policies.tiresias import Tiresias


def _elastic(**options: float | None) -> Policy:
    return Elastic(rules=ElasticRules(**options))  # type: ignore[arg-type]  # names are checked by make_policy


_MAKERS: Mapping[str, tuple[Callable[..., Policy], tuple[str, ...]]] = {
    "arena-greedy": (ArenaGreedy, ()),
    "elastic": (_elastic, tuple(inspect.signature(ElasticRules).parameters)),
    "fcfs": (FirstComeFirstServed, ()),
    "fcfs-easy": (EasyBackfill, ()),
    "srtf": (ShortestRemainingTimeFirst, ()),
    "tiresias": (Tiresias, ("first_gpu_s", "second_gpu_s")),
}


def policy_names() -> tuple[str, ...]:
    """Return the names that ``make_policy`` knows, sorted."""
    return tuple(sorted(_MAKERS))


def make_policy(name: str, options: Mapping[str, float | None] | None = None) -> Policy:
    """Return a policy by its name.

    Raises:
        SpecError: The name or an option is unknown, or an option's value is out of range.
    """
    if name not in _MAKERS:
        raise SpecError(f"unknown policy {name!r}", fix=f"use one of {', '.join(policy_names())}")
    make, known = _MAKERS[name]
    unknown = sorted(set(options or {}) - set(known))
    if unknown:
        allowed = f"use {', '.join(known)}" if known else "it takes none"
        raise SpecError(f"policy {name!r} has no option {unknown[0]!r}", fix=allowed)
    return make(**(options or {}))
