"""Studies of policies on the published data: what is read and drawn of it, and a small study from the command line.

Skipped where the data are not at hand (ARENA_DATA_DIR).
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from arena.planner.tables import TableGrids
from experiments.arena_traces.tables import Tables, cluster
from experiments.policy.arrivals import Arrivals, ArrivalSource
from experiments.policy.bounds import bound_of, gpu_counts_of, works_of
from experiments.policy.cases import Setting, case_of
from experiments.policy.data_parallel import data_parallel_grids, read_estimates
from experiments.policy.loads import GPUS_PER_TYPE
from experiments.policy.priced_bound import priced_mean_s
from experiments.policy.rubick import PLACEMENTS, RESTART_S, WORKLOAD, read_jobs, read_times, shape
from experiments.policy.run import main

FOLDER = Path(os.environ.get("ARENA_DATA_DIR", "../shared"))
NEEDED = ("data/arena/traces", "data/peers/rubick_morphling", "traces/microsoft_itp_2021/raw")

pytestmark = pytest.mark.skipif(
    not all((FOLDER / name).is_dir() for name in NEEDED), reason="the published data are not at hand"
)


@pytest.mark.parametrize("arrivals", list(Arrivals))
def test_draws_have_the_jobs_and_the_load_that_are_wished(arrivals: Arrivals) -> None:
    tables = Tables.read(FOLDER / "data" / "arena")
    source = ArrivalSource.read(arrivals, FOLDER, tables)
    draws = [source.drawn(seed) for seed in (0, 1)]
    contents = [[(job.workload, job.step_count) for job in one.jobs] for one in draws]
    assert contents[0] != contents[1]
    gpus = cluster(GPUS_PER_TYPE[arrivals])
    one = case_of(draws[0], tables.grids(), gpus, setting=Setting(load=0.9), seed=0)
    jobs = one.scenario.jobs
    assert 300 <= len(jobs) <= 500
    gpu_seconds = sum(job.alone_s * job.gpu_count for job in jobs)
    span_s = jobs[-1].job.submitted_at_s
    assert gpu_seconds / span_s / gpus.gpu_count == pytest.approx(0.9)
    # Long against a job, so that its beginning and end do not decide.
    assert span_s > 15 * sum(job.alone_s for job in jobs) / len(jobs)


def test_the_bound_of_venus_is_what_its_jobs_take_alone() -> None:
    tables = Tables.read(FOLDER / "data" / "arena")
    source = ArrivalSource.read(Arrivals.HELIOS, FOLDER, tables)
    one = case_of(source.as_it_is(), tables.grids(), cluster(80), setting=Setting(), seed=0)
    # Published for these jobs, with one start of 60 s each.
    assert bound_of(works_of(one), gpu_count=320).mean_jct_s == pytest.approx(5753, rel=1e-3)


def test_rubicks_workload_runs_on_what_was_measured() -> None:
    times = read_times(FOLDER / PLACEMENTS)
    jobs = read_jobs(FOLDER / WORKLOAD).jobs
    assert len(jobs) == 406
    assert {job.workload for job in jobs} == set(times)
    for model, rows in times.items():
        assert all(time_s is not None and time_s > 0 for time_s in rows.values()), model
        assert max(group.gpu_count for group in rows) <= 64


def test_the_priced_bound_of_rubicks_workload_is_above_what_its_jobs_take_alone() -> None:
    grids = TableGrids(name="rubick placements", iter_time_s=read_times(FOLDER / PLACEMENTS))
    one = case_of(read_jobs(FOLDER / WORKLOAD), grids, shape(), setting=Setting(restart_s=RESTART_S), seed=0)
    works = works_of(one)
    # All jobs on their fastest groups ask for far more than there is: from no price the first step was once too far.
    found_s = priced_mean_s(works, gpu_counts_of(one), stretch_counts=(64,))
    assert found_s > 1.2 * bound_of(works, gpu_count=64).alone_s


def test_every_model_that_runs_does_under_data_parallelism_alone_and_no_faster() -> None:
    measured = Tables.read(FOLDER / "data" / "arena").grids()
    pure = data_parallel_grids(measured, read_estimates(FOLDER))
    for workload, rows in pure.iter_time_s.items():
        runs_at_all = any(time_s is not None for time_s in measured.iter_time_s[workload].values())
        assert bool(rows) == runs_at_all, workload
        for group, time_s in rows.items():
            full_s = measured.iter_time_s[workload][group]
            assert time_s is not None
            assert full_s is not None
            assert time_s >= full_s * (1 - 1e-12)


def test_a_study_from_the_command_line(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    words = "loads --arrivals pai --loads 0.6 --policy srtf --against fcfs --draws 2 --first 20 --restart-s 30"
    assert main([*words.split(), "--keep", str(tmp_path / "kept"), "--json", str(out)]) == 0
    [setting] = json.loads(out.read_text())["settings"]
    assert [row["policy"] for row in setting["policies"]] == ["fcfs", "srtf"]
    assert setting["setting"]["restart_s"] == 30.0
    assert all(row["means"]["job_count"] == 20 for row in setting["policies"])
