"""Policies with planted faults: a replay stops at each, and random snapshots find each."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import find, settings

from arena.engine.decide import PolicyFault
from arena.errors import InternalError
from arena.policies.base import Choice, Decision, Policy, Snapshot
from arena.policies.fcfs import FirstComeFirstServed
from arena.sim.replay import Replay
from tests.builders import shape
from tests.property.test_policy_decisions import forgotten, snapshots
from tests.sim.test_replay import FREE, job, table

Plant = Callable[[Snapshot, Decision], Decision]


@dataclass(frozen=True, kw_only=True)
class Planted:
    """First come, first served, with a fault."""

    plant: Plant
    name: str = "planted"
    version: str = "1"
    inner: Policy = field(default_factory=FirstComeFirstServed)

    def decide(self, snapshot: Snapshot) -> Decision:
        return self.plant(snapshot, self.inner.decide(snapshot))


def started(decision: Decision) -> dict[str, Choice]:
    return {job_id: choice for job_id, choice in decision.choices.items() if choice is not None}


def oversubscribing(snapshot: Snapshot, decision: Decision) -> Decision:
    """Two jobs that start get the devices of the first."""
    jobs = sorted(started(decision))
    if len(jobs) < 2:
        return decision
    first = decision.choices[jobs[0]]
    return replace(decision, choices={**decision.choices, jobs[1]: first})


def breaking_gangs(snapshot: Snapshot, decision: Decision) -> Decision:
    """A job on several nodes gets all but the last."""
    for job_id, choice in started(decision).items():
        shares = choice.allocation.shares
        if len(shares) > 1:
            cut = replace(choice, allocation=replace(choice.allocation, shares=shares[:-1]))
            return replace(decision, choices={**decision.choices, job_id: cut})
    return decision


def losing_jobs(snapshot: Snapshot, decision: Decision) -> Decision:
    """The last job that could start is forgotten, for ever."""
    jobs = sorted(started(decision))
    choices = {job_id: choice for job_id, choice in decision.choices.items() if job_id != "lost"}
    return replace(decision, choices=choices) if jobs else decision


GRIDS = table({("cpu", (1,)): 1.0, ("cpu", (1, 1)): 1.0})


def replayed(plant: Plant) -> None:
    jobs = [job("a", 0.0, 10), job("b", 0.0, 10), job("lost", 1.0, 10), job("wide", 50.0, 10, count=2)]
    replay = Replay(shape=shape(("cpu", 1, 4)), policy=Planted(plant=plant), grids=GRIDS, costs=FREE)
    # Gathered, so that two jobs start in one decision.
    replace(replay, config=replace(replay.config, decide_after_s=0.0)).run(jobs)


def test_without_a_fault_the_replay_ends() -> None:
    replayed(lambda snapshot, decision: decision)


@pytest.mark.parametrize(
    ("plant", "says"),
    [(oversubscribing, "gives device"), (breaking_gangs, "do not make the group")],
)
def test_a_decision_that_cannot_be_carried_out_ends_the_replay(plant: Plant, says: str) -> None:
    with pytest.raises(PolicyFault, match=says) as caught:
        replayed(plant)
    assert caught.value.snapshot.waiting
    there_and_back = pickle.loads(pickle.dumps(caught.value))  # as from a process of a sweep
    assert (there_and_back.message, there_and_back.snapshot) == (caught.value.message, caught.value.snapshot)


def test_a_lost_job_ends_the_replay() -> None:
    with pytest.raises(InternalError, match="1 of 4 jobs never ended"):
        replayed(losing_jobs)


def forgetting(snapshot: Snapshot, decision: Decision) -> Decision:
    """The last job that could start is not spoken of."""
    gone = sorted(started(decision))[-1:]
    return replace(
        decision,
        choices={job_id: choice for job_id, choice in decision.choices.items() if job_id not in gone},
        reasons={job_id: reasons for job_id, reasons in decision.reasons.items() if job_id not in gone},
    )


@pytest.mark.parametrize("plant", [oversubscribing, breaking_gangs, forgetting])
def test_random_snapshots_find_the_fault(plant: Plant) -> None:
    def breaks(case: tuple[object, Snapshot]) -> bool:
        decision = Planted(plant=plant).decide(case[1])
        devices = [device for choice in started(decision).values() for device in choice.allocation.device_ids]
        whole = all(choice.allocation.gpu_count == choice.group.gpu_count for choice in started(decision).values())
        return len(devices) != len(set(devices)) or not whole or bool(forgotten(case[1], decision))

    find(snapshots(), breaks, settings=settings(max_examples=2000, deadline=None, database=None))
