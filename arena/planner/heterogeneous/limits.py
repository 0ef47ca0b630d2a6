"""What would work where no plan keeps the constraints. Pure: no I/O, no clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from arena.domain.grid import Estimate
from arena.errors import InfeasibleError
from arena.planner.heterogeneous.offer import Constraints, HeterogeneousResult

Within = Callable[[Constraints, bool], HeterogeneousResult]
"""Searches under some constraints for the cheapest plan, or else for the fastest."""


def contradiction(limits: Constraints, within: Within) -> InfeasibleError | None:
    """Return why constraints leave no plan and which do, None where the job does not fit without any.

    Args:
        within: Asked for the fastest and the cheapest plan, without constraints on time and money and with one of two
            at a time.
    """
    fastest, cheapest = within(limits.of_gpus, False).estimate, within(limits.of_gpus, True).estimate
    if fastest is None or cheapest is None:
        return None
    why, fixes = _failed(limits, fastest, cheapest), _fixes(limits, fastest, cheapest)
    if not fixes:
        # Either alone can be kept.
        in_time = within(replace(limits, usd_per_step_max=None), True).estimate
        in_budget = within(replace(limits.of_gpus, usd_per_step_max=limits.usd_per_step_max), False).estimate
        return _error(why, " or ".join(_either(limits, in_time, in_budget)))
    return _error(why, " and ".join(fixes))


def none_keeps(limits: Constraints, estimates: Sequence[Estimate]) -> InfeasibleError:
    """Return why none of some plans keeps the constraints, and which would be kept."""
    fastest = min(estimates, key=_speed_first)
    cheapest = min(estimates, key=_price_first)
    why, fixes = _failed(limits, fastest, cheapest), _fixes(limits, fastest, cheapest)
    if fixes:
        return _error(why, " and ".join(fixes))
    budget = limits.usd_per_step_max
    in_time = [one for one in estimates if one.iter_time_s <= limits.iter_time_s_max]
    in_budget = [one for one in estimates if budget is None or one.usd_per_step <= budget]
    best = min(in_time, key=_price_first, default=None), min(in_budget, key=_speed_first, default=None)
    return _error(why, " or ".join(_either(limits, *best)))


def _speed_first(one: Estimate) -> tuple[float, float]:
    return one.iter_time_s, one.usd_per_step


def _price_first(one: Estimate) -> tuple[float, float]:
    return one.usd_per_step, one.iter_time_s


def _fixes(limits: Constraints, fastest: Estimate, cheapest: Estimate) -> list[str]:
    """Return what must give whatever the other constraints are."""
    fixes = []
    if limits.usd_per_step_max is not None and limits.usd_per_step_max < cheapest.usd_per_step:
        fixes.append(_dearer(cheapest))
    if limits.iter_time_s_max < fastest.iter_time_s:
        fixes.append(_slower(limits, fastest.iter_time_s))
    return fixes


def _either(limits: Constraints, in_time: Estimate | None, in_budget: Estimate | None) -> list[str]:
    """Return what each of two constraints that exclude each other would have to become."""
    dearer = [] if in_time is None else [_dearer(in_time)]
    return [*dearer, *([] if in_budget is None else [_slower(limits, in_budget.iter_time_s)])]


def _dearer(estimate: Estimate) -> str:
    return f"a budget of at least {estimate.usd_per_step:.4g} USD a step"


def _error(why: str, fix: str) -> InfeasibleError:
    return InfeasibleError("no plan keeps the constraints", why=why, fix=f"ask for {fix}")


def _failed(limits: Constraints, fastest: Estimate, cheapest: Estimate) -> str:
    asked = []
    if limits.usd_per_step_max is not None:
        asked.append(f"at most {limits.usd_per_step_max:.4g} USD a step")
    if limits.steps_per_s_min is not None:
        asked.append(f"at least {limits.steps_per_s_min:.4g} steps/s")
    if limits.deadline_s is not None:
        asked.append(f"{limits.steps} steps within {limits.deadline_s:.4g} s")
    return f"asked for {' and '.join(asked)}; the fastest plan is {_told(fastest)}, the cheapest {_told(cheapest)}"


def _told(estimate: Estimate) -> str:
    return f"{1.0 / estimate.iter_time_s:.4g} steps/s at {estimate.usd_per_step:.4g} USD a step"


def _slower(limits: Constraints, time_s: float) -> str:
    """Return the throughput and the deadline that a step time allows."""
    texts = []
    if limits.steps_per_s_min is not None and limits.steps_per_s_min * time_s > 1.0:
        texts.append(f"at most {1.0 / time_s:.4g} steps/s")
    if limits.deadline_s is not None and limits.steps is not None and limits.steps * time_s > limits.deadline_s:
        texts.append(
            f"a deadline of at least {limits.steps * time_s:.4g} s (or {int(limits.deadline_s / time_s)} steps)"
        )
    return " and ".join(texts)
