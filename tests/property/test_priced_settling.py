"""Choices that find devices: on clusters in pieces, at any values."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arena.domain.allocation import Allocation
from arena.domain.grid import Grid
from arena.domain.job import JobSpec
from arena.policies.base import Snapshot
from arena.policies.capacity import Capacity
from arena.policies.placement import place
from arena.policies.priced.allocation import Answer, Effort
from arena.policies.priced.columns import Columns, Floats
from arena.policies.priced.market import Market, Tables, market_of
from arena.policies.priced.rooms import Rooms
from arena.policies.priced.seating import Seats
from arena.policies.priced.settling import by_prices, settled
from tests.builders import allocation_on, cell, grid_of, holding_of, node_info, snapshot_of, train_spec

sized = settings(max_examples=60, deadline=None)
SHAPES = ((1,), (2,), (4,), (8,), (8, 8))
GPUS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A snapshot with a value for every column."""

    snapshot: Snapshot
    market: Market
    columns: Columns

    def settled(self) -> tuple[Answer, Seats]:
        guess = np.full(
            len(self.market.rows), float(self.columns.value.max()) / max(float(self.market.supply.sum()), 1.0)
        )
        choose = by_prices(self.market, guess, Effort())
        rooms = Rooms.of_all(len(self.market.contenders), self.market.supply)
        kept = (self.market.keeping,)
        found = (self.snapshot, self.market, self.columns, choose)
        return settled(*found, rooms=rooms, incumbents=kept, effort=Effort())


@st.composite
def pieces(draw: st.DrawFn) -> Case:
    """Nodes of eight, most of them broken by small jobs that run; others wait for parts of nodes or for whole ones."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    nodes = [node_info(f"n{index}", gpus=GPUS, gpu_type="a") for index in range(draw(st.integers(2, 8)))]
    jobs: dict[str, tuple[JobSpec, Grid]] = {}
    running = {}
    for node in nodes:
        free = GPUS
        while free and rng.random() < 0.75:
            count = int(rng.choice([size for size in (1, 2, 4) if size <= free]))
            name = f"r{len(jobs)}"
            jobs[name] = train_spec(name), grid(rng)
            allocation = allocation_on((node.node_id, range(GPUS - free, GPUS - free + count)))
            held = next(one for one in jobs[name][1].cells if one.group.gpu_count == count)
            running[name] = holding_of(grid_of(held), allocation)
            free -= count
    for index in range(draw(st.integers(1, 12))):
        jobs[f"w{index}"] = train_spec(f"w{index}"), grid(rng)
    snapshot = snapshot_of(nodes, jobs, running=running)
    market = market_of(snapshot, Tables())
    return Case(snapshot=snapshot, market=market, columns=columns_of(market, rng))


def grid(rng: np.random.Generator) -> Grid:
    one_s, power = rng.lognormal(0.0, 0.5), rng.uniform(0.5, 1.0)
    return grid_of(*(cell("a", counts, one_s / sum(counts) ** power) for counts in SHAPES))


def columns_of(market: Market, rng: np.random.Generator) -> Columns:
    """What runs is worth a bit more where it is, so that little things do not move it."""
    worth = rng.lognormal(0.0, 1.0, len(market.contenders))
    stays: Floats = np.where(market.entry < 0, 1.2, 1.0)
    return Columns(job=market.job, value=worth[market.job] * market.speed * stays, usage=market.usage)


def after(case: Case, answer: Answer, seats: Seats) -> Capacity:
    """What is free once all is done; raises where devices are given twice."""
    capacity = case.snapshot.capacity
    for at, contender in enumerate(case.market.contenders):
        if contender.holding is not None and answer.chosen[at] != case.market.keeping[at]:
            capacity = capacity.restore(contender.holding.allocation)
    for allocation in seats.allocations.values():
        capacity = capacity.take_all(allocation)
    return capacity


@sized
@given(case=pieces())
def test_all_that_is_chosen_has_devices_of_its_own(case: Case):
    answer, seats = case.settled()
    after(case, answer, seats)
    changed = np.flatnonzero((answer.chosen >= 0) & (answer.chosen != case.market.keeping)).tolist()
    assert sorted(seats.allocations) == changed
    for at in changed:
        counts = sorted(len(share.device_ids) for share in seats.allocations[at].shares)
        assert counts == sorted(
            count for part in case.market.group(int(answer.chosen[at])).parts for count in part.node_counts
        )
    assert answer.value == pytest.approx(case.columns.worth(answer.chosen))
    assert answer.value <= answer.priced.bound * (1 + 1e-9)


@sized
@given(case=pieces())
def test_it_is_never_worth_less_than_to_leave_all_as_it_runs_and_to_fill_what_is_free(case: Case):
    answer, seats = case.settled()
    assert answer.value >= case.columns.worth(case.market.keeping) * (1 - 1e-9)
    room = after(case, answer, seats)
    for at in np.flatnonzero(answer.chosen < 0).tolist():
        table = case.market.contenders[at].table
        assert not any(isinstance(place(room, one.group), Allocation) for one in table.cells)


@sized
@given(case=pieces())
def test_what_finds_no_devices_costs_little(case: Case):
    """Nearly all that could be had if groups never had to lie together, which is more than there is."""
    answer, _ = case.settled()
    assert answer.value >= 0.75 * answer.priced.bound
