"""Groups over several GPU types over time, with the production engine, the planner's grids and its estimates."""

from __future__ import annotations

from functools import cache

import pytest

from arena.domain.cluster import ClusterShape
from arena.domain.job import JobId, JobSpec
from arena.planner.mixed import MixedCells
from arena.planner.source import PlannerGridSource
from arena.policies.registry import make_policy
from arena.sim.ledger import Ledger
from arena.sim.replay import Replay, ReplayJob
from arena.sim.sources import ReplayGrids
from arena.sim.world import Fate
from tests.builders import shape, train_spec

MODEL = {"layers": 12, "hidden": 768, "heads": 12, "vocab_size": 50304, "seq_len": 1024}
TWO_TYPES = shape(("a100-40", 2, 1), ("a40", 2, 1))


def gpt(name: str, steps: int) -> JobSpec:
    train = {"precision": "bf16", "global_batch": 256}
    return train_spec(name, model=MODEL, train=train, stop={"steps": steps})


@cache
def grids(of: ClusterShape, *, is_mixed: bool) -> ReplayGrids:
    return ReplayGrids(planner=PlannerGridSource(mixed=MixedCells() if is_mixed else None))


def replayed(jobs: dict[str, int], *, is_mixed: bool, of: ClusterShape = TWO_TYPES) -> Ledger:
    """Jobs with their steps, all there from the beginning."""
    replay = Replay(shape=of, policy=make_policy("arena"), grids=grids(of, is_mixed=is_mixed), check=True)
    return replay.run(
        [
            ReplayJob(job_id=JobId(name), submitted_at_s=0.0, spec=gpt(name, steps), fate=Fate(step_count=steps))
            for name, steps in jobs.items()
        ]
    )


def ended_s(ledger: Ledger) -> dict[str, float]:
    return {one.job_id: one.ended_at_s for one in ledger.outcomes}


def test_a_lone_job_is_done_sooner_on_two_types_than_on_the_better_of_them() -> None:
    mixed = ended_s(replayed({"a": 4000}, is_mixed=True))
    alone = ended_s(replayed({"a": 4000}, is_mixed=False))

    assert mixed["a"] < 0.9 * alone["a"]


def test_three_jobs_are_done_sooner_on_average_since_each_can_take_what_others_leave() -> None:
    jobs = {"a": 4000, "b": 1500, "c": 500}
    mixed, alone = (ended_s(replayed(jobs, is_mixed=is_mixed)) for is_mixed in (True, False))

    assert sum(mixed.values()) < 0.95 * sum(alone.values())


@pytest.mark.parametrize("is_mixed", [False, True])
def test_on_one_type_nothing_changes(is_mixed: bool) -> None:
    one_type = shape(("a40", 2, 2))
    jobs = {"a": 1000, "b": 200}
    assert ended_s(replayed(jobs, is_mixed=is_mixed, of=one_type)) == ended_s(
        replayed(jobs, is_mixed=False, of=one_type)
    )
