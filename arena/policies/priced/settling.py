"""Choose and seat, until what was chosen and what found devices are nearly worth the same. Pure: no I/O, no clock.

Rows are what can be placed, but not all of it: nodes that are half free after some have left are whole to the rows. A
choice whose groups do not all find devices is made good where it stands: who found none gets the best that there is
room for, and what is left over after that goes to whoever gains most by it. Where this costs much, the choice is made
again without what found no devices, and the best of all that were made is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from arena.domain.reason import Reason
from arena.policies.base import Snapshot
from arena.policies.priced.allocation import Answer, Effort, solve
from arena.policies.priced.columns import Columns, Floats, Ints, Priced
from arena.policies.priced.market import Market
from arena.policies.priced.rooms import Rooms
from arena.policies.priced.seating import Seats, seated_or_better

ROUNDS_MAX = 4
"""Times that a choice is made."""

LOST_SHARE = 0.5
"""Of the gap that is good enough; a choice that loses no more by what found no devices is not made again."""

Choose = Callable[[Columns, Sequence[Ints], Priced | None], Answer]
"""Makes a choice among columns, from others to begin with, at prices if they are known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """A choice that has devices.

    Args:
        lost: What it is worth less than what was chosen at first.
    """

    seats: Seats
    value: float
    lost: float


def by_prices(market: Market, guess: Floats, effort: Effort) -> Choose:
    """Return how a choice is made within the rows of a market.

    Args:
        guess: Prices to begin with.
    """

    def choose(columns: Columns, starts: Sequence[Ints], known: Priced | None) -> Answer:
        prices = None if known is None else known.prices
        return solve(columns, market.supply, guess=guess, incumbents=starts, effort=effort, prices=prices)

    return choose


def settled(
    snapshot: Snapshot,
    market: Market,
    columns: Columns,
    choose: Choose,
    *,
    rooms: Rooms,
    incumbents: tuple[Ints, ...],
    effort: Effort,
) -> tuple[Answer, Seats]:
    """Return the best choice that has devices, and these.

    The bound stays that of the whole problem: what could not be seated counts as lost. A choice in which something
    finds no devices that a tenant claims (``Market.claims``) is not made again: it is not for others to have that.

    Args:
        rooms: What there is of each row of the columns.
        incumbents: Choices that are known to have devices.
    """
    priced: Priced | None = None
    best: _Found | None = None
    cuts: dict[int, Reason] = {}
    within = columns
    for _ in range(ROUNDS_MAX):
        starts = incumbents if best is None else (*incumbents, best.seats.chosen)
        answer = choose(within, starts, priced)
        priced = priced or answer.priced
        seats = seated_or_better(snapshot, market, (columns, priced, rooms), answer.chosen, is_full=not cuts)
        found = _found(columns, seats, answer.chosen)
        best = found if best is None or found.value > best.value else best
        cuts |= found.seats.cuts
        if not found.seats.cuts or best.lost <= LOST_SHARE * effort.gap * priced.bound:
            break
        if market.claims & found.seats.cuts.keys():
            break
        within = _without(columns, cuts)
    assert best is not None
    assert priced is not None
    for incumbent in incumbents:
        if columns.worth(incumbent) > best.value:
            seats = seated_or_better(snapshot, market, (columns, priced, rooms), incumbent, is_full=False)
            best = _found(columns, seats, incumbent)
    return Answer(chosen=best.seats.chosen, value=best.value, priced=priced), replace(best.seats, cuts=cuts)


def _found(columns: Columns, seats: Seats, chosen: Ints) -> _Found:
    value = columns.worth(seats.chosen)
    return _Found(seats=seats, value=value, lost=columns.worth(chosen) - value)


def _without(columns: Columns, cuts: Mapping[int, Reason]) -> Columns:
    value = columns.value.copy()
    value[list(cuts)] = -1.0
    return replace(columns, value=value)
