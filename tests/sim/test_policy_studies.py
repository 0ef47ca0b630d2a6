"""Studies of policies: what they draw, the bounds they state, and that a small one runs as it says."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arena.domain.allocation import GpuGroup
from arena.domain.cluster import ClusterShape, NodePool
from arena.domain.job import JobId, WorkloadSpec
from arena.domain.reason import Reason
from arena.domain.trace import TraceJob
from arena.planner.tables import TableGrids
from arena.policies.base import Decision, Snapshot
from arena.policies.choose import choice_of, choose_cell
from arena.policies.lengths import steps_done
from arena.sim.study import Runner
from experiments.policy.arrivals import Drawn, repeated, shuffled
from experiments.policy.bounds import TimedCell, Work, bound_of, gpu_counts_of, srpt_mean_s, works_of
from experiments.policy.cases import Case, Setting, case_of
from experiments.policy.hesrpt import PowerGrids, batch, optimum_s
from experiments.policy.hesrpt_form import optimal_mean_flow_s, shares
from experiments.policy.loads import bounds_of
from experiments.policy.rubick import fastest_by_group
from experiments.policy.runs import Keeping, figures_of, most_within, studied

WORKLOAD = WorkloadSpec(name="model", global_batch=8)
TIMES = {GpuGroup.of("gpu", [count]): 1.0 / count**0.8 for count in (1, 2, 4)}
GRIDS = TableGrids(name="small", iter_time_s={WORKLOAD: TIMES})
SHAPE = ClusterShape(pools=(NodePool(gpu_type="gpu", zone="default", gpus_per_node=4, node_count=2),))


def jobs_at(*instants: float, step_count: int = 1000) -> tuple[TraceJob, ...]:
    return tuple(
        TraceJob(
            job_id=JobId(f"job-{row}"),
            row=row,
            submitted_at_s=at_s,
            gpu_count=2,
            step_count=step_count,
            workload=WORKLOAD,
            gpu_type="gpu",
        )
        for row, at_s in enumerate(instants, start=2)
    )


def case(setting: Setting, seed: int = 0, jobs: tuple[TraceJob, ...] | None = None) -> Case:
    drawn = Drawn(jobs=jobs or jobs_at(0.0, 100.0, 400.0, 1000.0), sha256={}, notes=())
    return case_of(drawn, GRIDS, SHAPE, setting=setting, seed=seed)


def work(at_s: float, gpu_seconds: float) -> Work:
    return Work(submitted_at_s=at_s, cells=(TimedCell(gpu_counts=(1,), time_s=gpu_seconds),))


def test_srpt_by_hand() -> None:
    # On 2 GPUs 10 and 2 s of work; the short one comes at 1 s and goes first: it takes 2 s, the long one 12 s.
    assert srpt_mean_s([work(0.0, 20.0), work(1.0, 4.0)], gpu_count=2) == pytest.approx((12.0 + 2.0) / 2)
    # One that comes with as much left as the running one has changes nothing; a gap leaves the machine idle.
    assert srpt_mean_s([work(0.0, 4.0), work(10.0, 4.0)], gpu_count=2) == pytest.approx(2.0)


def test_the_larger_bound_holds() -> None:
    bound = bound_of([work(0.0, 20.0), work(0.0, 20.0)], gpu_count=2)
    assert bound.alone_s == pytest.approx(20.0)
    assert bound.pooled_s == pytest.approx((10.0 + 20.0) / 2)
    assert bound.mean_jct_s == bound.alone_s
    assert replace(bound, priced_s=21.0).mean_jct_s == 21.0


def test_a_job_is_bounded_by_its_fastest_and_its_cheapest_group() -> None:
    [first, *_] = works_of(case(Setting(restart_s=60.0)))
    assert first.alone_s == pytest.approx(60.0 + 1000 / 4**0.8)
    assert first.gpu_seconds == pytest.approx(60.0 + 1000.0)
    assert gpu_counts_of(case(Setting())) == (8,)
    assert {cell.gpu_counts for cell in first.cells} == {(1,), (2,), (4,)}


@given(
    st.lists(st.tuples(st.floats(0, 1e4), st.floats(1, 1e4)), min_size=1, max_size=8),
    st.integers(1, 16),
)
def test_srpt_is_below_first_come_first_served_on_the_same_machine(
    jobs: list[tuple[float, float]], gpu_count: int
) -> None:
    now_s, flow_s = 0.0, []
    for at_s, gpu_seconds in sorted(jobs):
        now_s = max(now_s, at_s) + gpu_seconds / gpu_count
        flow_s.append(now_s - at_s)
    works = [work(at_s, gpu_seconds) for at_s, gpu_seconds in jobs]
    assert srpt_mean_s(works, gpu_count=gpu_count) <= np.mean(flow_s) * (1 + 1e-9)


def test_hesrpt_by_hand() -> None:
    # p = 1/2: the smaller of two alike gets 3/4 of the machine and ends after 1 / sqrt(3/4); the other has done half as
    # much as that by then and goes on alone.
    first_s = 1 / 0.75**0.5
    second_s = first_s + 1 - 0.25**0.5 * first_s
    expected = (first_s + second_s) / 2
    assert shares(2, exponent=0.5) == pytest.approx((0.25, 0.75))
    assert optimal_mean_flow_s([1.0, 1.0], exponent=0.5, gpu_count=1) == pytest.approx(expected)
    assert optimal_mean_flow_s([8.0], exponent=0.5, gpu_count=4) == pytest.approx(4.0)


def simulated_mean_flow_s(sizes: list[float], *, exponent: float, gpu_count: int) -> float:
    """Return the mean flow time of these shares, from one departure to the next; the closed form's oracle."""
    left = sorted(sizes, reverse=True)
    now_s, flow_s = 0.0, 0.0
    while left:
        speeds = [(share * gpu_count) ** exponent for share in shares(len(left), exponent=exponent)]
        spent_s = min(size / speed for size, speed in zip(left, speeds, strict=True))
        now_s += spent_s
        left = [size - speed * spent_s for size, speed in zip(left, speeds, strict=True)]
        gone = sum(size <= 1e-9 * max(sizes) for size in left)
        flow_s += gone * now_s
        left = left[: len(left) - gone]
    return flow_s / len(sizes)


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=12), st.sampled_from([0.3, 0.5, 0.7, 0.9]))
def test_the_closed_form_is_what_its_shares_give(sizes: list[float], exponent: float) -> None:
    closed = optimal_mean_flow_s(sizes, exponent=exponent, gpu_count=1000)
    assert closed == pytest.approx(simulated_mean_flow_s(sizes, exponent=exponent, gpu_count=1000), rel=1e-5)


@pytest.mark.parametrize("is_one_node", [True, False])
def test_no_policy_beats_the_closed_form(is_one_node: bool) -> None:
    grids = PowerGrids(exponent=0.5, gpu_count=16, is_one_node=is_one_node)
    one = case_of(batch(5, 1), grids, grids.shape(), setting=Setting(restart_s=0.0), seed=1)
    study = studied([one], ["elastic"], keeping=Keeping(), process_count=1)
    [flow_s] = study.values("elastic", "whole", "avg_jct_s")
    assert 1.0 <= flow_s / optimum_s(one, grids) < 1.2


@pytest.mark.slow
@pytest.mark.parametrize("exponent", [0.5, 0.7, 0.9])
def test_the_default_policy_is_within_a_hundredth_of_the_closed_form(exponent: float) -> None:
    grids = PowerGrids(exponent=exponent, gpu_count=1000)
    one = case_of(batch(12, 2), grids, grids.shape(), setting=Setting(restart_s=0.0), seed=2)
    study = studied([one], ["arena"], keeping=Keeping(), process_count=1)
    [flow_s] = study.values("arena", "whole", "avg_jct_s")
    assert flow_s / optimum_s(one, grids) < 1.01


@dataclass(frozen=True)
class OptimalShares:
    """Gives heSRPT's shares in whole GPUs, smallest remaining job first; told the true lengths."""

    exponent: float
    gpu_count: int
    name: str = "optimal-shares"
    version: str = "1"

    def decide(self, snapshot: Snapshot) -> Decision:
        jobs = [job_id for job_id in snapshot.grids if job_id in snapshot.jobs]
        left = {job_id: (snapshot.jobs[job_id].spec.step_limit or 0) - steps_done(snapshot, job_id) for job_id in jobs}
        order = sorted(jobs, key=lambda job_id: (left[job_id], job_id))
        wanted = reversed(shares(len(order), exponent=self.exponent))
        capacity, choices = snapshot.capacity, {}
        for holding in snapshot.holding.values():
            capacity = capacity.restore(holding.allocation) if holding.movable else capacity
        for job_id, share in zip(order, wanted, strict=True):
            holding = snapshot.holding.get(job_id)
            count = min(round(share * self.gpu_count), capacity.free_count())
            if holding is not None and not holding.movable:
                continue
            if count == 0:
                choices[job_id] = None
                continue
            cell = snapshot.grids[job_id].cells[count - 1]
            found = choose_cell(snapshot, job_id, [cell], capacity, holding.allocation if holding else None)
            assert not isinstance(found, Reason)
            capacity = capacity.take_all(found[1])
            if holding is None or holding.group != cell.group:
                choices[job_id] = choice_of(*found)
        choices = {job_id: choice for job_id, choice in choices.items() if choice or job_id in snapshot.holding}
        return Decision(choices=choices)


@pytest.mark.parametrize("exponent", [0.5, 0.9])
def test_the_optimal_shares_reach_the_closed_form_through_the_engine(exponent: float) -> None:
    grids = PowerGrids(exponent=exponent, gpu_count=1000)
    one = case_of(batch(12, 1), grids, grids.shape(), setting=Setting(restart_s=0.0), seed=1)
    result = Runner(scenario=one.scenario).run(OptimalShares(exponent, 1000), label="optimal-shares")
    ratio = result.whole.summary.avg_jct_s / optimum_s(one, grids)
    assert 1.0 - 1e-6 <= ratio < 1.002


def test_a_draw_keeps_arrivals_and_jobs_and_differs_from_the_next() -> None:
    jobs = repeated(jobs_at(5.0, 10.0, 30.0), 3)
    first, second = shuffled(jobs, 1), shuffled(jobs, 2)
    assert [job.submitted_at_s for job in first] == [job.submitted_at_s for job in jobs]
    assert {job.job_id for job in first} == {job.job_id for job in jobs}
    assert len({job.row for job in jobs}) == len(jobs)
    assert [job.job_id for job in first] != [job.job_id for job in second]
    assert shuffled(jobs, 1) == first


def test_copies_follow_each_other_at_the_mean_gap() -> None:
    assert [job.submitted_at_s for job in repeated(jobs_at(0.0, 10.0, 20.0), 2)] == [0.0, 10.0, 20.0, 30.0, 40.0, 50.0]


@pytest.mark.parametrize("counts_least", [False, True])
def test_a_load_counts_what_it_says(counts_least: bool) -> None:
    jobs = case(Setting(load=0.5, counts_least=counts_least)).scenario.jobs
    gpu_seconds = 4 * 1000.0 if counts_least else 4 * 1000 * 2 / 2**0.8
    assert jobs[-1].job.submitted_at_s == pytest.approx(gpu_seconds / (0.5 * 8))


def test_predicted_lengths_differ_by_draw_alone() -> None:
    told = [case(Setting(lengths="predicted"), seed).scenario.lengths.factor_by_job for seed in (1, 1, 2)]
    assert told[0] == told[1] != told[2]
    assert not case(Setting(lengths="none")).scenario.lengths.is_told


def test_the_fastest_measured_plan_is_a_cell() -> None:
    rows = [
        {"exec_plan": "ga", "placement": "44", "iter_time": "2.0"},
        {"exec_plan": "zero-dp", "placement": "44", "iter_time": "1.5"},
        {"exec_plan": "gc", "placement": "8", "iter_time": "0"},
    ]
    assert fastest_by_group(rows) == {GpuGroup.of("a800", [4, 4]): 1.5}


def test_most_moves_within_an_hour() -> None:
    assert most_within([0.0, 100.0, 3600.0, 3601.0, 9000.0], 3600.0) == 3
    assert most_within([], 3600.0) == 0


def test_a_study_compares_all_draws_and_goes_on_where_it_was(tmp_path: Path) -> None:
    cases = [case(Setting(lengths="predicted"), seed) for seed in (0, 1)]
    keeping = Keeping(directory=tmp_path, trusted=frozenset({"srtf"}))
    study = studied(cases, ["srtf", "elastic"], keeping=keeping, process_count=1)
    [quick, _], [bound, _] = bounds_of(cases, is_priced=False), bounds_of(cases, is_priced=True)
    assert quick.priced_s is None
    assert bound.priced_s is not None
    first, second = figures_of(study, bound_s=bound.priced_s)
    assert first["ratios_to_first"]["avg_jct_s"]["value"] == 1.0
    assert second["avg_over_bound"] >= 1.0
    assert second["means"]["avg_jct_s"] == pytest.approx(np.mean([one["avg_jct_s"] for one in second["draws"]]))
    assert len(second["draws"]) == 2

    again = studied(cases, ["srtf", "elastic"], keeping=keeping, process_count=1)
    assert len(list((tmp_path / "runs").iterdir())) == 4
    # The time that a run took is never the same twice.
    assert again.values("elastic", "whole", "cpu_s") == study.values("elastic", "whole", "cpu_s")
