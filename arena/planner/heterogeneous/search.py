"""The best plan of one job over mixed GPU types and zones, with a certificate. Pure: no I/O, no clock.

Pipelines (cuts of the layers) are filled with chains of replicas (``chains``) and what looks best is
judged (``judge``). Prices on GPUs then ask for chains that would make a better plan
(``bound``): what they find gives new cuts to fill, and where they find none, that is the bound.

The space: 1F1B without sharding; layers split in any way over at most ``Space.pp_max`` stages; each replica of any
type, zone and degree that divides nodes and model; micro-batch sizes in powers of two; chains take unequal numbers of
micro-batches, unless switched off. A stage holds the activations of as many micro-batches as stages follow, also where
there are fewer, and the communication buffers of a rank among others, also where it is alone. Plans on a single node
of an offer of more than ``ONE_NODE_OFFERS_MAX`` nodes are looked at for cost and columns only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np

from arena.domain.capability import job_refusals
from arena.domain.job import TrainSpec
from arena.domain.reason import ReasonCode, reason
from arena.errors import SpecError
from arena.planner.candidates import Floats
from arena.planner.heterogeneous.goal import Goal
from arena.planner.heterogeneous.judge import Judge
from arena.planner.heterogeneous.limits import contradiction
from arena.planner.heterogeneous.offer import (
    Constraints,
    HeterogeneousResult,
    Objective,
    Offer,
    PartKey,
    Space,
    Statistics,
    Value,
    ZoneLinks,
)
from arena.planner.heterogeneous.tables import tables_of
from arena.planner.heterogeneous.tree import Hunt

ONE_NODE_OFFERS_MAX = 8
NODE_SPLITS_MAX = 16
"""Ways to share out a limited number of nodes among types and zones that are looked at, each by itself."""


def search(
    train: TrainSpec,
    offer: Offer,
    links: ZoneLinks | None = None,
    *,
    objective: Objective = Objective.THROUGHPUT,
    constraints: Constraints | None = None,
    space: Space | None = None,
) -> HeterogeneousResult:
    """Return the best plan of a job on an offer with its bound, or why there is none.

    Raises:
        SpecError: The offer is empty, or names zones that nothing links.
        InfeasibleError: The job fits the offer, but no plan that was found keeps the constraints.
    """
    _check(offer, links or ZoneLinks())
    limits = constraints or Constraints()

    def within(some: Constraints, is_cost: bool, proves: bool) -> HeterogeneousResult:
        def goal_of(part: Offer) -> Goal:
            return Goal(constraints=some, usd_per_s=_usd_per_s(part), is_cost=is_cost)

        return _over_offers(train, offer, links or ZoneLinks(), replace(space or Space(), proves=proves), goal_of)

    found = within(limits, objective is Objective.COST, (space or Space()).proves)
    if found.plan is None and limits != limits.of_gpus:
        refusal = contradiction(limits, lambda some, is_cost: within(some, is_cost, False))
        if refusal is not None:
            raise refusal
    return found


def best_column(
    train: TrainSpec,
    offer: Offer,
    prices: Mapping[PartKey, float],
    value: Value,
    *,
    links: ZoneLinks | None = None,
    constraints: Constraints | None = None,
    space: Space | None = None,
) -> HeterogeneousResult:
    """Return the plan that maximises value minus price x GPUs; ``score`` and ``bound`` are price minus value.

    Args:
        prices: Of one GPU of each part, in the unit of ``value``.
        value: Worth of a step time; it does not rise with the time.

    Raises:
        SpecError: A price is missing or negative.
        InfeasibleError: All is free, and no plan that was found keeps the constraints.
    """
    _check(offer, links or ZoneLinks())
    missing = sorted("/".join(key) for key in offer if key not in prices)
    if missing or any(not price >= 0 for price in prices.values()):
        raise SpecError("every part of an offer needs a price of at least 0", why=f"missing: {missing}, got {prices}")
    limits = constraints or Constraints()
    if not any(prices[key] for key in offer):
        return _as_column(search(train, offer, links, constraints=limits, space=space), value)

    def goal_of(part: Offer) -> Goal:
        price = np.array([prices[key] for key in sorted(part)], dtype=np.float64)
        return Goal(constraints=limits, usd_per_s=_usd_per_s(part), gpu_price=price, value=value)

    return _over_offers(train, offer, links or ZoneLinks(), space or Space(), goal_of)


def _as_column(fastest: HeterogeneousResult, value: Value) -> HeterogeneousResult:
    """Return the fastest plan as what it is where GPUs cost nothing: the best column."""
    if fastest.plan is None:
        return fastest
    bound = -value(fastest.bound) if fastest.bound > 0 else -np.inf
    return replace(fastest, score=-value(fastest.score), bound=bound)


def _check(offer: Offer, links: ZoneLinks) -> None:
    if not offer:
        raise SpecError("an offer names at least one GPU type and zone")
    for one, other in combinations(sorted({zone for _, zone in offer}), 2):
        links.tier(one, other)


def _usd_per_s(offer: Offer) -> Floats:
    return np.array([offer[key].gpu_type.usd_per_hour / 3600.0 for key in sorted(offer)])


def _over_offers(
    train: TrainSpec, offer: Offer, links: ZoneLinks, space: Space, goal_of: Callable[[Offer], Goal]
) -> HeterogeneousResult:
    """Search the offer, and single nodes of it apart: inside a node pipelines send over its links."""
    refusal = next(job_refusals(train, beyond_worker=space.allow_unsupported), None)
    if refusal is not None:
        told = reason(ReasonCode.UNSUPPORTED, detail=refusal)
        return HeterogeneousResult(plan=None, estimate=None, score=np.inf, bound=np.inf, reasons=(told,))
    first, *more = _within_nodes(offer, goal_of(offer).constraints.node_count_max)
    best = _searched(train, first, links, space, goal=goal_of(first))
    for part in more[: NODE_SPLITS_MAX - 1]:
        best = _better(best, _searched(train, part, links, space, goal=goal_of(part), known=best.score))
    if len(more) >= NODE_SPLITS_MAX:  # what was left out is no better than what no limit on nodes would allow
        free = _searched(train, offer, links, replace(space, proves=False), goal=goal_of(offer))
        best = replace(best, bound=min(best.bound, free.bound))
    node_count = sum(part.node_count for part in offer.values())
    is_small = node_count <= ONE_NODE_OFFERS_MAX or not goal_of(offer).is_time
    if node_count > 1 and is_small and space.pp_max > 1 and space.one_node:
        for key in sorted(offer):
            one = replace(offer[key], gpu_count=min(offer[key].gpu_count, offer[key].gpus_per_node))
            found = _searched(train, {key: one}, links, space, goal=goal_of({key: one}), known=best.score)
            best = _better(best, found)
    return best


def _within_nodes(offer: Offer, most: int | None) -> list[Offer]:
    """Return offers of so many nodes that together hold whatever an offer holds on so many nodes."""
    keys = sorted(offer)
    nodes = [offer[key].node_count for key in keys]
    if most is None or sum(nodes) <= most:
        return [offer]
    # The even ones first: those on few types are next to what single types offer anyway.
    splits = sorted(_splits(nodes, most), key=lambda split: (max(split) - min(split), split))
    return [
        {
            key: replace(offer[key], gpu_count=min(offer[key].gpu_count, count * offer[key].gpus_per_node))
            for key, count in zip(keys, split, strict=True)
            if count
        }
        for split in splits
    ]


def _splits(nodes: Sequence[int], most: int) -> Iterator[tuple[int, ...]]:
    """Yield how to take so many nodes of some kinds."""
    if len(nodes) == 1:
        if most <= nodes[0]:
            yield (most,)
        return
    for count in range(min(nodes[0], most) + 1):
        yield from ((count, *rest) for rest in _splits(nodes[1:], most - count))


def _better(one: HeterogeneousResult, other: HeterogeneousResult) -> HeterogeneousResult:
    best = other if other.plan is not None and other.score < one.score else one
    counts = Statistics(
        tables=one.statistics.tables + other.statistics.tables,
        programs=one.statistics.programs + other.statistics.programs,
        mixes=one.statistics.mixes + other.statistics.mixes,
        judged=one.statistics.judged + other.statistics.judged,
    )
    return replace(best, bound=min(one.bound, other.bound), statistics=counts)


def _searched(
    train: TrainSpec, offer: Offer, links: ZoneLinks, space: Space, *, goal: Goal, known: float = float("inf")
) -> HeterogeneousResult:
    tables = tables_of(train, offer, links, space)
    judge = Judge(train=train, offer=offer, links=links)
    return Hunt(judge=judge, tables=tables, space=space, goal=goal, incumbent=known).run()
