"""``arena replay`` where nodes break, lent nodes are taken back, and changes cost by size."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.fakes.command_line import Arena, Done
from tests.trace_files import ARENA_HEAD, ITP_HEAD, table, written

LENT = "reclaims: [{type: cpu, trace: spot.csv, grace_s: 20}]\ncheckpoint_every_s: 50\nnode_grace_s: 15\n"
SPOT = "at_s,nodes\n0,2\n100,1\n400,2\n"
STEPS = "workload,global_batch,group,step_time_s\nnet__1B,8,cpu 1,1\nnet__1B,8,cpu 1+1,0.5\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two nodes of one GPU, two jobs of 300 s that come at once, and one lent node that is away from 100 to 400 s."""
    written(tmp_path / "trace.csv", table(ITP_HEAD, "a,0,300,1", "b,0,300,1"))
    written(tmp_path / "arena.csv", table(ARENA_HEAD, "1,0,100,net__1B,-1,8,1,cpu", "2,50,10,net__1B,-1,8,1,cpu"))
    (tmp_path / "cluster.yaml").write_text("nodes: [{type: cpu, count: 2, gpus: 1}]\n")
    (tmp_path / "lent.yaml").write_text(LENT)
    (tmp_path / "spot.csv").write_text(SPOT)
    (tmp_path / "steps.csv").write_text(STEPS)
    return tmp_path


def replay(arena: Arena, folder: Path, *argv: object, trace: str = "trace.csv") -> Done:
    return arena("replay", folder / trace, "--cluster", folder / "cluster.yaml", "--restart-s", 10, "--check", *argv)


def test_a_lent_node_is_asked_back_and_its_job_is_saved_and_goes_on(arena: Arena, folder: Path) -> None:
    done = replay(arena, folder, "--disturbances", folder / "lent.yaml", "--json")
    assert done.code == 0, done.err
    [policy] = done.document["policies"]
    # a: 310 s. b steps from 10 s and is saved at 100 s, with 90 steps; the other GPU is free at 310 s.
    assert policy["whole"]["makespan_s"] == 310 + 10 + 210
    assert policy["whole"]["avg_jct_s"] == (310 + 530) / 2
    assert (policy["whole"]["failed_node_count"], policy["whole"]["reclaimed_node_count"]) == (0, 1)
    # Two starts, and one again.
    assert policy["whole"]["lost_gpu_hours"] * 3600 == pytest.approx(10 + 10 + 10)
    assert done.document["disturbances"]["reclaims"][0]["trace"] == "spot.csv"
    assert set(done.document["sha256"]) == {"trace", "cluster", "disturbances", "availability spot.csv"}


def test_a_lent_node_that_goes_without_a_word_costs_what_was_not_saved(arena: Arena, folder: Path) -> None:
    (folder / "lent.yaml").write_text(LENT.replace("grace_s: 20", "grace_s: 0"))
    done = replay(arena, folder, "--disturbances", folder / "lent.yaml", "--json")
    [policy] = done.document["policies"]
    # b is lost at 100 s, with 50 of 90 steps saved: 40 s of work and 15 s until the node is given up.
    assert policy["whole"]["makespan_s"] == 310 + 10 + 250
    assert policy["whole"]["lost_gpu_hours"] * 3600 == pytest.approx(10 + 10 + 10 + 40 + 15)


def test_what_happens_to_nodes_is_told_and_kept_apart(arena: Arena, folder: Path) -> None:
    options = ("--disturbances", folder / "lent.yaml", "--policy", "fcfs,srtf", "--out", folder / "out", "--no-report")
    done = replay(arena, folder, *options)
    assert done.code == 0, done.err
    lines = done.out.splitlines()
    assert "nodes       cpu nodes are lent by " in done.out
    assert lines[lines.index("LOSSES OF NODES") + 2].split()[:3] == ["fcfs", "0.0", "1.0"]
    (folder / "spot.csv").write_text(SPOT.replace("400", "200"))
    assert replay(arena, folder, *options, "--force").code == 0
    # Another availability is another study: nothing of the first is taken for it.
    assert len(list((folder / "out" / "runs").iterdir())) == 4


def test_failures_are_drawn_by_the_seed_and_alike_for_every_policy(arena: Arena, folder: Path) -> None:
    (folder / "broken.yaml").write_text("failures: [{mean_uptime_s: 200, mean_repair_s: 50}]\ncheckpoint_every_s: 20\n")
    options = ("--disturbances", folder / "broken.yaml", "--policy", "fcfs,elastic", "--seeds", 3, "--json")
    fcfs, elastic = replay(arena, folder, *options).document["policies"]
    failed = [one["whole"]["failed_node_count"] for one in fcfs["runs"]]
    assert len(set(failed)) > 1
    assert sum(failed) > 0
    assert {one["whole"]["unfinished_count"] for one in (*fcfs["runs"], *elastic["runs"])} == {0}
    # Rigid jobs on as many GPUs as there are: both policies do the same.
    assert [one["digest"] for one in fcfs["runs"]] == [one["digest"] for one in elastic["runs"]]
    again = replay(arena, folder, *options).document["policies"][0]
    assert [one["digest"] for one in again["runs"]] == [one["digest"] for one in fcfs["runs"]]


def test_sailors_trace_of_availability_is_read_and_repeats(arena: Arena, folder: Path) -> None:
    (folder / "spot.json").write_text('[{"Time": 0, "GPUs": 1}, {"Time": 63, "GPUs": 2}, {"Time": 126, "GPUs": 1}]')
    (folder / "json.yaml").write_text(
        "reclaims: [{type: cpu, trace: spot.json, grace_s: 0, repeat_every_s: 200}]\ncheckpoint_every_s: 1\n"
    )
    done = replay(arena, folder, "--disturbances", folder / "json.yaml", "--policy", "elastic", "--json")
    assert done.code == 0, done.err
    assert done.document["policies"][0]["whole"]["reclaimed_node_count"] >= 2


def test_checkpoints_cost_by_their_size_on_their_way(arena: Arena, folder: Path) -> None:
    """1 B parameters are 12 GB, 12 s at 1 GB/s; job 2 displaces job 1, which saves for 3 + 12 s and loads for 12 s."""
    options = ("--grids", folder / "steps.csv", "--policy", "srtf", "--save-s", 3, "--storage-gb-per-s", 1, "--json")
    (folder / "cluster.yaml").write_text("nodes: [{type: cpu, count: 1, gpus: 1}]\n")
    (folder / "steps.csv").write_text(STEPS.replace("net__1B,8,cpu 1+1,0.5\n", ""))
    written(folder / "arena.csv", table(ARENA_HEAD, "1,0,100,net__1B,-1,8,1,cpu", "2,50,10,net__1B,-1,8,1,cpu"))
    [policy] = replay(arena, folder, *options, trace="arena.csv").document["policies"]
    # 1: steps from 10 s, 40 of them until 50, saves until 65; 2: 65 to 85; 1: 85 + 10 + 12, then 60 steps.
    assert policy["whole"]["makespan_s"] == 85 + 22 + 60
    bounded = replay(arena, folder, *options, "--storage-job-gb-per-s", 0.5, trace="arena.csv").document["policies"][0]
    assert bounded["whole"]["makespan_s"] == 85 + 12 + 34 + 60


def test_a_job_that_may_be_laid_out_is_profiled_first(arena: Arena, folder: Path) -> None:
    options = ("--grids", folder / "steps.csv", "--profile-s", 40, "--json")
    [policy] = replay(arena, folder, *options, trace="arena.csv").document["policies"]
    assert policy["whole"]["avg_jct_s"] == 40 + 10 + (100 + 10) / 2
    [plain] = replay(arena, folder, "--profile-s", 40, "--json").document["policies"]
    assert plain["whole"]["avg_jct_s"] == 310


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (("--disturbances", "{}/missing.yaml"), "cannot read"),
        (("--restart-per-gpu-s", "1", "--storage-gb-per-s", "1"), "two answers to one question"),
        (("--storage-job-gb-per-s", "1"), "bounds --storage-gb-per-s"),
        (("--seeds", "2", "--disturbances", "{}/lent.yaml"), "would run the same thing 2 times"),
    ],
)
def test_options_that_do_not_go_together_are_told(arena: Arena, folder: Path, argv: Sequence[str], told: str) -> None:
    done = replay(arena, folder, *(part.format(folder) for part in argv))
    assert (done.code, done.out, done.err.count("\n")) == (4, "", 1)
    assert told in done.err


@pytest.mark.parametrize(
    ("text", "spot", "told"),
    [
        ("[]", SPOT, "disturbances are a mapping"),
        ("failure: []", SPOT, "lent.yaml:1:1: failure: unknown field, did you mean 'failures'?"),
        ("failures: [{mean_uptime_s: 0, mean_repair_s: 1}]", SPOT, "failures.0.mean_uptime_s"),
        ("failures: [{mean_uptime_s: .inf, mean_repair_s: 1}]", SPOT, "failures.0.mean_uptime_s"),
        ("failures: [{mean_uptime_s: 1, mean_repair_s: 1, type: gpu}]", SPOT, "the cluster has no 'gpu'"),
        (LENT.replace("type: cpu", "type: cpu, zone: east"), SPOT, "zone 'east'; they are in default"),
        (LENT, "at_s,node\n0,1\n", "the first line must name at_s and nodes (or gpus)"),
        (LENT, "", "the first line must name at_s and nodes (or gpus)"),
        (LENT, "at_s,nodes\n", "has no rows"),
        (LENT, "at_s,nodes\n0,2\nx,1\n", "spot.csv:3: not an instant and a whole number"),
        (LENT, "at_s,nodes\n0,2\n5\n", "spot.csv:3: not an instant and a whole number"),
        (LENT, "at_s,nodes\n0,2\n-5,1\n", "spot.csv:3: not an instant and a whole number"),
        (LENT, "at_s,nodes\n0,2\nnan,1\n", "spot.csv:3: not an instant and a whole number"),
        (LENT, "at_s,nodes\n5,1\n5,2\n", "instants must rise"),
        (LENT, "at_s,nodes\n0,3\n", "3 nodes are there at most, and the cluster has 2"),
        (LENT, "at_s,nodes\n0,2\n5,1\n", "2 nodes are not there together again"),
        (LENT.replace("20}", "20, repeat_every_s: 9}"), SPOT, "repeat_every_s is 9, and the trace goes on to 400 s"),
        (LENT, "[" * 100_000, "not of the form"),
        (LENT, '[{"Time": 0}]', "not of the form"),
    ],
)
def test_mistakes_in_files_of_disturbances_are_told(
    arena: Arena, folder: Path, text: str, spot: str, told: str
) -> None:
    (folder / "lent.yaml").write_text(text)
    (folder / "spot.csv").write_text(spot)
    done = replay(arena, folder, "--disturbances", folder / "lent.yaml")
    assert (done.code, done.out) == (4, ""), done.err
    assert told in done.err
