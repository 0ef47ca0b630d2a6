"""The allocation problem against every choice there is, and both ways to price it against each other."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arena.policies.priced.allocation import Answer, Effort, solve
from arena.policies.priced.columns import NONE, Columns, Floats, Ints, priced_at
from arena.policies.priced.linear import best_prices

sized = settings(max_examples=60, deadline=None)
EXACT = Effort(gap=1e-6, nodes=10_000)
BY_CUTS = replace(EXACT, whole_columns_max=0)
EPS = 1e-6


@st.composite
def problems(
    draw: st.DrawFn, *, jobs_max: int = 4, columns_max: int = 3, values: st.SearchStrategy[float] | None = None
) -> tuple[Columns, Floats]:
    """Few rows, some of nothing; columns that fit and others that never do; values that are negative or equal."""
    values = st.sampled_from([-1.0, 0.0, 1.0, 1.0, 2.0, 3.0]) | st.floats(-5.0, 50.0) if values is None else values
    rows = draw(st.integers(1, 3))
    counts = draw(st.lists(st.integers(1, columns_max), min_size=1, max_size=jobs_max))
    usage = st.lists(st.sampled_from([0.0, 1.0, 1.0, 2.0, 4.0, 8.0]), min_size=rows, max_size=rows)
    total = sum(counts)
    columns = Columns(
        job=np.repeat(np.arange(len(counts)), counts),
        value=np.array(draw(st.lists(values, min_size=total, max_size=total))),
        usage=np.array(draw(st.lists(usage, min_size=total, max_size=total))),
    )
    supply = draw(st.lists(st.sampled_from([0.0, 1.0, 3.0, 4.0, 7.0]), min_size=rows, max_size=rows))
    return columns, np.array(supply)


@st.composite
def crowds(draw: st.DrawFn) -> tuple[Columns, Floats]:
    """Tens of jobs with speed-ups over a few pools, more or less than there is room for."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    jobs, pools = draw(st.integers(5, 60)), draw(st.integers(1, 4))
    sizes = 2.0 ** np.arange(draw(st.integers(1, 5)))
    pool, size = (found.ravel() for found in np.meshgrid(np.arange(pools), sizes, indexing="ij"))
    usage = np.zeros((len(size), pools))
    usage[np.arange(len(size)), pool] = size
    power, worth = rng.uniform(0.5, 1.0, jobs), rng.lognormal(0.0, 1.5, jobs)
    speed = rng.uniform(0.3, 3.0, (jobs, pools))
    value = worth[:, None] * speed[:, pool] * size[None, :] ** power[:, None]
    columns = Columns(job=np.repeat(np.arange(jobs), len(size)), value=value.ravel(), usage=np.tile(usage, (jobs, 1)))
    return columns, rng.integers(0, 2 * jobs, pools).astype(np.float64)


def flat_guess(columns: Columns, supply: Floats) -> Floats:
    """Prices of the right order of size, known of nothing."""
    return np.full(len(supply), max(float(columns.value.max()), 0.0) / max(float(supply.sum()), 1.0))


def solved(case: tuple[Columns, Floats], effort: Effort = EXACT, incumbents: tuple[Ints, ...] = ()) -> Answer:
    columns, supply = case
    return solve(columns, supply, guess=flat_guess(columns, supply), incumbents=incumbents, effort=effort)


def optimum(columns: Columns, supply: Floats) -> float:
    """The best of all choices."""
    options = [[NONE, *np.flatnonzero(columns.job == job).tolist()] for job in range(columns.job_count)]
    every = (np.array(choice, dtype=np.intp) for choice in product(*options))
    return max(columns.worth(choice) for choice in every if (columns.used(choice) <= supply + EPS).all())


def assert_sound(columns: Columns, supply: Floats, answer: Answer) -> None:
    """The choice is one, it fits, it is worth what is said, and no more than the bound."""
    picked = np.flatnonzero(answer.chosen >= 0)
    assert len(answer.chosen) == columns.job_count
    assert (columns.job[answer.chosen[picked]] == picked).all()
    assert (columns.used(answer.chosen) <= supply + EPS).all()
    assert answer.value == pytest.approx(columns.worth(answer.chosen), rel=1e-9, abs=1e-12)
    assert answer.value <= answer.priced.bound + EPS * max(1.0, abs(answer.priced.bound))
    assert (answer.priced.prices >= 0.0).all()


@pytest.mark.parametrize("effort", [EXACT, BY_CUTS])
@sized
@given(case=problems())
def test_it_is_the_best_of_all_choices(effort: Effort, case: tuple[Columns, Floats]):
    columns, supply = case
    answer, best = solved(case, effort), optimum(columns, supply)
    assert_sound(columns, supply, answer)
    assert answer.priced.bound >= best - EPS * max(1.0, best)
    assert answer.value == pytest.approx(best, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("whole_columns_max", [0, 4_000])
@sized
@given(case=problems(jobs_max=5))
def test_little_effort_still_gives_a_sound_answer(whole_columns_max: int, case: tuple[Columns, Floats]):
    columns, supply = case
    answer = solved(case, Effort(exchanges=0, nodes=0, whole_columns_max=whole_columns_max))
    assert_sound(columns, supply, answer)
    assert answer.value <= optimum(columns, supply) + EPS


@sized
@given(case=crowds())
def test_both_ways_to_price_agree(case: tuple[Columns, Floats]):
    columns, supply = case
    guess = flat_guess(columns, supply)
    whole = best_prices(columns, supply, guess, whole_columns_max=len(columns.job))
    cuts = best_prices(columns, supply, guess, whole_columns_max=0)
    assert whole.bound <= cuts.bound * (1 + EPS) + EPS  # the whole relaxation is exact
    assert cuts.bound <= whole.bound * (1 + 5e-3) + EPS  # from a guess that knows nothing


@sized
@given(case=crowds())
def test_a_crowd_is_within_the_gap_that_was_asked_for_or_nodes_ran_out(case: tuple[Columns, Floats]):
    columns, supply = case
    answer = solved(case, Effort(gap=0.002, nodes=10_000))
    assert_sound(columns, supply, answer)
    exact = solved(case, EXACT)
    assert answer.value >= exact.value * (1 - 0.002) - EPS
    assert exact.priced.bound >= answer.value - EPS


@sized
@given(case=crowds(), data=st.data())
def test_the_order_of_jobs_changes_nothing_beyond_the_gap(case: tuple[Columns, Floats], data: st.DataObject):
    columns, supply = case
    order = np.array(data.draw(st.permutations(range(columns.job_count))))
    at = np.concatenate([np.flatnonzero(columns.job == job) for job in order])
    counts = np.bincount(columns.job)[order]
    other = Columns(job=np.repeat(np.arange(len(order)), counts), value=columns.value[at], usage=columns.usage[at])
    effort = Effort(gap=0.002, nodes=10_000)
    one, two = solved(case, effort), solved((other, supply), effort)
    assert one.value == pytest.approx(two.value, rel=0.0021, abs=EPS)
    assert one.priced.bound == pytest.approx(two.priced.bound, rel=1e-6, abs=EPS)


@sized
@given(case=problems(jobs_max=6, values=st.sampled_from([1.0, 2.0])))
def test_equal_values_give_the_same_answer_twice(case: tuple[Columns, Floats]):
    one, two = solved(case), solved(case)
    assert one.chosen.tolist() == two.chosen.tolist()
    assert one.priced.prices.tolist() == two.priced.prices.tolist()


@pytest.mark.parametrize("effort", [EXACT, BY_CUTS, Effort(), Effort(exchanges=0, nodes=0)])
@sized
@given(case=crowds(), seed=st.integers(0, 2**32 - 1))
def test_an_incumbent_is_never_made_worse(effort: Effort, case: tuple[Columns, Floats], seed: int):
    columns, supply = case
    incumbent = some_choice(columns, supply, seed)
    answer = solved(case, effort, incumbents=(incumbent,))
    assert_sound(columns, supply, answer)
    assert answer.value >= columns.worth(incumbent) * (1 - 1e-9)


def some_choice(columns: Columns, supply: Floats, seed: int) -> Ints:
    """Any choice that fits, of columns that come by chance."""
    chosen = np.full(columns.job_count, NONE, dtype=np.intp)
    for column in np.random.default_rng(seed).permutation(len(columns.job)).tolist():
        tried = chosen.copy()
        tried[columns.job[column]] = column
        if (columns.used(tried) <= supply).all():
            chosen = tried
    return chosen


@sized
@given(case=crowds())
def test_the_best_of_incumbents_that_tie_is_the_first(case: tuple[Columns, Floats]):
    columns, supply = case
    best = solved(case).chosen
    twin = Columns(  # every job twice over: the same columns again behind them
        job=np.repeat(np.arange(columns.job_count), 2 * np.bincount(columns.job)),
        value=np.concatenate([np.tile(columns.value[columns.job == job], 2) for job in range(columns.job_count)]),
        usage=np.concatenate([np.tile(columns.usage[columns.job == job], (2, 1)) for job in range(columns.job_count)]),
    )
    size = np.bincount(columns.job)
    later = np.where(best >= 0, best + np.cumsum(size), NONE)  # the second of the two, where there is a choice
    answer = solve(twin, supply, guess=flat_guess(twin, supply), incumbents=(later,), effort=Effort(gap=0.002))
    assert answer.chosen.tolist() == later.tolist()


@sized
@given(case=problems(jobs_max=6))
def test_prices_are_those_of_the_answers(case: tuple[Columns, Floats]):
    columns, supply = case
    priced = solved(case).priced
    again = priced_at(columns, supply, priced.prices)
    assert again.bound == priced.bound
    reduced = columns.value - columns.usage @ priced.prices
    for job in range(columns.job_count):
        own = np.flatnonzero(columns.job == job)
        assert priced.top[job] == own[np.argmax(reduced[own])]
        assert priced.profit[job] == pytest.approx(max(reduced[own].max(), 0.0))


@sized
@given(problem=crowds(), doublings=st.integers(0, 60), data=st.data(), effort=st.sampled_from([Effort(), EXACT]))
def test_nobody_waits_for_what_is_free_however_little_its_time_counts(
    problem: tuple[Columns, Floats], doublings: int, data: st.DataObject, effort: Effort
):
    columns, supply = problem
    dear = data.draw(st.sets(st.integers(0, columns.job_count - 1)))
    value = np.where(np.isin(columns.job, sorted(dear)), columns.value * 2.0**doublings, columns.value)
    columns = replace(columns, value=value)
    answer = solve(columns, supply, guess=flat_guess(columns, supply), effort=effort)
    fits = (columns.usage <= supply - columns.used(answer.chosen)).all(axis=1)
    assert not (fits & (answer.chosen < 0)[columns.job]).any()
