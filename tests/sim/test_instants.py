"""Steps that are left out change nothing: the tick that would only decide, the answer to who asks for a known grid."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arena.domain.commands import BuildGrid
from arena.domain.job import JobId, JobSpec
from arena.domain.records import HistoryEntry
from arena.engine.engine import Engine
from arena.engine.ports import Step
from arena.planner.tables import TableGrids
from arena.policies.registry import make_policy
from arena.sim.costs import ConstantRestart, SimCosts
from arena.sim.replay import REPLAY_CONFIG, Replay, ReplayJob
from arena.sim.world import Fate
from tests.builders import shape
from tests.sim.test_replay import FREE, WORKLOAD, table

CLUSTER = shape(("a", 4, 2), ("b", 2, 2))
GRIDS: TableGrids = table(
    {("a", (1,)): 4.0, ("a", (2,)): 2.0, ("a", (4,)): 1.0, ("a", (4, 4)): 0.75, ("b", (1,)): 8.0, ("b", (2,)): 5.0}
)
SLOW = SimCosts(start_s=1.0, restart=ConstantRestart(first_s=2.0, again_s=3.0), save_s=1.0, exit_s=0.0, profile_s=2.0)
OPTIONS = {"tiresias": {"first_gpu_s": 20.0}}


def jobs(seed: int) -> list[ReplayJob]:
    """Jobs of whole seconds, so that much happens at once: some malleable, some killed, some that fail."""
    rng, made = random.Random(seed), []
    for index in range(rng.randint(1, 12)):
        steps = rng.randint(0, 12)
        kind = rng.choice(["rigid", "malleable"])
        gpus = {"count": rng.choice([1, 2, 4, 8])} if kind == "rigid" else {"min": 1, "max": 8}
        told = {"steps": max(1, steps + rng.choice([0, 0, -2, 5]))}
        spec = JobSpec.model_validate(
            {"name": f"j{index}", "kind": kind, "workload": WORKLOAD, "stop": told, "gpus": gpus}
        )
        fate = Fate(step_count=steps, is_cancelled=rng.random() < 0.2, is_failed=rng.random() < 0.1)
        at_s = float(rng.randint(0, 8))
        made.append(ReplayJob(job_id=JobId(f"j{index}"), submitted_at_s=at_s, spec=spec, fate=fate))
    return made


def told(
    policy: str, made: list[ReplayJob], costs: SimCosts
) -> tuple[list[object], list[HistoryEntry], list[object], int]:
    """All that agents were commanded, what was written and decided, with its instants, and in how many steps."""
    steps: list[Step] = []
    replay = Replay(
        shape=CLUSTER,
        policy=make_policy(policy, OPTIONS.get(policy, {})),
        grids=GRIDS,
        costs=costs,
        config=replace(REPLAY_CONFIG, decide_after_s=0.0),
        check=True,
    )
    replay.run(made, watch=steps.append)
    commands = [(step.at_s, one) for step in steps for one in step.commands if not isinstance(one, BuildGrid)]
    entries = [entry for step in steps for entry in step.history]
    decisions = [(step.at_s, step.decision) for step in steps if step.decision is not None]
    return list(commands), entries, list(decisions), len(steps)


POLICIES = ("fcfs", "fcfs-easy", "srtf", "tiresias", "elastic", "arena")


@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), costs=st.sampled_from([FREE, SLOW]))
def test_the_last_event_of_an_instant_decides_as_a_tick_would(policy: str, seed: int, costs: SimCosts) -> None:
    made = jobs(seed)
    *within, step_count = told(policy, made, costs)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Engine, "_is_instant_over", lambda *_: False)
        *by_tick, ticked_count = told(policy, made, costs)
    assert within == by_tick
    assert step_count < ticked_count


@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), start_s=st.sampled_from([0.0, 1.0]))
def test_a_job_that_comes_with_its_grid_fares_as_one_that_asks_for_it(policy: str, seed: int, start_s: float) -> None:
    """But for jobs of one instant, whose submissions and grids are written job by job."""
    made, costs = jobs(seed), replace(FREE, start_s=start_s)
    commands, entries, decisions, step_count = told(policy, made, costs)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Replay, "_planned", lambda *_: None)
        asked_commands, asked_entries, asked_decisions, asked_count = told(policy, made, costs)
    assert (commands, decisions) == (asked_commands, asked_decisions)
    assert by_instant(entries) == by_instant(asked_entries)
    assert step_count == asked_count - (len(made) - 1)  # the first one is looked at before the nodes are there


def by_instant(entries: list[HistoryEntry]) -> list[tuple[float, str, str]]:
    """Entries without their order within an instant."""
    return sorted((entry.at_s, str(entry.job_id), repr(replace(entry, index=0))) for entry in entries)
