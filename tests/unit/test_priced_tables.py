"""What the default policy remembers of grids: no more than the jobs of the moment need."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest

from arena.policies.priced import market
from arena.policies.priced.market import TABLES_KEPT, Tables, market_of, rows_of
from arena.policies.registry import make_policy
from tests.builders import node_info, scaling_grid, snapshot_of, train_spec

SPEC = train_spec("a", gpus={"max": 2})
NODES = [node_info("n1", gpus=2)]


def test_tables_of_jobs_that_are_gone_are_forgotten() -> None:
    tables = Tables()
    for number in range(5 * TABLES_KEPT):
        snapshot = snapshot_of(NODES, {f"j{number}": (SPEC, scaling_grid("cpu", [(1,), (2,)]))})
        market_of(snapshot, tables)
        kept = len(tables.over(rows_of(snapshot.shape), snapshot.grids.values()))
        assert kept <= 2 * len(snapshot.jobs) + TABLES_KEPT


def test_tables_of_jobs_that_are_there_are_made_once() -> None:
    tables, grids = Tables(), [scaling_grid("cpu", [(1,), (2,)]) for _ in range(3 * TABLES_KEPT)]
    snapshot = snapshot_of(NODES, {f"j{number:03}": (SPEC, grid) for number, grid in enumerate(grids)})
    first = [contender.table for contender in market_of(snapshot, tables).contenders]
    again = [contender.table for contender in market_of(snapshot, tables).contenders]
    assert len(first) == len(grids)
    assert all(one is other for one, other in zip(first, again, strict=True))


def test_what_was_forgotten_changes_no_decision() -> None:
    """One policy has seen many jobs come and go, the other none."""
    old = make_policy("arena")
    for number in range(3 * TABLES_KEPT):
        old.decide(snapshot_of(NODES, {f"j{number}": (SPEC, scaling_grid("cpu", [(1,), (2,)]))}))
    snapshot = snapshot_of(NODES, {name: (SPEC, scaling_grid("cpu", [(1,), (2,)])) for name in ("x", "y", "z")})
    assert old.decide(snapshot) == make_policy("arena").decide(snapshot)


def test_who_asks_at_the_same_time_has_the_same_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """Questions are answered beside decisions, in threads of their own."""
    grid, both, make = scaling_grid("cpu", [(1,), (2,)]), Barrier(2), market._table

    def together(*args: Any, **options: Any) -> market.Table:
        both.wait(timeout=60.0)
        return make(*args, **options)

    monkeypatch.setattr(market, "_table", together)
    snapshot = snapshot_of(NODES, {"a": (SPEC, grid)})
    made = Tables().over(rows_of(snapshot.shape), [grid])
    with ThreadPoolExecutor(2) as pool:
        one, other = pool.map(lambda _: made.of(grid, same_zone=False), range(2))
    assert one is other
