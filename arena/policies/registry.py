"""Policies by name. Pure: no I/O, no clock."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from arena.errors import SpecError
from arena.policies.arena_greedy import ArenaGreedy, GreedyRules
from arena.policies.base import Policy
from arena.policies.easy import EasyBackfill
from arena.policies.elastic import Elastic
from arena.policies.elastic_rules import ElasticRules
from arena.policies.fcfs import FirstComeFirstServed
from arena.policies.priced.allocation import EXACT, Effort
from arena.policies.priced.changes import ChangeRules
from arena.policies.priced.policy import PricedPolicy
from arena.policies.srtf import ShortestRemainingTimeFirst
from arena.policies.tiresias import Tiresias


def _elastic(**options: float | None) -> Policy:
    return Elastic(rules=ElasticRules(**options))  # type: ignore[arg-type]  # names are checked by make_policy


def _priced(exact: float | None = None, **options: float | None) -> Policy:
    """With ``exact``, every allocation problem is solved to its optimum, however long that takes."""
    if exact not in {None, 0, 1}:
        raise SpecError("exact must be 0 or 1", why=str(exact))
    changes = ChangeRules(**options)  # type: ignore[arg-type]  # names are checked by make_policy
    return PricedPolicy(changes=changes, effort=EXACT if exact else Effort())


def _greedy(**options: float | None) -> Policy:
    """Switches are 0 or 1, limits are whole numbers."""
    defaults = GreedyRules()
    known = {name: value for name, value in options.items() if value is not None}
    for name, value in known.items():
        is_switch = isinstance(getattr(defaults, name), bool)
        if value != int(value) or value < 0 or (is_switch and value > 1):
            raise SpecError(
                f"{name} must be {'0 or 1' if is_switch else 'a whole number, 0 or greater'}", why=str(value)
            )
    typed = {name: type(getattr(defaults, name))(value) for name, value in known.items()}
    return ArenaGreedy(rules=GreedyRules(**typed))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    """A policy that can be asked for.

    Args:
        options: Names that ``make`` takes.
        gives_what_is_asked: Whether it leaves a job its GPU type and count, as it was published.
        weighs_mixed_cells: Whether it gives jobs groups over several GPU types (``Grid.mixed``).
    """

    make: Callable[..., Policy]
    options: tuple[str, ...] = ()
    gives_what_is_asked: bool = False
    weighs_mixed_cells: bool = False


_ENTRIES: Mapping[str, _Entry] = {
    "arena": _Entry(
        make=_priced, options=(*inspect.signature(ChangeRules).parameters, "exact"), weighs_mixed_cells=True
    ),
    "arena-greedy": _Entry(make=_greedy, options=tuple(inspect.signature(GreedyRules).parameters)),
    "elastic": _Entry(make=_elastic, options=tuple(inspect.signature(ElasticRules).parameters)),
    "fcfs": _Entry(make=FirstComeFirstServed, gives_what_is_asked=True),
    "fcfs-easy": _Entry(make=EasyBackfill, gives_what_is_asked=True),
    "srtf": _Entry(make=ShortestRemainingTimeFirst, gives_what_is_asked=True),
    "tiresias": _Entry(make=Tiresias, options=("first_gpu_s", "second_gpu_s"), gives_what_is_asked=True),
}


_KEEPING_SHARES = frozenset({"arena"})


def policy_names() -> tuple[str, ...]:
    """Return the names that ``make_policy`` knows, sorted."""
    return tuple(sorted(_ENTRIES))


def policy_option_names(name: str) -> tuple[str, ...]:
    """Return the names of a known policy's options."""
    return _ENTRIES[name].options


def gives_what_is_asked(name: str) -> bool:
    """Tell whether a policy leaves a job its GPU type and count, as it was published; an unknown one does not."""
    entry = _ENTRIES.get(name)
    return entry is not None and entry.gives_what_is_asked


def weighs_mixed_cells(name: str) -> bool:
    """Tell whether a policy gives jobs groups over several GPU types; an unknown one does not."""
    entry = _ENTRIES.get(name)
    return entry is not None and entry.weighs_mixed_cells


def keeps_shares(name: str) -> bool:
    """Tell whether a policy gives projects their guaranteed GPUs; an unknown one does not."""
    return name in _KEEPING_SHARES


def make_policy(name: str, options: Mapping[str, float | None] | None = None) -> Policy:
    """Return a policy by its name.

    Raises:
        SpecError: The name or an option is unknown, or an option's value is out of range.
    """
    if name not in _ENTRIES:
        raise SpecError(f"unknown policy {name!r}", fix=f"use one of {', '.join(policy_names())}")
    entry = _ENTRIES[name]
    known = entry.options
    unknown = sorted(set(options or {}) - set(known))
    if unknown:
        allowed = f"use {', '.join(known)}" if known else "it takes none"
        raise SpecError(f"policy {name!r} has no option {unknown[0]!r}", fix=allowed)
    return entry.make(**(options or {}))
