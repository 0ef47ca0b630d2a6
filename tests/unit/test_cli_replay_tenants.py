"""``arena replay --tenants``: projects with guaranteed shares, and what became of these."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from arena.domain.records import JobState
from arena_traces.formats.log_writing import log_job, log_lines
from tests.builders import command_spec, job_record, logged_attempt
from tests.fakes.command_line import Arena, Done
from tests.trace_files import ITP_HEAD, table, written


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two nodes of one GPU; two long jobs of others, and a short one of the project that has a share of one GPU."""
    rows = ("a,0,1000,1,green", "b,0,1000,1,", "c,100,50,1,red")
    written(tmp_path / "trace.csv", table(f"{ITP_HEAD},project", *rows))
    (tmp_path / "cluster.yaml").write_text("nodes: [{type: cpu, count: 2, gpus: 1}]\n")
    (tmp_path / "tenants.yaml").write_text("projects: {red: {gpus: {cpu: 1}}}\n")
    (tmp_path / "large.yaml").write_text("projects: {red: {gpus: {cpu: 3}}}\n")
    return tmp_path


def replay(arena: Arena, folder: Path, *argv: object) -> Done:
    files = (folder / "trace.csv", "--cluster", folder / "cluster.yaml")
    return arena("replay", *files, "--restart-s", 10, "--save-s", 5, "--check", *argv)


def test_what_became_of_shares_is_told_for_each_policy(arena: Arena, folder: Path) -> None:
    done = replay(arena, folder, "--tenants", folder / "tenants.yaml", "--policy", "arena,fcfs", "--json")
    assert done.code == 0, done.err
    kept, ignored = ({one["project"]: one for one in policy["tenants"]} for policy in done.document["policies"])
    assert (kept["red"]["below_share_s"], kept["red"]["below_share_s_max"]) == (5.0, 5.0), "until one had saved"
    assert kept["red"]["avg_jct_s"] == 5 + 10 + 50
    assert kept["red"]["gpu_hours"] * 3600 == pytest.approx(60)
    assert kept["red"]["guaranteed"] == {"cpu": 1}
    assert kept[""]["job_count"] == 2
    assert kept[""]["borrowed_gpu_hours"] == kept[""]["gpu_hours"]
    assert ignored["red"]["below_share_s"] == 1010 - 100, "until the first of the others has ended"
    assert set(done.document["sha256"]) == {"trace", "cluster", "tenants"}
    runs = done.document["policies"][0]["runs"]
    assert [one["project"] for one in runs[0]["tenants"]] == ["red", ""]


def test_what_became_of_shares_is_a_table_for_people(arena: Arena, folder: Path) -> None:
    done = replay(arena, folder, "--tenants", folder / "tenants.yaml", "--policy", "arena")
    assert "GUARANTEED SHARES" in done.out
    assert "BELOW_S  LONGEST" in done.out
    without = replay(arena, folder, "--policy", "arena", "--json")
    assert without.document["policies"][0]["tenants"] == []


def test_jobs_are_dealt_to_projects_where_the_trace_names_none(arena: Arena, folder: Path) -> None:
    options = ("--tenants", folder / "tenants.yaml", "--project", "red=1", "--policy", "arena", "--json")
    done = replay(arena, folder, *options)
    assert done.code == 0, done.err
    counts = {one["project"]: one["job_count"] for one in done.document["policies"][0]["tenants"]}
    assert counts == {"red": 2, "": 1}, "a names its own"
    assert done.document["options"]["projects"] == [["red", 1.0]]
    drawn = replay(arena, folder, *options, "--seeds", 2)
    assert drawn.code == 0, "which jobs are whose is drawn"


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (("--tenants", "{}/large.yaml"), "guarantees more than there is: 3 cpu GPUs are guaranteed in all"),
        (("--tenants", "{}/missing.yaml"), "cannot read"),
        (("--project", "red"), "Write it like --project vision=0.3"),
        (("--project", "red=2"), "Write it like --project vision=0.3"),
        (("--project", "red=0.6", "--project", "blue=0.6"), "deals out more than all jobs"),
        (("--project", "red=0.2", "--project", "red=0.2"), "names one twice"),
    ],
)
def test_what_is_wrong_is_told(arena: Arena, folder: Path, argv: Sequence[str], told: str) -> None:
    done = replay(arena, folder, *(word.format(folder) for word in argv))
    assert done.code not in {0, 70}
    assert told in done.err


@pytest.fixture
def log(folder: Path) -> Path:
    """Programs that ran 50 s each on the two GPUs of which one is now guaranteed to red."""
    specs = {
        "stuck": command_spec("stuck", count=2, preemptible=False),
        "small": command_spec("small", count=1, preemptible=False),
        "borrower": command_spec("borrower", count=2, preemptible=True),
        "own": command_spec("own", count=1, preemptible=False, project="red"),
    }
    jobs = []
    for at, (name, spec) in enumerate(specs.items()):
        record = job_record(name, spec, submitted_at_s=float(at), state=JobState.SUCCEEDED, ended_at_s=50.0 + at)
        jobs.append(
            log_job(record, spec, [logged_attempt(name, [spec.gpus.count or 1], from_s=float(at), to_s=50.0 + at)])
        )
    lines = "".join(log_lines(jobs, exported_at_s=1_000.0, arena_version="0.1.0"))
    return written(folder / "log.jsonl", lines.encode())


def replay_of_log(arena: Arena, log: Path, *argv: object) -> Done:
    files = (log, "--cluster", log.with_name("cluster.yaml"), "--tenants", log.with_name("tenants.yaml"))
    return arena("replay", *files, "--restart-s", 1, *argv)


def test_a_job_that_never_starts_beside_shares_is_named_before_any_run(arena: Arena, log: Path) -> None:
    done = replay_of_log(arena, log, "--policy", "fcfs,arena")
    assert done.code == 4, done.err
    assert "1 of 4 jobs can never start beside the shares of others: stuck (line 2)" in done.err
    assert "leaves 1 such GPU" in done.err
    assert "leave out --tenants" in done.err
    assert "--drop-unplaceable" in done.err


@pytest.mark.parametrize("kind", ["auto", "rigid"])
def test_a_job_that_never_starts_beside_shares_is_left_out_under_all_policies(
    arena: Arena, log: Path, kind: str
) -> None:
    options = ("--policy", "fcfs,arena", "--kind", kind, "--drop-unplaceable")
    done = replay_of_log(arena, log, *options, "--json")
    assert done.code == 0, done.err
    assert (done.document["replayed_job_count"], done.document["unplaceable_count"]) == (3, 1)
    assert [one["whole"]["job_count"] for one in done.document["policies"]] == [3, 3]
    told = " ".join(replay_of_log(arena, log, *options).out.split())
    assert "left out 1 job that may not be stopped and can never start beside the shares of others: stuck" in told


def test_policies_that_keep_no_shares_run_all_jobs(arena: Arena, log: Path) -> None:
    done = replay_of_log(arena, log, "--policy", "fcfs", "--json")
    assert (done.code, done.document["unplaceable_count"]) == (0, 0), done.err
