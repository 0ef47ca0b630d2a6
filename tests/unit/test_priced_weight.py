"""How much a job's time counts: ``weight`` as its user wrote it, and twice as much for each step of priority."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from arena.domain.job import JobId, JobSpec
from arena.policies.base import Snapshot
from arena.policies.priced.roster import weight_of
from arena.policies.registry import make_policy
from tests.builders import (
    allocation_on,
    cell,
    chosen,
    grid_of,
    holding_of,
    node_info,
    scaling_grid,
    snapshot_of,
    train_spec,
)

GRID = scaling_grid("cpu", [(1,), (2,), (4,)])
NODES = [node_info("n1", gpus=4), node_info("n2", gpus=2)]


def spec_of(name: str, steps: int, **fields: float) -> JobSpec:
    return train_spec(name, stop={"steps": steps}, **fields)


def weighed(snapshot: Snapshot, spec: dict[str, dict[str, float]]) -> Snapshot:
    """Return a snapshot whose jobs, in the same order of service, count otherwise."""
    jobs = {
        job_id: replace(job, spec=job.spec.model_copy(update=spec[job_id])) for job_id, job in snapshot.jobs.items()
    }
    return replace(snapshot, jobs=jobs)


def test_of_two_alike_the_one_that_counts_for_more_has_the_only_gpu() -> None:
    grid, node = scaling_grid("cpu", [(1,)]), node_info("n1", gpus=1)
    for heavy in ("a", "b"):
        specs = {name: spec_of(name, 1_000, weight=4.0 if name == heavy else 1.0) for name in ("a", "b")}
        snapshot = snapshot_of([node], {name: (spec, grid) for name, spec in specs.items()})
        assert set(make_policy("arena").decide(snapshot).choices) == {JobId(heavy)}


@settings(max_examples=25)
@given(
    steps=st.lists(st.integers(1, 100_000), min_size=1, max_size=6),
    doublings=st.lists(st.integers(-6, 6), min_size=6, max_size=6),
)
def test_a_step_of_priority_counts_as_twice_the_weight(steps: list[int], doublings: list[int]) -> None:
    specs = {f"j{at}": spec_of(f"j{at}", count) for at, count in enumerate(steps)}
    plain = snapshot_of(NODES, {name: (spec, GRID) for name, spec in specs.items()})
    by_priority, by_weight = (
        make_policy("arena").decide(
            weighed(plain, {name: make(by) for name, by in zip(specs, doublings, strict=False)})
        )
        for make in (lambda by: {"priority": by}, lambda by: {"weight": 2.0**by})
    )
    assert by_priority == by_weight


@given(priority=st.integers(-1_000, 1_000), weight=st.floats(1e-300, 1e300))
def test_nobody_counts_for_nothing_or_for_more_than_can_be_reckoned_with(priority: int, weight: float) -> None:
    assert 2.0**-30 <= weight_of(spec_of("a", 1, priority=priority, weight=weight)) <= 2.0**30


def test_who_counts_for_least_has_what_nobody_else_can_use() -> None:
    """A low priority is a late turn at what is short; it is no reason to leave a GPU idle."""
    grids = {count: grid_of(cell("cpu", (count,), 1.0)) for count in (1, 4, 8)}
    specs = {
        "runs": (train_spec("runs", kind="rigid", gpus={"count": 4}, priority=1_000), grids[4]),
        "large": (train_spec("large", kind="rigid", gpus={"count": 8}, priority=1_000), grids[8]),
        "small": (train_spec("small", kind="rigid", gpus={"count": 1}, priority=-1_000), grids[1]),
    }
    running = {"runs": holding_of(grids[4], allocation_on(("n1", range(4))))}
    snapshot = snapshot_of([node_info("n1", gpus=8)], specs, running=running)
    assert set(make_policy("arena").decide(snapshot).choices) == {JobId("small")}


def test_who_counts_for_least_has_less_where_its_best_finds_no_devices() -> None:
    """Three GPUs in one node are not there, one is; beside what the others are worth it is next to nothing."""
    grids = {count: grid_of(cell("cpu", (count,), 1.0)) for count in (6, 8)}
    dear = train_spec("dear", kind="rigid", gpus={"count": 8}, priority=1_000)
    fixed = train_spec("fixed", kind="rigid", gpus={"count": 6})
    small = train_spec("small", priority=-1_000)
    specs = {"dear": (dear, grids[8]), "x": (fixed, grids[6]), "y": (fixed, grids[6])}
    running = {
        "dear": holding_of(grids[8], allocation_on(("n3", range(8)))),
        "x": holding_of(grids[6], allocation_on(("n1", range(6))), movable=False),
        "y": holding_of(grids[6], allocation_on(("n2", range(6))), movable=False),
    }
    nodes = [node_info(name, gpus=8) for name in ("n1", "n2", "n3")]
    jobs = {**specs, "small": (small, scaling_grid("cpu", [(1,), (3,)]))}
    decision = make_policy("arena").decide(snapshot_of(nodes, jobs, running=running))
    assert chosen(decision, "small").group.gpu_count == 1
