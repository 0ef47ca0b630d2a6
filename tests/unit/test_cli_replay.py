"""``arena replay`` as its users see it."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import pickle
import re
import resource
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from arena.cli import replay_runs
from arena.cli.replay_inputs import Files, grids_of, read_inputs
from arena.cli.replay_jobs import length_factor, prepared
from arena.cli.replay_options import ReplayOptions
from arena.cli.replay_runs import Fault, Order, executed, run_all
from arena.domain.cluster import ClusterShape
from arena.domain.grid import Grid
from arena.domain.job import JobSpec
from arena.policies.base import Decision, Snapshot
from arena.policies.registry import make_policy
from arena.sim.checks import ReplayFaultError
from arena_traces.reading import read_trace
from tests.fakes.command_line import Arena, Done
from tests.trace_files import ARENA_HEAD, ITP_HEAD, itp_job, table, written

ROWS = ("a,0,100,4", "b,10,100,0.5", "idle,15,100,0", "c,20,200,2", "d,30,50,1", "e,400,100,4")
"""Four GPUs: a has all, the others wait for it; one row asks for nothing."""

STEPS = "workload,global_batch,group,step_time_s\nnet__1B,8,cpu 4,1\nnet__1B,8,cpu 2,1.5\nnet__1B,8,cpu 1,2.5\n"
MAPPING = """
classes:
  - below_gpu_hours: 0.1
    workloads: [{name: net__1B, global_batch: 8, gpu_seconds_per_step: 2.5}]
  - workloads:
      - {name: net__1B, global_batch: 8, gpu_seconds_per_step: 2.5}
      - {name: net__1B, global_batch: 8, gpu_seconds_per_step: 25}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a trace, one of Arena's, a cluster, a table and a mapping."""
    written(tmp_path / "trace.csv", table(ITP_HEAD, *ROWS))
    rows = ("1,0,100,net__1B,1000,8,4,cpu", "2,10,100,net__1B,-1,8,2,cpu", "3,20,100,net__1B,60,8,1,cpu")
    written(tmp_path / "arena.csv", table(ARENA_HEAD, *rows))
    (tmp_path / "cluster.yaml").write_text("nodes: [{type: cpu, count: 1, gpus: 4}]\n")
    (tmp_path / "steps.csv").write_text(STEPS)
    (tmp_path / "mapping.yaml").write_text(MAPPING)
    return tmp_path


def replay(arena: Arena, folder: Path, *argv: object, trace: str = "trace.csv") -> Done:
    return arena("replay", folder / trace, "--cluster", folder / "cluster.yaml", "--restart-s", 10, *argv)


def test_a_table_shows_all_jobs_of_each_policy(arena: Arena, folder: Path) -> None:
    done = replay(arena, folder, "--policy", "fcfs,elastic", "--check")
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    assert lines[0].endswith("6 rows: 5 jobs, 1 dropped; 1 of the jobs repaired")
    begin = lines.index("ALL JOBS, whole run")
    head, *rows = (line.split() for line in lines[begin + 1 : begin + 4])
    assert head[:4] == ["POLICY", "JOBS", "LEFT", "AVG_JCT"]
    assert [row[:3] for row in rows] == [["fcfs", "5", "0"], ["elastic", "5", "0"]]
    # By hand under fcfs: a 0-110, then b, c, d side by side: b 110-220, c 110-320, d 110-170, and e 400-510.
    assert rows[0][3] == f"{(110 + 210 + 300 + 140 + 110) / 5:.0f}"
    assert any(line.startswith("RATIO TO fcfs") for line in lines)
    # Eighty columns hold every table; only the trace's own words may be longer.
    assert max(map(len, lines[begin:])) <= 80


def test_the_document_holds_figures_digests_and_the_account(arena: Arena, folder: Path) -> None:
    document = replay(arena, folder, "--policy", "fcfs", "--json").document
    assert document["trace"]["dropped_count"] == 1
    assert (document["replayed_job_count"], document["gpu_count"]) == (5, 4)
    [policy] = document["policies"]
    assert policy["whole"]["avg_jct_s"] == pytest.approx(174.0)
    assert policy["whole"]["lost_gpu_hours"] == pytest.approx(10 * (4 + 1 + 2 + 1 + 4) / 3600)
    assert policy["whole"]["p99_jct_s_by_size"].keys() == {"1", "2-4"}
    assert policy["steady"]["job_count"] == 4
    [made] = policy["runs"]
    again = replay(arena, folder, "--policy", "fcfs", "--json").document["policies"][0]["runs"][0]
    assert (made["digest"], made["key"]) == (again["digest"], again["key"])


def test_workloads_of_a_trace_are_timed_by_a_table(arena: Arena, folder: Path) -> None:
    done = replay(
        arena, folder, "--grids", folder / "steps.csv", "--policy", "fcfs,arena-greedy", "--json", trace="arena.csv"
    )
    fcfs, greedy = done.document["policies"]
    # By hand: 1 on four GPUs 0-110; then 2 on two, 110-270, and 3 on one, 110-370.
    assert fcfs["whole"]["avg_jct_s"] == pytest.approx((110 + 260 + 350) / 3)
    assert (fcfs["whole"]["deadline_count"], fcfs["whole"]["deadline_met_count"]) == (2, 1)
    assert (fcfs["is_rigid"], greedy["is_rigid"]) == (True, False)
    fifth = replay(
        arena, folder, "--grids", folder / "steps.csv", "--steps", 0.2, "--json", trace="arena.csv"
    ).document["policies"][0]
    assert fifth["whole"]["avg_jct_s"] == pytest.approx((30 + 60 + 70) / 3)


def test_seconds_and_hours_of_a_small_study_have_digits_that_matter(arena: Arena, folder: Path) -> None:
    written(folder / "small.csv", table(ITP_HEAD, "a,0,3,1", "b,1,3,1"))
    lines = replay(arena, folder, "--restart-s", 0.5, trace="small.csv").out.splitlines()
    begin = lines.index("ALL JOBS, whole run")
    times, costs = (line.split() for line in (lines[begin + 2], lines[begin + 6]))
    assert times == ["fcfs", "2", "0", "3.5", "3.5", "3.5", "1.00", "0", "4.5"]
    assert costs[1] == f"{2 * 3.5 / 3600:.4f}"


def test_decisions_can_be_gathered_and_make_another_study(arena: Arena, folder: Path) -> None:
    def run(*argv: object) -> Any:
        out = ("--out", folder / "kept", "--no-report", "--json", "--force")
        done = replay(arena, folder, "--policy", "fcfs", *out, *argv)
        assert done.code == 0, done.err
        return done.document["policies"][0]

    at_once, gathered, zero = run(), run("--decide-after", 5), run("--decide-after", 0)
    # Of the jobs, which wait for at most one other, each starts up to 5 s after what lets it start.
    assert 174.0 + 5.0 / 2 < gathered["whole"]["avg_jct_s"] <= 174.0 + 2 * 5.0
    assert (at_once["runs"][0]["digest"], at_once["whole"]["avg_jct_s"]) == (
        zero["runs"][0]["digest"],
        pytest.approx(174.0),
    )
    keys = [one["runs"][0]["key"] for one in (at_once, gathered, zero)]
    assert (keys[0] == keys[2], keys[0] != keys[1]) == (True, True)
    assert len(list((folder / "kept" / "runs").iterdir())) == 2
    assert "decisions   on what was gathered for 5 s\n" in replay(arena, folder, "--decide-after", 5).out
    assert "decisions   " not in replay(arena, folder).out


def test_parts_loads_and_ends_of_a_trace(arena: Arena, folder: Path) -> None:
    first = replay(arena, folder, "--first", 2, "--json").document
    assert (first["replayed_job_count"], first["trace"]["left_out_count"]) == (2, 3)
    part = replay(arena, folder, "--window", 15, 100, "--json").document
    assert part["replayed_job_count"] == 2
    loaded = replay(arena, folder, "--load", 0.5, "--json").document["policies"][0]["whole"]
    # 1,350 GPU-seconds at half of four GPUs take 675 s, then the last runs for 110 s more.
    assert loaded["makespan_s"] == pytest.approx(675 + 110)
    cut = replay(arena, folder, "--until", 115, "--json").document["policies"][0]["whole"]
    assert (cut["job_count"], cut["unfinished_count"]) == (5, 4)


def test_a_run_that_is_cut_says_what_its_figures_leave_out(arena: Arena, folder: Path) -> None:
    done = replay(arena, folder, "--until", 5, "--policy", "fcfs,elastic", "--out", folder / "out")
    lines = done.out.splitlines()
    row = next(line.split() for line in lines[lines.index("ALL JOBS, whole run") :] if line.startswith("fcfs"))
    assert row == ["fcfs", "5", "5", *["-"] * 6]
    assert "LEFT: not ended when the run was cut, and in no figure beside" in done.out
    assert "of the jobs that ended, which are not the same under each policy" in done.out
    assert "P99 OF JCT" not in done.out
    assert (folder / "out" / "report.html").exists()


def test_a_study_over_seeds_is_kept_reported_and_not_run_again(arena: Arena, folder: Path) -> None:
    argv = ("--grids", folder / "steps.csv", "--mapping", folder / "mapping.yaml", "--policy", "fcfs,elastic")
    more = ("--seeds", 2, "--lengths", "predicted", "--out", folder / "out", "--no-report")
    done = replay(arena, folder, *argv, *more)
    assert (done.code, done.err) == (0, "")
    assert "95 % paired bootstrap over seeds" in done.out
    assert len(list((folder / "out" / "runs").iterdir())) == 4
    kept = next(path for path in (folder / "out" / "runs").iterdir() if path.name.startswith("elastic-seed1-"))
    # What is kept is taken as it is, which a mark shows; what is gone is made anew.
    whole = kept.read_text()
    document = json.loads(whole)
    document["whole"]["avg_jct_s"] = 12345.0
    changed = json.dumps(document)
    document.pop("sha256")
    kept.write_text(json.dumps({"sha256": hashlib.sha256(json.dumps(document).encode()).hexdigest(), **document}))
    gone = next(path for path in (folder / "out" / "runs").iterdir() if path.name.startswith("fcfs-seed1-"))
    before = gone.read_text()
    gone.unlink()
    again = replay(arena, folder, *argv, *more, "--json").document
    assert again["policies"][1]["runs"][1]["whole"]["avg_jct_s"] == 12345.0
    assert json.loads(gone.read_text())["digest"] == json.loads(before)["digest"]
    # One that was changed, cut or spoilt is made anew.
    for damaged in (changed, whole[:-1], "{", "", "null", "[]", "{}", "[" * 100_000, "\0"):
        kept.write_text(damaged)
        healed = replay(arena, folder, *argv, *more, "--json").document
        assert healed["policies"][1]["runs"][1]["whole"]["avg_jct_s"] < 12345.0


OTHER = {
    "policies": ("--policy", "srtf"),
    "fewer policies": ("--policy", "fcfs"),
    "options": ("--policy", "fcfs,elastic", "--steps", 0.5),
    "part": ("--policy", "fcfs,elastic", "--first", 2),
}


@pytest.mark.parametrize("argv", OTHER.values(), ids=OTHER)
def test_the_report_of_another_replay_is_replaced_only_where_that_is_asked_for(
    arena: Arena, folder: Path, argv: Sequence[object]
) -> None:
    out = ("--out", folder / "out", "--no-report")
    assert replay(arena, folder, "--policy", "fcfs,elastic", *out).code == 0
    before = {path: path.read_bytes() for path in (folder / "out").rglob("*") if path.is_file()}
    done = replay(arena, folder, *argv, *out)
    assert (done.code, done.out, done.err.count("\n")) == (4, "", 1)
    assert f"{folder / 'out' / 'results.json'} is of another replay" in done.err
    assert before == {path: path.read_bytes() for path in (folder / "out").rglob("*") if path.is_file()}
    assert replay(arena, folder, *argv, *out, "--force").code == 0
    assert (folder / "out" / "results.json").read_bytes() != before[folder / "out" / "results.json"]


def test_the_same_replay_goes_on_and_grows_where_it_is(arena: Arena, folder: Path) -> None:
    for policies in ("fcfs", "fcfs", "fcfs,elastic", "elastic,fcfs"):
        done = replay(arena, folder, "--policy", policies, "--out", folder / "out", "--no-report")
        assert (done.code, done.err) == (0, "")
    (folder / "out" / "results.json").unlink()  # as where it was stopped before its report
    (folder / "out" / "results.csv").unlink()
    (folder / "out" / "jobs.csv").unlink()
    assert replay(arena, folder, "--out", folder / "out", "--no-report").code == 0


@pytest.mark.parametrize("name", ["results.json", "results.csv", "jobs.csv", "report.html"])
def test_a_replay_replaces_no_file_of_somebody_else(arena: Arena, folder: Path, name: str) -> None:
    (folder / "out").mkdir()
    (folder / "out" / name).write_text("[1]")
    done = replay(arena, folder, "--out", folder / "out")
    assert (done.code, str(folder / "out" / name) in done.err, "--force" in done.err) == (4, True, True)
    assert (folder / "out" / name).read_text() == "[1]"
    assert [path.name for path in (folder / "out").iterdir()] == [name]


def test_every_file_of_a_replay_is_named(arena: Arena, folder: Path) -> None:
    last = replay(arena, folder, "--out", folder / "out", "--no-report").out.splitlines()[-1]
    assert last == f"kept in {folder / 'out'}: jobs.csv, results.csv, results.json, runs/ (1 run)"


def test_what_was_kept_of_a_file_is_not_taken_for_the_same_file_read_otherwise(arena: Arena, folder: Path) -> None:
    """One row asks for half a GPU: dropped, there are other jobs, under the same digest of the file."""
    out = ("--out", folder / "out", "--no-report", "--json", "--force")
    dropped = replay(arena, folder, "--drop", "gpu_share", *out).document
    whole = replay(arena, folder, *out).document
    counts = [(one["replayed_job_count"], one["policies"][0]["whole"]["job_count"]) for one in (dropped, whole)]
    assert counts == [(4, 4), (5, 5)]
    written(folder / "both.csv", table(f"{ARENA_HEAD},duration", "1,0,100,net__1B,1000,8,4,cpu,50"))
    files = Files(cluster=str(folder / "cluster.yaml"))
    read = [read_trace(folder / "both.csv", format=name) for name in ("arena-csv", "microsoft-itp")]
    first, second = (read_inputs(trace, files, ReplayOptions()).identity() for trace in read)
    assert first != second


def test_the_report_is_one_file_with_everything(arena: Arena, folder: Path) -> None:
    assert replay(arena, folder, "--policy", "fcfs,elastic", "--out", folder / "out").code == 0
    page = (folder / "out" / "report.html").read_text()
    assert len(re.findall(r'src="data:image/png;base64,iVBORw0KGgo', page)) == 4, (
        "three of curves, and one of GPUs: both did the same"
    )
    assert not re.findall(r'(?:src|href)="(?!data:)', page)
    for part in (
        "ALL JOBS, whole run",
        "no_gpus",
        "gpu_share",
        "RATIO TO fcfs",
        "SHA-256 of the trace",
        "Digests of runs",
    ):
        assert part in page
    results = json.loads((folder / "out" / "results.json").read_text())
    assert results["policies"][0]["runs"][0]["digest"] in page
    rows = list(csv.DictReader(io.StringIO((folder / "out" / "jobs.csv").read_text())))
    assert sorted((row["policy"], row["job_id"]) for row in rows) == sorted(
        (policy, job_id) for policy in ("fcfs", "elastic") for job_id in "abcde"
    )
    scopes = [row["scope"] for row in csv.DictReader(io.StringIO((folder / "out" / "results.csv").read_text()))]
    assert scopes == ["whole", "steady"] * 2


def test_policies_that_did_the_same_share_a_chart_of_gpus(arena: Arena, folder: Path) -> None:
    replay(arena, folder, "--policy", "fcfs,srtf,elastic", "--first", 1, "--out", folder / "out")
    page = (folder / "out" / "report.html").read_text()
    assert "<p>fcfs = srtf = elastic, first seed: 1 job on 4 GPUs</p>" in page
    assert len(re.findall(r'src="data:image/png', page)) == 4


def test_names_of_a_trace_cannot_write_the_report(arena: Arena, folder: Path) -> None:
    written(folder / "evil.csv", table(ITP_HEAD, "<script>alert(1)</script>$x^$,0,10,1"))
    assert replay(arena, folder, "--out", folder / "out", trace="evil.csv").code == 0
    assert "<script" not in (folder / "out" / "report.html").read_text()


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (("--policy", "nope"), "unknown policy 'nope'. Use one of arena, arena-greedy, "),
        (("--policy", "fcfs,fcfs"), "--policy fcfs,fcfs names one twice"),
        (("--policy", ","), "--policy names no policy"),
        (("--grids", "{}/steps.csv"), "--mapping default"),
        (("--grids", "{}/missing.csv"), "cannot read"),
        (("--mapping", "{}/mapping.yaml"), "nothing says how fast net__1B is: its name is no model that the planner"),
        (("--seeds", "3"), "would run the same thing 3 times"),
        (("--window", "900", "1000"), "no job was submitted from 900 to 1000 s"),
        (("--jobs", "0"), "--jobs 0 runs nothing"),
        (("--out", "{}/trace.csv"), "is a file"),
        (("--out", "{}/trace.csv/deeper", "--no-report"), "deeper/runs: Not a directory. Name another --out"),
        (("--load", "1e-320"), "is out of reach"),
    ],
)
def test_mistakes_are_told_in_one_line(arena: Arena, folder: Path, argv: Sequence[str], told: str) -> None:
    done = replay(arena, folder, *(part.format(folder) for part in argv))
    assert (done.code, done.out, done.err.count("\n")) == (4, "", 1)
    assert told in done.err


@pytest.mark.parametrize("option", ["--load", "--steps", "--length-sigma", "--restart-per-gpu-s", "--until"])
@pytest.mark.parametrize("number", ["nan", "inf", "-inf", "1e400"])
def test_what_is_no_finite_number_is_a_mistake_of_usage(arena: Arena, folder: Path, option: str, number: str) -> None:
    done = replay(arena, folder, "--lengths", "predicted", option, number)
    assert (done.code, done.out) == (2, "")
    assert f"Invalid value for '{option}'" in done.err


def test_the_largest_numbers_of_options_still_end_every_job(arena: Arena, folder: Path) -> None:
    argv = ("--steps", 1e6, "--lengths", "predicted", "--length-sigma", 10, "--restart-s", 1e9)
    done = replay(arena, folder, "--policy", "fcfs,elastic,srtf", *argv, "--json")
    assert done.code == 0
    assert [one["whole"]["unfinished_count"] for one in done.document["policies"]] == [0, 0, 0]


def test_a_full_disk_leaves_no_half_file_and_the_runs_before_it(arena: Arena, folder: Path) -> None:
    argv = ("--policy", "fcfs,elastic", "--out", folder / "out", "--no-report")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        done = replay(arena, folder, *argv)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert (done.code, done.out, done.err.count("\n")) == (8, "", 1)
    assert "File too large" in done.err
    assert list((folder / "out" / "runs").iterdir()) == []
    assert replay(arena, folder, *argv).code == 0


def test_jobs_that_fit_nowhere_are_told_or_left_out(arena: Arena, folder: Path) -> None:
    written(folder / "large.csv", table(ITP_HEAD, "a,0,100,4", "huge,5,100,64"))
    done = replay(arena, folder, trace="large.csv")
    assert done.code == 4
    assert "1 of 2 jobs can run nowhere on this cluster: huge (line 3)" in done.err
    assert done.err.endswith("or leave such jobs out with --drop-unplaceable\n")
    written(folder / "none.csv", table(ITP_HEAD, "huge,5,100,64"))
    assert replay(arena, folder, "--drop-unplaceable", trace="none.csv").err.endswith("Make the cluster larger\n")
    document = replay(arena, folder, "--drop-unplaceable", "--json", trace="large.csv").document
    assert (document["replayed_job_count"], document["unplaceable_count"]) == (1, 1)
    assert document["trace"]["left_out_count"] == 1


def test_a_trace_of_unknown_workloads_needs_a_table(arena: Arena, folder: Path) -> None:
    done = replay(arena, folder, trace="arena.csv")
    assert done.code == 4
    assert "nothing says how fast net__1B is" in done.err
    assert "models known by name: bert__760M, " in done.err


def test_workloads_that_are_known_by_name_are_planned_without_a_table(arena: Arena, folder: Path) -> None:
    """A model of twice the size takes longer on the same GPUs, and one that fits nowhere is told."""
    (folder / "cluster.yaml").write_text("nodes: [{type: a100-80, count: 1, gpus: 4}]\n")
    rows = [f"{size},0,10,bert__{size},-1,256,4,a100-80" for size in ("1.3B", "2.6B")]
    written(folder / "named.csv", table(ARENA_HEAD, *rows))
    options = ("--policy", "fcfs,arena-greedy:data_parallel=1", "--out", folder / "out", "--no-report")
    done = replay(arena, folder, *options, trace="named.csv")
    assert done.code == 0, done.err
    assert "planned as models of the names' sizes" in done.out
    jobs = list(csv.DictReader(io.StringIO((folder / "out" / "jobs.csv").read_text())))
    held = {one["job_id"]: float(one["gpu_seconds"]) for one in jobs if one["policy"] == "fcfs"}
    assert 1.5 < (held["2.6B"] - 40) / (held["1.3B"] - 40) < 3
    written(folder / "named.csv", table(ARENA_HEAD, "huge,0,10,moe__70B,-1,256,4,a100-80"))
    assert "can run nowhere on this cluster: huge" in replay(arena, folder, trace="named.csv").err


def test_errors_of_lengths_are_drawn_by_seed_and_row_alone() -> None:
    options = ReplayOptions(lengths="predicted", length_sigma=0.5)
    jobs = [itp_job(row, submitted_at_s=0.0) for row in range(2, 2002)]
    factors = sorted(length_factor(options, job, 7) for job in jobs)
    assert factors == sorted(length_factor(options, job, 7) for job in reversed(jobs))
    assert factors != sorted(length_factor(options, job, 8) for job in jobs)
    # Log-normal: the median is 1, and about 84 % are below e^sigma.
    assert factors[1000] == pytest.approx(1.0, rel=0.05)
    assert factors[1683] == pytest.approx(1.6487, rel=0.07)
    assert length_factor(replace(options, length_sigma=0.0), jobs[0], 7) == 1.0


class NoGrids:
    """A source whose grids hold nothing, so that no job can ever start."""

    version = "none"

    def grid(self, spec: JobSpec, shape: ClusterShape) -> Grid:
        return Grid(cells=(), infeasible=(), source="none")


def orders(folder: Path, seed_count: int) -> list[Order]:
    files = Files(cluster=str(folder / "cluster.yaml"))
    inputs = read_inputs(read_trace(folder / "trace.csv"), files, ReplayOptions())
    made = prepared(inputs, grids_of(inputs), seed=0)
    return [Order(policy="fcfs", seed=seed, scenario=made.scenario, key=f"{seed:064}") for seed in range(seed_count)]


def test_a_run_that_fails_leaves_what_led_to_it(folder: Path) -> None:
    good, bad = orders(folder, 2)
    bad = replace(bad, scenario=replace(bad.scenario, grids=NoGrids()))
    with pytest.raises(ReplayFaultError, match="5 jobs never ended") as error:
        run_all(
            [good, bad],
            process_count=1,
            directory=folder / "out",
            watch_of=lambda _: lambda _: None,
            tell=lambda _, __: None,
        )
    fault = json.loads(Path(error.value.details["file"]).read_text())
    assert fault["error"]["code"] == "replay_fault"
    assert [one["event"]["job_id"] for one in fault["last_events"] if one["event"]["kind"] == "job_submitted"] == [
        *"abcde"
    ]
    assert fault["snapshot"]["waiting"] == [*"abcde"]
    assert [path.name for path in (folder / "out" / "runs").iterdir()] == [good.file_name]


@dataclass(frozen=True)
class Oversubscribing:
    """Gives every waiting job the devices of the first."""

    name: str = "oversubscribing"
    version: str = "1"

    def decide(self, snapshot: Snapshot) -> Decision:
        decision = make_policy("fcfs").decide(snapshot)
        first = next(iter(decision.choices.values()), None)
        return replace(decision, choices=dict.fromkeys(snapshot.waiting, first)) if first else decision


def test_a_policy_that_gives_a_device_twice_fails_its_run_with_what_it_saw(folder: Path) -> None:
    [order] = orders(folder, 1)
    scenario = replace(
        order.scenario,
        jobs=tuple(replace(one, job=replace(one.job, submitted_at_s=0.0)) for one in order.scenario.jobs),
    )
    fault = executed(replace(order, scenario=scenario), Oversubscribing())
    assert isinstance(fault, Fault)
    assert "to both" in fault.what
    assert fault.document["snapshot"]["waiting"] == [*"abcde"]
    assert fault.document["snapshot"]["now_s"] == 0.0
    json.dumps(fault.document, allow_nan=False)
    assert pickle.loads(pickle.dumps(fault)) == fault


def test_the_program_is_part_of_what_names_a_result() -> None:
    assert len(replay_runs.code_digest()) == 64
    identity = {"files": {"trace": "x"}}
    first = replay_runs.key_of(identity, policy="fcfs", seed=0, trace_changes=())
    assert first == replay_runs.key_of(identity, policy="fcfs", seed=0, trace_changes=())
    others = [
        replay_runs.key_of({"files": {"trace": "y"}}, policy="fcfs", seed=0, trace_changes=()),
        replay_runs.key_of(identity, policy="elastic", seed=0, trace_changes=()),
        replay_runs.key_of(identity, policy="fcfs", seed=1, trace_changes=()),
        replay_runs.key_of(identity, policy="fcfs", seed=0, trace_changes=("the first 2 jobs",)),
    ]
    assert len({first, *others}) == 5


@pytest.mark.slow
def test_runs_at_the_same_time_give_the_same_results(arena: Arena, folder: Path) -> None:
    argv = ("--grids", folder / "steps.csv", "--mapping", folder / "mapping.yaml", "--seeds", 2, "--json")
    alone, together = (replay(arena, folder, *argv, "--jobs", count).document for count in (1, 2))
    digests = [[made["digest"] for made in one["policies"][0]["runs"]] for one in (alone, together)]
    assert digests[0] == digests[1]
    assert len(set(digests[0])) == 2


def test_jobs_that_nothing_can_shape_are_told(arena: Arena, folder: Path) -> None:
    done = replay(arena, folder, "--policy", "elastic")
    assert "jobs        all rigid" in done.out
    shaped = replay(arena, folder, "--policy", "elastic", "--grids", folder / "steps.csv", trace="arena.csv")
    assert "all rigid" not in shaped.out
    refused = replay(arena, folder, "--policy", "elastic", "--kind", "malleable")
    assert refused.code == 4
    assert "5 of 5 jobs cannot be malleable" in refused.err
