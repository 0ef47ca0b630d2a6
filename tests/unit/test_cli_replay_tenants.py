"""``arena replay --tenants``: projects with guaranteed shares, and what became of these."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

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
