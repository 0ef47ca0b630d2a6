"""What tenants claim, and what is lent of the rest: choices leave all claims, and the bound is one for all of those."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from arena.policies.priced.allocation import EXACT, Effort, solve
from arena.policies.priced.columns import NONE, Columns, Floats, Ints
from arena.policies.priced.lending import Lending, whole_parts
from arena.policies.priced.lending_prices import LendingPrices, lending_prices
from arena.policies.priced.rooms import Rooms

sized = settings(max_examples=60, deadline=None)


@st.composite
def cases(draw: st.DrawFn) -> tuple[Columns, Rooms]:
    """Jobs of up to three tenants and others, with columns of a few sizes on two rows, some of them of whole nodes."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    tenants, jobs = draw(st.integers(1, 3)), draw(st.integers(1, 14))
    owner = rng.integers(0, tenants + 1, jobs)
    sizes = [int(rng.integers(1, 5)) for _ in range(jobs)]
    job = np.repeat(np.arange(jobs), sizes)
    count = rng.integers(1, 9, len(job)).astype(np.float64)
    kind = rng.integers(0, 2, len(job))
    usage = np.zeros((len(job), 4))
    for at in range(len(job)):
        usage[at, 2 * kind[at]], usage[at, 2 * kind[at] + 1] = count[at], count[at] // 4 * 4
    value = rng.lognormal(0.0, 1.0, len(job)) * count**0.8
    supply = np.repeat(rng.integers(1, 6, 2) * 8.0, 2)
    alone = solve(Columns(job=job, value=value, usage=usage), supply * rng.uniform(0.2, 1.0), guess=np.zeros(4))
    claimed = np.where(owner < tenants, alone.chosen, NONE)
    claims = np.zeros((tenants, 4))
    has = np.flatnonzero(claimed >= 0)
    np.add.at(claims, owner[has], usage[claimed[has]])
    return Columns(job=job, value=value, usage=usage), Rooms(owner=owner, supply=supply, claims=claims)


def guess_of(columns: Columns, rooms: Rooms) -> Floats:
    return np.full(len(rooms.supply), float(columns.value.max()) / float(rooms.supply.sum()))


def parted(columns: Columns, rooms: Rooms) -> tuple[Ints, LendingPrices]:
    priced = lending_prices(columns, rooms, guess_of(columns, rooms))
    lending = Lending(columns=columns, owner=rooms.owner, chunks=np.array([1.0, 4.0, 1.0, 4.0]))
    return lending.chosen(columns.value, rooms, priced, (), Effort()), priced


def as_one_problem(columns: Columns, rooms: Rooms) -> tuple[Columns, Floats]:
    """All sets of tenants as rows: whoever is not in the set leaves what those in it claim."""
    tenants, owner = len(rooms.claims), rooms.owner[columns.job]
    usage, supply = [], []
    for number in range(2**tenants):
        inside = [one for one in range(tenants) if number >> one & 1]
        usage.append(np.where(np.isin(owner, inside)[:, None], 0.0, columns.usage))
        supply.append(rooms.supply - rooms.claims[inside].sum(axis=0))
    whole = Columns(job=columns.job, value=columns.value, usage=np.column_stack(usage))
    return whole, np.concatenate(supply)


@sized
@given(case=cases())
def test_a_choice_leaves_all_claims(case: tuple[Columns, Rooms]):
    columns, rooms = case
    chosen, _ = parted(columns, rooms)
    assert rooms.hold(columns, chosen)
    whole, supply = as_one_problem(columns, rooms)
    assert (whole.used(chosen) <= supply + 1e-6).all(), "which is to keep the rows of all sets"


@sized
@given(case=cases())
def test_the_bound_is_that_of_the_rows_of_all_sets(case: tuple[Columns, Rooms]):
    columns, rooms = case
    _, priced = parted(columns, rooms)
    whole, supply = as_one_problem(columns, rooms)
    best = solve(whole, supply, guess=np.zeros(len(supply)), effort=EXACT)
    assert best.value <= priced.bound(rooms) * (1 + 1e-9)
    assert priced.bound(rooms) <= best.priced.bound * 1.002 + 1e-9, "no lower bound is left by the relaxation"


@sized
@given(case=cases(), part=st.data())
def test_a_bound_holds_for_other_claims_as_well(case: tuple[Columns, Rooms], part: st.DataObject):
    columns, rooms = case
    _, priced = parted(columns, rooms)
    less = np.array([part.draw(st.sampled_from([0.0, 0.5, 1.0])) for _ in rooms.claims])
    other = Rooms(owner=rooms.owner, supply=rooms.supply, claims=np.floor(rooms.claims * less[:, None]))
    whole, supply = as_one_problem(columns, other)
    best = solve(whole, supply, guess=np.zeros(len(supply)), effort=EXACT)
    assert best.value <= priced.bound(other) * (1 + 1e-9)


@sized
@given(case=cases())
def test_parts_are_whole_chunks_and_no_more_than_what_nobody_claims(case: tuple[Columns, Rooms]):
    columns, rooms = case
    priced = lending_prices(columns, rooms, guess_of(columns, rooms))
    chunks = np.array([1.0, 4.0, 1.0, 4.0])
    parts = whole_parts(rooms, priced.used, chunks)
    assert (parts.sum(axis=0) <= rooms.common + 1e-6).all()
    assert (parts % chunks == 0.0).all()


@sized
@given(case=cases(), data=st.data())
def test_who_takes_what_is_free_for_it_leaves_all_claims(case: tuple[Columns, Rooms], data: st.DataObject):
    columns, rooms = case
    chosen, priced = parted(columns, rooms)
    gone = [at for at in range(columns.job_count) if data.draw(st.booleans())]
    chosen[gone] = NONE
    for column in rooms.gaining(columns, priced.reduced, chosen, np.full(columns.job_count, 1e-9)).tolist():
        after = chosen.copy()
        after[columns.job[column]] = column
        assert rooms.hold(columns, after)
        assert columns.worth(after) > columns.worth(chosen)
