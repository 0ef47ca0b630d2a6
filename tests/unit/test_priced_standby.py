"""That others will want what few want now: how much it counts under ``arena``, and what it does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from arena.domain.history import LengthHistory
from arena.domain.job import JobId
from arena.domain.records import JobState
from arena.policies.base import Snapshot
from arena.policies.priced.changes import ChangeRules, standby
from arena.policies.priced.market import Tables, market_of
from arena.policies.registry import make_policy
from tests.builders import cell, chosen, grid_of, job_record, node_info, scaling_grid, snapshot_of, train_spec

GRID = scaling_grid("cpu", [(1,), (2,), (4,), (8,)], power=0.5)
RULES = ChangeRules(standby=1.0, shrink=4.0, horizon_s=600.0)


def past(*jobs: tuple[float, float]) -> LengthHistory:
    """Jobs by when they came and when they ended."""
    found = LengthHistory()
    for at, (came_s, ended_s) in enumerate(jobs):
        job = job_record(f"h{at}", submitted_at_s=came_s, ended_at_s=ended_s, state=JobState.SUCCEEDED)
        found = found.after(job)
    return found


def waiting(*came_s: float, now_s: float, history: LengthHistory | None = None, restart_s: float = 150.0) -> Snapshot:
    jobs = {f"j{at}": (train_spec(f"j{at}", stop={"steps": 10_000}), GRID) for at in range(len(came_s))}
    return arrived(snapshot_of([node_info("n1", gpus=8)], jobs, now_s=now_s, restart_s=restart_s), came_s, history)


def arrived(seen: Snapshot, came_s: Sequence[float], history: LengthHistory | None) -> Snapshot:
    records = {
        JobId(f"j{at}"): replace(seen.jobs[JobId(f"j{at}")], submitted_at_s=at_s) for at, at_s in enumerate(came_s)
    }
    return replace(seen, jobs=records, history=history or LengthHistory())


def counted(snapshot: Snapshot, rules: ChangeRules = RULES) -> float:
    return standby(snapshot, market_of(snapshot, Tables()), rules)


def test_it_is_the_mean_number_of_jobs_over_that_of_today() -> None:
    """Four were here for 250 s each of the last 1,000 s, and the two of now for 500 and 300: 1.8 on average, to 2.

    Two came at instants of their own, so one of two instants followed another. A start is a quarter of what a change
    lasts, so to give back, which weighs four times, is as dear as the change.
    """
    ended = past((0.0, 250.0), (100.0, 350.0), (200.0, 450.0), (300.0, 550.0))
    seen = waiting(500.0, 700.0, now_s=1_000.0, history=ended)
    assert counted(seen) == pytest.approx(0.5 * 1.8 / 2.0)
    assert counted(seen, replace(RULES, standby=0.25)) == pytest.approx(0.25 * 0.5 * 1.8 / 2.0)


@pytest.mark.parametrize(("restart_s", "share"), [(0.0, 0.0), (75.0, 0.5), (150.0, 1.0), (600.0, 1.0)])
def test_who_gives_back_for_nothing_pays_nothing(restart_s: float, share: float) -> None:
    seen = waiting(500.0, 700.0, now_s=1_000.0, restart_s=restart_s)
    dear = waiting(500.0, 700.0, now_s=1_000.0)
    assert counted(seen) == pytest.approx(share * counted(dear))


def test_nobody_is_expected_after_a_batch_nor_before_anything_is_known() -> None:
    assert counted(waiting(0.0, 0.0, 0.0, now_s=1_000.0)) == 0.0
    assert counted(waiting(0.0, now_s=0.0)) == 0.0


def test_fairness_has_prices_of_its_own() -> None:
    assert counted(waiting(500.0, 700.0, now_s=1_000.0), replace(RULES, fairness=1.0)) == 0.0


def test_where_many_are_here_as_a_rule_nobody_takes_all_that_is_free() -> None:
    """The job comes to an idle node on which ten were at work at a time until now."""
    busy = past(*((10.0 * at, 10.0 * at + 5_000.0) for at in range(100)))
    calm = past(*((60.0 * at, 60.0 * at + 30.0) for at in range(100)))
    taken = [
        sum(
            chosen(
                make_policy("arena").decide(waiting(5_900.0, 5_990.0, now_s=6_000.0, history=one)), name
            ).group.gpu_count
            for name in ("j0", "j1")
        )
        for one in (busy, calm)
    ]
    assert taken[0] < taken[1] == 8


@settings(max_examples=60)
@given(
    came_s=st.lists(st.floats(0.0, 9_000.0), min_size=1, max_size=8),
    ended=st.lists(st.tuples(st.floats(0.0, 5_000.0), st.floats(1.0, 5_000.0)), max_size=40),
    restart_s=st.floats(0.0, 2_000.0),
    weight=st.floats(0.0, 1.0),
    priorities=st.lists(st.sampled_from((-10, -1, 0, 1, 10)), min_size=8, max_size=8),
)
def test_it_keeps_nobody_waiting_who_could_have_what_is_free(
    came_s: list[float], ended: list[tuple[float, float]], restart_s: float, weight: float, priorities: list[int]
) -> None:
    """A job's fewest GPUs bring more than they are usually worth: nobody waits beside a GPU that nobody takes."""
    history = past(*((at_s, at_s + took_s) for at_s, took_s in ended))
    seen = waiting(*came_s, now_s=10_000.0, history=history, restart_s=restart_s)
    jobs = {
        job_id: replace(job, spec=job.spec.model_copy(update={"priority": priority}))
        for (job_id, job), priority in zip(seen.jobs.items(), priorities, strict=False)
    }
    seen = replace(seen, jobs=jobs)
    choices = make_policy("arena", {"standby": weight}).decide(seen).choices
    taken = sum(choice.group.gpu_count for choice in choices.values() if choice is not None)
    assert len(choices) == len(came_s) or taken == 8


@settings(max_examples=100)
@example(
    came_s=[0.0, 0.0, 0.0, 1.0],
    times_s=[
        {("a", 1): 1.0},
        {("a", 1): 1.0},
        {("a", 1): 1.0, ("a", 2): 1.0, ("b", 1): 0.5},
        {("a", 1): 0.5, ("b", 2): 4.0, ("b", 4): 1.0},
    ],
    ended=[],
    restart_s=74.0,
)
@given(
    came_s=st.lists(st.floats(0.0, 9_000.0), min_size=1, max_size=4),
    times_s=st.lists(
        st.dictionaries(
            st.sampled_from((("a", 1), ("a", 2), ("b", 1), ("b", 2), ("b", 4))), st.floats(0.1, 10.0), min_size=1
        ),
        min_size=4,
        max_size=4,
    ),
    ended=st.lists(st.tuples(st.floats(0.0, 5_000.0), st.floats(1.0, 5_000.0)), max_size=40),
    restart_s=st.floats(0.0, 2_000.0),
)
def test_nor_where_grids_are_odd_and_one_type_is_poor_for_a_job(
    came_s: list[float],
    times_s: list[dict[tuple[str, int], float]],
    ended: list[tuple[float, float]],
    restart_s: float,
) -> None:
    """Whatever the grids: who could start on what is left over does."""
    grids = [grid_of(*(cell(kind, (n,), time_s) for (kind, n), time_s in sorted(one.items()))) for one in times_s]
    jobs = {f"j{at}": (train_spec(f"j{at}", stop={"steps": 10_000}), grids[at]) for at in range(len(came_s))}
    nodes = [node_info("n1", gpus=2, gpu_type="a"), node_info("n2", gpus=4, gpu_type="b")]
    history = past(*((at_s, at_s + took_s) for at_s, took_s in ended))
    seen = arrived(snapshot_of(nodes, jobs, now_s=10_000.0, restart_s=restart_s), came_s, history)
    choices = make_policy("arena").decide(seen).choices
    free = {"a": 2, "b": 4}
    for choice in choices.values():
        for part in choice.group.parts if choice is not None else ():
            free[part.gpu_type] -= sum(part.node_counts)
    waits = [at for at in range(len(came_s)) if f"j{at}" not in choices]
    assert not [at for at in waits if any(n <= free[kind] for kind, n in times_s[at])]
