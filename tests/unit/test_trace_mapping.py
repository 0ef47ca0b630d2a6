"""Workloads by GPU-hours, parts of a trace, and arrivals for a wished load."""

from __future__ import annotations

import dataclasses
from itertools import pairwise

import pytest

from arena.domain.trace import TraceJob
from arena.errors import SpecError, UserError
from arena_traces.mapping import default_mapping, parse_mapping, uniform_number, with_workloads
from arena_traces.parts import first_jobs, from_zero, window, with_offered_load
from arena_traces.statistics import statistics
from arena_traces.trace import Trace
from tests.trace_files import itp_job, trace_of

TEXT = """
reference: A100
classes:
  - below_gpu_hours: 10
    workloads:
      - {name: bert__1.3B, global_batch: 256, gpu_seconds_per_step: 20}
      - {name: moe__1.3B, global_batch: 512, gpu_seconds_per_step: 10, weight: 3}
  - workloads:
      - {name: bert__6.7B, global_batch: 128, gpu_seconds_per_step: 100}
"""


def hundred_jobs() -> Trace:
    return trace_of(itp_job(row, submitted_at_s=1000 + 10.0 * row, gpu_count=1 + row % 2 * 15) for row in range(2, 102))


def test_gpu_hours_choose_the_class_and_gpu_time_the_steps() -> None:
    mapping = parse_mapping(TEXT, source="mapping.yaml")
    trace = with_workloads(hundred_jobs(), mapping, seed=1)
    for job, draw in zip(trace.jobs, trace.draws, strict=True):
        assert (draw.job_id, draw.row, draw.gpu_hours) == (job.job_id, job.row, job.gpu_count)
        assert job.workload is not None
        assert draw.workload == job.workload.name
        gpu_s_per_step = {"bert__1.3B": 20, "moe__1.3B": 10, "bert__6.7B": 100}[job.workload.name]
        assert job.step_count == job.gpu_count * 3600 / gpu_s_per_step
        assert (draw.class_index == 1) == (job.gpu_count == 16) == (job.workload.name == "bert__6.7B")
    assert trace.changes == (f"workloads drawn by GPU-hours: mapping {mapping.digest}, seed 1",)


def test_the_bound_of_a_class_belongs_to_the_next() -> None:
    mapping = default_mapping()
    hours = (0.5, 1, 9.99, 10, 99, 100, 999, 1000, 1e6)
    assert [mapping.class_of(gpu_hours) for gpu_hours in hours] == [0, 1, 1, 2, 2, 3, 3, 4, 4]


def test_draws_do_not_depend_on_the_other_jobs() -> None:
    trace = hundred_jobs()
    whole = with_workloads(trace, default_mapping(), seed=5)
    part = with_workloads(window(trace, from_s=1400, to_s=1800), default_mapping(), seed=5)
    by_row = {job.row: job for job in whole.jobs}
    assert len(part.jobs) == 40
    assert all(by_row[job.row] == job for job in part.jobs)
    assert part.draws == window(whole, from_s=1400, to_s=1800).draws


def test_draws_follow_the_seed_and_the_weights() -> None:
    mapping = parse_mapping(TEXT, source="mapping.yaml")
    trace = trace_of(itp_job(row, submitted_at_s=0.0) for row in range(4000))
    names = [
        [job.workload.name for job in with_workloads(trace, mapping, seed=seed).jobs if job.workload] for seed in (1, 2)
    ]
    assert names[0] != names[1]
    # Three quarters of 4,000 draws, with a standard deviation of 27.
    assert all(abs(drawn.count("moe__1.3B") - 3000) < 150 for drawn in names)


def test_numbers_are_those_of_every_machine() -> None:
    assert uniform_number(7, 2, purpose="workload") == 0.07513637751930924
    numbers = [uniform_number(seed, row, purpose="x") for seed in range(30) for row in range(30)]
    assert len(set(numbers)) == 900
    assert 0 <= min(numbers) < 0.01
    assert 0.99 < max(numbers) < 1


def test_a_job_without_a_duration_cannot_be_mapped() -> None:
    trace = trace_of([itp_job(2, submitted_at_s=0.0, duration_s=None)])
    with pytest.raises(UserError, match="job j2 of line 2 states no duration"):
        with_workloads(trace, default_mapping(), seed=0)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (TEXT.replace("below_gpu_hours", "below"), "mapping.yaml:4:5: classes.0.below: unknown field"),
        (TEXT.replace("  - below_gpu_hours: 10\n    workloads", "  - workloads"), "every class but the last needs"),
        (f"{TEXT}    below_gpu_hours: 20\n", "the last class must hold all other jobs"),
        ("classes: []", "classes: "),
        ("- 1", "a mapping has `classes`"),
        (
            TEXT.replace("step: 20", "step: 0"),
            "classes.0.workloads.0.gpu_seconds_per_step: got 0; allowed: greater than 0",
        ),
    ],
)
def test_mistakes_of_a_mapping_are_told_with_their_place(text: str, told: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_mapping(text, source="mapping.yaml")
    assert told in caught.value.message


def test_bounds_of_classes_must_rise() -> None:
    last = "  - workloads: [{name: a__1B, global_batch: 1, gpu_seconds_per_step: 1}]\n"
    classes = "".join(last.replace("workloads", f"below_gpu_hours: {bound}\n    workloads") for bound in (10, 10))
    with pytest.raises(SpecError, match="must rise"):
        parse_mapping(f"classes:\n{classes}{last}", source="mapping.yaml")


@pytest.mark.parametrize("load", [0.05, 0.9, 3.0])
def test_arrivals_are_moved_until_the_load_is_offered(load: float) -> None:
    trace = hundred_jobs()
    moved = with_offered_load(trace, load, gpu_count=64)
    assert statistics(moved, gpu_count=64).offered_load == pytest.approx(load)
    assert [job.job_id for job in moved.jobs] == [job.job_id for job in trace.jobs]
    assert moved.jobs[0].submitted_at_s == trace.jobs[0].submitted_at_s
    gaps = [second.submitted_at_s - first.submitted_at_s for first, second in pairwise(moved.jobs)]
    assert gaps == pytest.approx([gaps[0]] * 99)
    assert [dataclasses.replace(job, submitted_at_s=0) for job in moved.jobs] == [
        dataclasses.replace(job, submitted_at_s=0) for job in trace.jobs
    ]
    assert len(moved.changes) == 1


def test_a_trace_of_steps_offers_a_load_by_their_gpu_time() -> None:
    jobs = [dataclasses.replace(itp_job(row, submitted_at_s=row, duration_s=None), step_count=10) for row in (2, 12)]
    with pytest.raises(UserError, match=r"GPU time of job j2 \(line 2\) is not known"):
        with_offered_load(trace_of(jobs), 1.0, gpu_count=1)

    def gpu_seconds(job: TraceJob) -> float:
        return 4.0 * (job.step_count or 0)

    moved = with_offered_load(trace_of(jobs), 0.5, gpu_count=2, gpu_seconds=gpu_seconds)
    assert [job.submitted_at_s for job in moved.jobs] == [2, 82]


def test_loads_that_cannot_be_offered_are_refused() -> None:
    together = trace_of(itp_job(row, submitted_at_s=5.0) for row in (2, 3))
    for trace, load in [(together, 0.9), (hundred_jobs(), 0.0), (hundred_jobs(), float("nan")), (trace_of([]), 0.9)]:
        with pytest.raises(UserError):
            with_offered_load(trace, load, gpu_count=8)


def test_parts_keep_account_of_what_they_leave_out() -> None:
    trace = hundred_jobs()
    part = first_jobs(window(trace, from_s=1400, to_s=1800), 30)
    assert [job.submitted_at_s for job in part.jobs] == [1400 + 10.0 * index for index in range(30)]
    accounting = part.accounting
    assert (accounting.row_count, accounting.job_count, accounting.left_out_count) == (100, 30, 70)
    assert len(part.changes) == 2
    assert first_jobs(trace, 1000).jobs == trace.jobs
    assert [job.submitted_at_s for job in from_zero(part).jobs] == [10.0 * index for index in range(30)]
    with pytest.raises(UserError, match="the trace goes from 1020 to 2010 s"):
        window(trace, from_s=0, to_s=1000)
    with pytest.raises(UserError):
        first_jobs(trace, 0)


def test_instants_that_rounding_makes_equal_are_in_the_order_of_rows() -> None:
    trace = trace_of(itp_job(row, submitted_at_s=1e10 + 10 - row) for row in (9, 5, 4))
    assert [job.row for job in trace.jobs] == [9, 5, 4]
    moved = with_offered_load(trace, 1e12, gpu_count=1000)
    assert [(job.row, job.submitted_at_s) for job in moved.jobs] == [(row, 1e10 + 1) for row in (4, 5, 9)]
