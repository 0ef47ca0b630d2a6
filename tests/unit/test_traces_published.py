"""Published traces are read to the last row, and are what their statistics say (where they are)."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from arena_traces.mapping import default_mapping
from arena_traces.reading import read_trace
from arena_traces.statistics import statistics
from tests.trace_files import published

STATS = published("traces", "STATS.json")
DATABASE = published("data", "arena", "prof_database.json")
needs_traces = pytest.mark.skipif(STATS is None, reason="the published traces are not here (set ARENA_DATA_DIR)")
needs_arena = pytest.mark.skipif(DATABASE is None, reason="Arena's data are not here (set ARENA_DATA_DIR)")

ITP = {
    **{f"itp_cluster{index:02}": ("raw", f"cluster{index:02}.csv.gz") for index in (1, 2, 3, 4, 5, 8, 9, 10)},
    "itp_195job": ("elasticflow", "195job.csv.gz"),
}
ARENA = {name: f"simulate_trace_{name}.csv" for name in ("pai", "venus")}


def expected(name: str) -> Mapping[str, Any]:
    assert STATS is not None
    return next(row for row in json.loads(STATS.read_text()) if row["trace"] == name)


def itp_file(name: str) -> Path:
    path = published("traces", "microsoft_itp_2021", *ITP[name])
    assert path is not None
    return path


@needs_traces
@pytest.mark.parametrize("name", ITP)
def test_microsofts_clusters_are_as_published(name: str) -> None:
    trace = read_trace(itp_file(name))
    stated, found = expected(name), statistics(trace)
    assert trace.source.format_name == "microsoft-itp"
    assert trace.accounting.row_count == found.job_count == stated["jobs"]
    assert trace.accounting.dropped_lines == trace.accounting.repaired_lines == {}
    assert found.span_days == pytest.approx(stated["span_days"], abs=0.006)
    assert found.jobs_per_hour == pytest.approx(stated["jobs_per_h"], abs=0.006)
    assert found.peak_jobs_per_hour == stated["peak_h"]
    assert found.arrival_cv == pytest.approx(stated["ia_cv"], abs=0.006)
    assert {str(count): jobs for count, jobs in found.job_count_by_gpu_count.items()} == stated["gpu_hist"]
    assert found.duration is not None
    duration = found.duration
    points = [duration.p10_s, duration.p50_s, duration.p90_s, duration.p99_s, duration.max_s]
    assert points == pytest.approx([*stated["dur_p10_50_90_99"], stated["dur_max"]], abs=0.06)
    assert found.gpu_hours == pytest.approx(stated["gpu_hours"], abs=0.06)
    assert found.busy_gpus_mean == pytest.approx(stated["mean_busy_gpus"], abs=0.06)


@needs_traces
def test_tables_with_random_models_hold_the_same_jobs() -> None:
    raw = read_trace(itp_file("itp_cluster10"))
    path = published("traces", "microsoft_itp_2021", "elasticflow", "cluster10.csv.gz")
    assert path is not None
    other = read_trace(path)
    assert other.jobs == raw.jobs
    assert other.source.ignored_columns == ("num_iteration", "model_name", "deadline", "batch_size")


@needs_arena
@pytest.mark.parametrize("name", ARENA)
def test_arenas_traces_are_as_published(name: str) -> None:
    path = published("data", "arena", "traces", ARENA[name])
    assert path is not None
    trace = read_trace(path)
    assert trace.source.format_name == "arena-csv"
    assert trace.accounting.row_count == len(trace.jobs) == {"pai": 125, "venus": 438}[name]
    for job in trace.jobs:
        assert job.step_count is not None
        assert job.deadline_s is not None
    found = statistics(trace)
    assert (
        found.job_count_by_gpu_count
        == {
            "pai": {1: 8, 2: 19, 4: 56, 8: 28, 16: 14},
            "venus": {1: 13, 2: 73, 4: 170, 8: 135, 16: 47},
        }[name]
    )
    assert (round(found.jobs_per_hour or 0, 1), found.peak_jobs_per_hour) == {"pai": (4.6, 27), "venus": (18.7, 46)}[
        name
    ]


@needs_arena
def test_the_default_mapping_has_the_published_times() -> None:
    assert DATABASE is not None
    measured = json.loads(DATABASE.read_text())["optimal"]
    for one in default_mapping().classes:
        for workload in one.workloads:
            cells = measured[f"{workload.name.replace('__', '_')}_{workload.global_batch}"]
            least_s = min(_gpu_seconds(cell, step_s) for cell, step_s in cells.items() if "_a100_" in cell)
            assert math.isclose(workload.gpu_seconds_per_step, least_s, rel_tol=0.01), workload.name


def _gpu_seconds(cell: str, step_s: float) -> float:
    """GPU time of a step on e.g. ``2_a100_2_n_4_d``, two nodes with four GPUs each."""
    nodes, _, _, _, gpus_per_node, _ = cell.split("_")
    return int(nodes) * int(gpus_per_node) * step_s if step_s > 0 else math.inf
