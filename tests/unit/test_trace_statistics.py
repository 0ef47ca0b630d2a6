"""Statistics of small traces equal what is counted by hand."""

from __future__ import annotations

import pytest

from arena.domain.trace import TraceOutcome
from arena_traces.statistics import statistics
from tests.trace_files import itp_job, trace_of


def test_a_small_trace_is_counted_by_hand() -> None:
    trace = trace_of(
        [
            itp_job(2, submitted_at_s=3_000, duration_s=100, gpu_count=1),
            itp_job(3, submitted_at_s=3_600, duration_s=200, gpu_count=4),
            itp_job(4, submitted_at_s=7_000, duration_s=300, gpu_count=4),
            itp_job(5, submitted_at_s=7_800, duration_s=None, gpu_count=8),
        ]
    )
    found = statistics(trace, gpu_count=4)
    assert (found.job_count, found.span_s, found.jobs_per_hour) == (4, 4_800, 3.0)
    assert found.peak_jobs_per_hour == 2, "3,600 and 7,000 s are in the second clock hour"
    # Gaps 600, 3,400 and 800: mean 1,600; deviations -1,000, 1,800, -800; variance 4,880,000 / 2.
    assert found.arrival_cv == pytest.approx((4_880_000 / 2) ** 0.5 / 1_600)
    assert found.job_count_by_gpu_count == {1: 1, 4: 2, 8: 1}
    assert (found.gpu_count_mean, found.multi_gpu_share) == (4.25, 0.75)
    assert found.duration is not None
    assert (found.duration.p10_s, found.duration.p50_s, found.duration.p90_s) == pytest.approx((120, 200, 280))
    assert (found.duration.p99_s, found.duration.max_s, found.duration_job_count) == pytest.approx((298, 300, 3))
    gpu_seconds = 100 + 4 * 200 + 4 * 300
    assert found.gpu_hours == pytest.approx(gpu_seconds / 3600)
    assert found.busy_gpus_mean == pytest.approx(gpu_seconds / 4_800)
    assert found.offered_load == pytest.approx(gpu_seconds / 4_800 / 4)
    assert found.too_large_count == 1
    assert found.job_count_by_outcome == {TraceOutcome.UNKNOWN: 4}


@pytest.mark.parametrize("count", [0, 1, 2])
def test_what_too_few_jobs_do_not_tell_is_none(count: int) -> None:
    trace = trace_of(itp_job(row, submitted_at_s=5, duration_s=None) for row in range(count))
    found = statistics(trace, gpu_count=4)
    assert found.jobs_per_hour is found.arrival_cv is found.duration is found.gpu_hours is found.offered_load is None
    assert (found.job_count, found.span_s, found.peak_jobs_per_hour) == (count, 0, count)
