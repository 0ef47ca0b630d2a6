"""Values of work against the optima that are known, and what holds of them whatever the jobs."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arena.policies.priced.marginal_values import Curve, Worker, concave, marginal_values

sized = settings(max_examples=80, deadline=None)
SHARES = 1_000


def power_curve(power: float, scale: float = 1.0) -> Curve:
    """Speed-up share ** power at a thousand shares of the machine."""
    return tuple((k / SHARES, scale * (k / SHARES) ** power) for k in range(1, SHARES + 1))


def worker(steps: float, curve: Curve, weight: float = 1.0) -> Worker:
    return Worker(weight=weight, remaining_steps=steps, curve=curve)


@pytest.mark.parametrize("power", [0.5, 0.7, 0.9])
def test_it_is_the_closed_form_of_hesrpt(power: float):
    """The k-th largest job's coefficient in the optimal total flow time, with the machine's speed as unit."""
    sizes = np.linspace(20.0, 1.0, 20)
    values, _ = marginal_values([worker(size, power_curve(power)) for size in sizes])
    rank, root = np.arange(1, len(sizes) + 1), 1.0 / (1.0 - power)
    assert values == pytest.approx((rank**root - (rank - 1.0) ** root) ** (1.0 - power), rel=1e-3)


@sized
@given(
    weights=st.lists(st.floats(0.1, 10.0), min_size=1, max_size=8, unique=True),
    lengths=st.lists(st.floats(1.0, 1e4), min_size=8, max_size=8, unique=True),
)
def test_one_machine_serves_by_smiths_rule(weights: list[float], lengths: list[float]):
    """Where the heavier job is the shorter one: a step delays its own job and all that come after it."""
    jobs = [
        worker(steps, ((1.0, 1.0),), weight)
        for weight, steps in zip(sorted(weights), sorted(lengths, reverse=True), strict=False)
    ]
    values, price = marginal_values(jobs)
    assert values == pytest.approx(np.cumsum(sorted(weights)))
    assert price == pytest.approx(sum(weights))


@pytest.mark.parametrize("machines", [1, 2, 3, 5])
def test_shortest_first_on_identical_machines(machines: int):
    """One-GPU jobs: a step counts as often as there are jobs on its machine that end no sooner."""
    values, _ = marginal_values([worker(100.0 - at, ((1.0 / machines, 1.0),)) for at in range(13)])
    assert values == pytest.approx([1 + at // machines for at in range(13)])


curves = st.lists(st.tuples(st.floats(0.001, 1.0), st.floats(0.01, 100.0)), min_size=1, max_size=6).map(concave)
workers = st.builds(Worker, weight=st.floats(0.1, 10.0), remaining_steps=st.floats(1.0, 1e6), curve=curves)
crowds = st.lists(workers, min_size=1, max_size=10)


@sized
@given(one=workers)
def test_a_job_alone_runs_at_its_fastest(one: Worker):
    values, _ = marginal_values([one])
    assert values == [pytest.approx(one.weight / one.curve[-1][1])]


@sized
@given(jobs=crowds)
def test_no_step_is_worth_less_than_to_a_job_alone(jobs: list[Worker]):
    values, price = marginal_values(jobs)
    assert price >= 0.0
    for value, job in zip(values, jobs, strict=True):
        assert value >= job.weight / job.curve[-1][1] * (1 - 1e-9)


@sized
@given(jobs=crowds, factor=st.floats(0.1, 10.0))
def test_values_scale_with_all_weights(jobs: list[Worker], factor: float):
    values, price = marginal_values(jobs)
    scaled, its_price = marginal_values([replace(job, weight=factor * job.weight) for job in jobs])
    assert scaled == pytest.approx([factor * value for value in values], rel=1e-6)
    assert its_price == pytest.approx(factor * price, rel=1e-6, abs=1e-9)


@sized
@given(jobs=crowds, data=st.data())
def test_the_unit_of_work_is_everybodys_own(jobs: list[Worker], data: st.DataObject):
    """A job whose steps are cut in two has twice as many, twice as fast, each worth half."""
    units = data.draw(st.lists(st.sampled_from([0.125, 0.5, 1.0, 4.0]), min_size=len(jobs), max_size=len(jobs)))
    other = [
        replace(
            job,
            remaining_steps=job.remaining_steps * unit,
            curve=tuple((share, speed * unit) for share, speed in job.curve),
        )
        for job, unit in zip(jobs, units, strict=True)
    ]
    values, price = marginal_values(jobs)
    changed, its_price = marginal_values(other)
    assert [value * unit for value, unit in zip(changed, units, strict=True)] == pytest.approx(values, rel=1e-6)
    assert its_price == pytest.approx(price, rel=1e-6, abs=1e-9)


@sized
@given(lengths=st.lists(st.floats(1.0, 1e4), min_size=1, max_size=8, unique=True), data=st.data())
def test_less_weight_is_never_worth_more(lengths: list[float], data: st.DataObject):
    """Of one job among others with the same speed-up; its own value and theirs fall or stay."""
    curve = data.draw(curves)
    at = data.draw(st.integers(0, len(lengths) - 1))
    jobs = [worker(steps, curve) for steps in lengths]
    lighter = [replace(job, weight=job.weight * (0.5 if index == at else 1.0)) for index, job in enumerate(jobs)]
    before, after = marginal_values(jobs)[0], marginal_values(lighter)[0]
    assert after[at] <= before[at] * (1 + 1e-9)


@sized
@given(jobs=crowds, other=workers)
def test_a_machine_with_more_jobs_is_worth_no_less(jobs: list[Worker], other: Worker):
    """To a job that ends last nothing changes when others come that end before it."""
    last = replace(other, remaining_steps=1e12)
    alone, _ = marginal_values([last])
    assert marginal_values([*jobs, last])[0][-1] == pytest.approx(alone[0], rel=1e-9)


@sized
@given(points=st.lists(st.tuples(st.floats(0.001, 1.0), st.floats(0.01, 100.0)), min_size=1, max_size=12))
def test_the_least_concave_curve_lies_above_all_points(points: list[tuple[float, float]]):
    curve = concave(points)
    assert set(curve) <= set(points)
    corners = [(0.0, 0.0), *curve]
    slopes = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in pairwise(corners)]
    assert all(slope > 0 for slope in slopes)
    assert all(later <= earlier * (1 + 1e-9) for earlier, later in pairwise(slopes))
    for share, speed in points:
        top = np.interp(share, [corner[0] for corner in corners], [corner[1] for corner in corners])
        assert speed <= top * (1 + 1e-9)


def test_a_job_that_takes_no_room_gives_none():
    """It runs on devices that nobody else could have, as on a node that drains."""
    values, price = marginal_values([worker(10.0, ((0.0, 2.0),)), worker(5.0, ((1.0, 1.0),))])
    assert values == pytest.approx([0.5, 1.0])
    assert price == pytest.approx(1.0)


def test_a_job_larger_than_the_machine_is_valued_as_if_it_ran_alone():
    values, price = marginal_values([worker(10.0, ((3.0, 2.0),))])
    assert values == pytest.approx([0.5])
    assert price >= 0.0
