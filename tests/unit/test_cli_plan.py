"""``arena plan``: grids of cluster files, pictures, and every kind of bad input."""

from __future__ import annotations

import re
import resource
import struct
import sys
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from arena.cli.main import run
from arena.cli.output import Output
from arena.cli.plan import with_progress
from arena.cli.plan_explain import StageMemory
from arena.cli.plan_grid import (
    Goal,
    PricedCell,
    Work,
    front,
    infeasible_counts,
    merged,
    one_for_each_count,
    priced_cells,
)
from arena.cli.plan_tables import number_text, short_text, write_details, write_front, write_grid, write_infeasible
from arena.domain.allocation import GpuGroup
from arena.domain.grid import Cell, Estimate, Grid, InfeasibleGroup, PlanEstimate
from arena.domain.parallel import parse_plan
from arena.domain.reason import ReasonCode, reason
from arena.planner.hardware import catalog
from arena.planner.source import PlannerGridSource
from arena.units import GIB
from tests.builders import shape, train_spec
from tests.fakes.command_line import Arena, Terminal
from tests.fakes.local_cluster import wait_until
from tests.fakes.planned_job import CLUSTER, JOB, planning_in

ANSI = re.compile(r"\x1b\[[0-9;]*m")
GOLDEN = Path(__file__).parents[1] / "golden" / "cli"


@pytest.fixture
def arena(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Arena:
    """Runs ``arena plan job.yaml --cluster cluster.yaml`` with further words, in a directory with these files."""
    return planning_in(tmp_path, capsys, monkeypatch)


def estimate_of(iter_time_s: float, usd_per_step: float, *memory_gib: float) -> Estimate:
    return Estimate(
        iter_time_s=iter_time_s,
        memory_bytes_by_stage=tuple(int(size * GIB) for size in memory_gib),
        breakdown_s={"compute": iter_time_s * 0.75, "data_parallel": iter_time_s * 0.25, "update": 0.0},
        relative_error=0.12,
        usd_per_step=usd_per_step,
    )


def cell_of(group: GpuGroup, plan: str, estimate: Estimate) -> Cell:
    return Cell(group=group, best=PlanEstimate(plan=parse_plan(plan, layer_count=8), estimate=estimate))


A100_8 = GpuGroup.of("a100-80", [8])
A100_44 = GpuGroup.of("a100-80", [4, 4])
A100_4 = GpuGroup.of("a100-80", [4])
T4_16 = GpuGroup.of("t4", [8, 8])
GRID = Grid(
    cells=(
        cell_of(A100_4, "dp4 mb1", estimate_of(2.0, 0.004, 33.25)),
        cell_of(A100_8, "dp4 tp2 mb2 zero1", estimate_of(1.0, 0.005, 20.5)),
        cell_of(A100_44, "dp8 mb1", estimate_of(1.25, 0.006, 30.0)),
        cell_of(T4_16, "dp1 tp2 pp8 mb1 zero3 recompute=full sp", estimate_of(12.5, 0.005, 13.0, 0.5)),
    ),
    infeasible=(
        InfeasibleGroup(
            group=GpuGroup.of("t4", [8]),
            reason=reason(ReasonCode.MEMORY, needed_gib=61.04, stage=0, capacity_gib=15.0),
        ),
        InfeasibleGroup(
            group=GpuGroup.of("a100-80", [2, 2]), reason=reason(ReasonCode.DIVISIBILITY, detail="not shown: 4 fits")
        ),
    ),
    source="test",
)
WORK = Work(unit="token", units_per_step=100_000)


def rows_of(grid: Grid = GRID, goal: Goal = Goal.THROUGHPUT) -> tuple[PricedCell, ...]:
    rows = priced_cells(grid, WORK, catalog(), goal)
    return tuple(replace(row, usable_memory_bytes=75 * GIB) for row in rows)


def written(stream: StringIO) -> str:
    out = Output(json_mode=False, stream=stream)
    rows = rows_of()
    shown = one_for_each_count(rows)
    write_grid(out, shown, WORK, left_out=len(rows) - len(shown))
    write_front(out, rows, WORK, Goal.THROUGHPUT)
    stage = StageMemory(
        state_bytes=12 * GIB,
        gathered_bytes=0,
        activations_bytes=6 * GIB,
        working_bytes=GIB // 4,
        logits_bytes=GIB,
        exchange_bytes=GIB // 2,
        context_bytes=GIB,
        total_bytes=20 * GIB,
    )
    write_details(out, shown[0], shown[0].best.estimate, [stage], title="a100-80 8")
    write_infeasible(out, infeasible_counts(GRID))
    return stream.getvalue()


def plain(text: str) -> str:
    """What a terminal shows, without styles and the blanks at the ends of lines."""
    return "\n".join(line.rstrip() for line in ANSI.sub("", text).split("\n"))


def test_off_a_terminal_the_tables_are_whole_and_plain() -> None:
    assert written(StringIO()) == (GOLDEN / "plan.txt").read_text()


@pytest.mark.parametrize(("columns", "golden"), [("50", "plan-50.txt"), ("60", "plan-60.txt"), ("100", "plan-100.txt")])
def test_a_terminal_too_narrow_for_the_table_gets_what_matters_most_or_lines(
    monkeypatch: pytest.MonkeyPatch, columns: str, golden: str
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("NO_COLOR", "1")
    assert plain(written(Terminal())) == (GOLDEN / golden).read_text()


def test_numbers_are_never_folded_on_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for columns in range(36, 130, 7):
        monkeypatch.setenv("COLUMNS", str(columns))
        text = written(Terminal())
        for word, column in (("100,000", "-"), ("20.5/75.0 GiB", "MEMORY"), ("±12%", "SURE"), ("750ms (75.0%)", "-")):
            is_left_out = re.search(rf"left out: [^(]*\b{column}\b", plain(text)) is not None
            assert word in text or is_left_out, columns


def test_rows_come_in_the_order_of_the_objective() -> None:
    assert [str(row.group) for row in rows_of()] == ["a100-80 8", "a100-80 4+4", "a100-80 4", "t4 8+8"]
    by_cost = [str(row.group) for row in rows_of(goal=Goal.COST)]
    assert by_cost == ["a100-80 4", "a100-80 8", "t4 8+8", "a100-80 4+4"]


def test_the_front_holds_what_nothing_beats_on_both_counts() -> None:
    rows = rows_of()
    kept = {str(row.group) for row in rows if row.is_on_front}
    assert kept == {"a100-80 8", "a100-80 4"}
    for row in rows:
        beaten = any(
            other.units_per_s >= row.units_per_s
            and other.usd_per_million_units <= row.usd_per_million_units
            and (other.units_per_s, other.usd_per_million_units) != (row.units_per_s, row.usd_per_million_units)
            for other in rows
        )
        assert row.is_on_front is not beaten


def test_of_groups_that_are_alike_the_smallest_is_on_the_front() -> None:
    free = [cell_of(group, "dp1", estimate_of(1.0, 0.0, 1.0)) for group in (A100_8, A100_4, A100_44)]
    rows = rows_of(Grid(cells=tuple(free)))
    assert [str(rows[index].group) for index in front(rows)] == ["a100-80 4"]


def test_prices_and_speeds_by_hand() -> None:
    row = next(row for row in rows_of() if row.group == A100_4)
    assert row.units_per_s == 50_000
    assert row.usd_per_million_units == pytest.approx(0.04)
    images = Work.of(train_spec(model={"family": "vit", "image_size": 8, "patch_size": 4, "class_count": 3}).train)  # type: ignore[arg-type]
    assert (images.unit, images.units_per_step) == ("image", 8)


def test_an_infeasible_count_says_from_where_its_type_fits() -> None:
    found = [(str(item.group), str(first)) for item, first in infeasible_counts(GRID)]
    assert found == [("t4 8", "fits from 16 GPUs with tp2")]


def test_where_a_plan_without_tensor_parallelism_fits_as_well_none_is_asked_for() -> None:
    cell = cell_of(T4_16, "dp1 tp2 pp8 mb1", estimate_of(12.5, 0.005, 13.0, 0.5))
    other = PlanEstimate(plan=parse_plan("dp2 pp8 mb1", layer_count=8), estimate=estimate_of(14.0, 0.005, 12.0, 0.5))
    grid = replace(GRID, cells=(*GRID.cells[:-1], replace(cell, others=(other,))))
    assert [str(first) for _, first in infeasible_counts(grid)] == ["fits from 16 GPUs"]


@pytest.mark.parametrize(
    ("counts", "text"),
    [([4], "t4 4"), ([4, 4, 4, 4], "t4 4+4+4+4"), ([8] * 500, "t4 500x8"), ([8, 8, 8, 8, 7], "t4 4x8+7")],
)
def test_many_nodes_that_are_alike_are_counted(counts: list[int], text: str) -> None:
    assert short_text(GpuGroup.of("t4", counts)) == text


def test_counts_that_do_not_fit_for_one_reason_are_one_row(arena: Arena) -> None:
    done = arena("--set", "train.precision=fp16")
    assert done.code == 4
    why = "precision fp16 needs loss scaling, which the worker does not do; use bf16 or fp32"
    assert done.out.splitlines()[-2:] == [f"a100-40 1..8 GPUs  {why}", f"tiny 1..2 GPUs     {why}"]


def test_many_nodes_are_counted_in_reasons_too(arena: Arena, tmp_path: Path) -> None:
    (tmp_path / "cluster.yaml").write_text("nodes: [{type: a100-40, count: 50, gpus: 8}]")
    done = arena("--gpus", "397")
    assert "a100-40 47x8+3x7  a100-40 47x8+3x7: heads = 12: tp in {1, 2, 3, 4, 6, 12}; 397 does not divide" in done.out
    assert "    tp stays inside a node (a100-40 47x8+3x7)" in done.out


def test_grids_by_type_put_together_are_the_grid_of_the_cluster() -> None:
    spec, cluster = train_spec(), shape(("cpu", 2, 2), ("t4", 2, 1))
    source = PlannerGridSource()
    whole = source.grid(spec, cluster)
    parts = [
        source.grid(spec.model_copy(update={"gpus": spec.gpus.model_copy(update={"types": (name,)})}), cluster)
        for name in ("t4", "cpu")
    ]
    assert merged(parts) == whole


@pytest.mark.parametrize(
    ("value", "text"),
    [(1234.5, "1,234"), (99.96, "100"), (9.996, "10.0"), (1, "1.00"), (0.9996, "1.00"), (0.34, "0.340"), (0, "0.00")],
)
def test_numbers_have_three_figures(value: float, text: str) -> None:
    assert number_text(value) == text


def test_a_job_on_a_cluster_file(arena: Arena) -> None:
    done = arena()
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    assert lines[0].split() == ["GROUP", "PLAN", "STEP", "TOKENS/S", "USD/M", "TOKENS", "MEMORY", "SURE"]
    assert lines[1].startswith("a100-40 4+4")
    assert "PARETO FRONT" in done.out
    assert "\x1b" not in done.out
    assert re.search(r"^tiny 1 +needs [0-9.]+ GiB on stage 0, has ", done.out, re.MULTILINE)


def test_the_same_as_json(arena: Arena) -> None:
    found = arena("--json").document
    assert (found["job"], found["objective"], found["unit"], found["units_per_step"]) == (
        *("mine", "throughput", "token"),
        64 * 1024,
    )
    speeds = [cell["units_per_s"] for cell in found["cells"]]
    assert speeds == sorted(speeds, reverse=True)
    for cell in found["cells"]:
        estimate = cell["best"]["estimate"]
        assert cell["units_per_s"] == pytest.approx(64 * 1024 / estimate["iter_time_s"])
        assert max(estimate["memory_bytes_by_stage"]) <= cell["usable_memory_bytes"]
        price = catalog()[cell["group"]["parts"][0]["gpu_type"]].usd_per_hour
        spent = cell["group"]["gpu_count"] * price * estimate["iter_time_s"] / 3600
        assert cell["usd_per_million_units"] == pytest.approx(spent / (64 * 1024) * 1e6)
        assert cell["best"]["plan"]["gpu_count"] == cell["group"]["gpu_count"]
    assert found["front"] == [cell["group"]["text"] for cell in found["cells"] if cell["is_on_front"]]
    assert found["front"]
    assert {item["group"]["parts"][0]["gpu_type"] for item in found["infeasible"]} == {"tiny"}
    assert found["infeasible"][0]["reason"]["numbers"]["needed_gib"] > 1
    assert (found["layouts"], found["png"]) == ([], None)


def test_a_type_like_another_is_priced_as_that_one(arena: Arena, tmp_path: Path) -> None:
    (tmp_path / "cluster.yaml").write_text(
        "nodes: [{type: h100, gpus: 2}, {type: mine, gpus: 2}, {type: slow, gpus: 2}]\n"
        "gpu_types: {mine: {like: h100}, slow: {like: h100, memory_gb_per_s: 335}}"
    )
    cells = arena("--gpus", "2", "--json").document["cells"]
    by_type = {cell["group"]["parts"][0]["gpu_type"]: cell["best"] for cell in cells}
    assert by_type["mine"] == by_type["h100"]
    assert by_type["slow"]["estimate"]["iter_time_s"] > by_type["h100"]["estimate"]["iter_time_s"]


def test_a_bar_shows_that_planning_goes_on_where_it_takes_long() -> None:
    stream = Terminal()
    console = Console(file=stream, force_terminal=True, width=80)
    for _ in with_progress(["t4", "h100"], console, after_s=0.0):
        wait_until(lambda: "planning on" in stream.getvalue(), "a bar")
    assert "planning on h100" in stream.getvalue()


def test_no_bar_flashes_up_where_planning_is_quick() -> None:
    stream = Terminal()
    console = Console(file=stream, force_terminal=True, width=80)
    assert list(with_progress(["t4", "h100"], console, after_s=3600.0)) == ["t4", "h100"]
    assert stream.getvalue() == ""


def test_cost_first(arena: Arena) -> None:
    prices = [cell["usd_per_million_units"] for cell in arena("--objective", "cost", "--json").document["cells"]]
    assert prices == sorted(prices)


def test_twelve_heads_on_eight_gpus_say_which_tp_there_is_and_why_not_8(arena: Arena, tmp_path: Path) -> None:
    (tmp_path / "cluster.yaml").write_text("nodes: [{type: a100-40, gpus: 8}]")
    done = arena("--gpus", "8")
    assert done.code == 0
    layouts = done.out[done.out.index("LAYOUTS") :].splitlines()
    assert layouts[1] == "8 GPUs: tp in {1, 2, 4}"
    assert "    heads = 12: tp in {1, 2, 3, 4, 6, 12}; 8 does not divide" in layouts
    found = arena("--gpus", "8", "--json").document
    assert [one["tp"] for one in found["layouts"]] == [[1, 2, 4]]
    plans = [one["plan"]["tp"] for cell in found["cells"] for one in (cell["best"], *cell["others"])]
    assert set(plans) <= {1, 2, 4}


def test_no_layout_at_all_says_what_would_do(arena: Arena, tmp_path: Path) -> None:
    (tmp_path / "cluster.yaml").write_text("nodes: [{type: a100-40, gpus: 8}]")
    done = arena("--gpus", "7", "--set", "train.global_batch=3", "--set", "train.model.layers=5")
    assert done.code == 4
    assert done.out.startswith("no group of this cluster can hold the job\n")
    assert "heads = 12: tp in {1, 2, 3, 4, 6, 12}; 7 does not divide" in done.out
    assert "7 GPUs: tp in none" in done.out
    assert "global batch = 3: dp at most 3" in done.out


def test_only_a_count_and_a_type(arena: Arena) -> None:
    found = arena("--gpus", "2", "--type", "a100-40", "--json", "--set", "gpus.types=[tiny]").document
    assert {cell["group"]["text"] for cell in found["cells"]} == {"a100-40 2", "a100-40 1+1"}
    assert found["infeasible"] == []


def test_more_gpus_than_there_are(arena: Arena) -> None:
    done = arena("--gpus", "99")
    assert done.code == 4
    assert "a100-40 99  needs at least 99 GPUs, largest feasible now: 8" in done.out
    assert "LAYOUTS" not in done.out


def test_a_type_of_the_job_that_the_cluster_lacks(arena: Arena) -> None:
    done = arena("--set", "gpus.types=[h100]", "--json")
    assert done.code == 4
    (item,) = done.document["infeasible"]
    assert item["reason"]["text"] == "no h100 GPUs in this cluster (a100-40, tiny)"


def test_every_node_shape_and_every_breakdown(arena: Arena) -> None:
    few, every = arena("--gpus", "4"), arena("--gpus", "4", "--all", "--details")
    assert few.out.count("a100-40 2+2") < every.out.count("a100-40 2+2")
    assert "node shapes left out: 1 (--all)" in few.out
    assert (few.out.count("\ntime    "), every.out.count("\ntime    ")) == (1, 2)


@pytest.mark.parametrize(
    ("argv", "code", "said"),
    [
        (["--explain", "dp2 tq3"], 4, "unknown word 'tq3'. Write it like 'dp2 tp2 pp1 mb1 zero3'"),
        (["--explain", "pp13"], 4, "Use pp x virtual stages of at most 12"),
        (["--explain", "[layers=12 tp1@t4*2] mb1"], 4, "Name the type and zone of one: a100-40/east, tiny/west"),
        (["--explain", "[layers=12 tp1@tiny,tp1@a100-40] mb1"], 4, "no link between zones"),
        (["--explain", "[layers=12 tp1@tiny*2] mb1 zero1"], 4, "Leave that out, or name no GPU types and zones"),
        (["--explain", "dp2", "--gpus", "4"], 4, "--gpus and --explain exclude each other"),
        (["--explain", "dp2", "--png", "x.png"], 4, "--png draws a grid, --explain has none"),
        (["--type", "h100"], 4, "no h100 GPUs in this cluster. --type is one of a100-40, tiny"),
        (["--gpus", "0"], 2, "0 is not in the range x>=1"),
        (["--objective", "speed"], 2, "'speed' is not one of 'throughput', 'cost'"),
        (["--set", "train.model.heads=5"], 4, "hidden (768) must be a multiple of heads (5)"),
        (["--set", "train.model.heads"], 4, "--set train.model.heads has no value"),
        (["--set", "parallel.plan=dp2", "--gpus", "4"], 4, "the job pins plan 'dp2', which has its own size"),
        (["--png", "nowhere/x.png"], 4, "cannot write nowhere/x.png: there is no directory nowhere"),
    ],
)
def test_a_wrong_command_line_says_what_would_do(arena: Arena, argv: list[str], code: int, said: str) -> None:
    done = arena(*argv)
    assert (done.code, done.out) == (code, "")
    assert said in done.err


@pytest.mark.parametrize(
    ("cluster", "said"),
    [
        (
            "nodes: [{type: a100, gpus: 8}]",
            "nodes.0.type: unknown GPU type 'a100', did you mean 'a100-40' or 'a100-80'",
        ),
        (CLUSTER + "    link_gb_per_s: 0", "error: "),
        (CLUSTER.replace("memory_gib: 1", "link_gb_per_s: 0"), "got 0; allowed: at least 0.001 (in the catalog "),
        (CLUSTER.replace("memory_gib: 1", "usd_per_hour: -1"), "got -1; allowed: at least 0"),
        ("", "A cluster file looks like this: nodes: [{type: "),
    ],
)
def test_a_wrong_cluster_file_says_what_would_do(arena: Arena, tmp_path: Path, cluster: str, said: str) -> None:
    (tmp_path / "cluster.yaml").write_text(cluster)
    done = arena()
    assert (done.code, done.out) == (4, "")
    assert said in done.err
    assert "cluster.yaml" in done.err


def test_files_that_are_not_there(arena: Arena) -> None:
    assert "cannot read none.yaml: No such file or directory" in arena(job="none.yaml").err
    done = arena(cluster="none.yaml")
    assert (done.code, "cannot read none.yaml" in done.err, "arena plan --help" in done.err) == (4, True, True)


def test_a_command_has_no_plans(arena: Arena, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("name: c\nkind: rigid\ncommand: {argv: [python]}\ngpus: {count: 1}\n")
    done = arena()
    assert done.code == 4
    assert "job c runs a command, which lays itself out: only a job with `train` has plans" in done.err


def test_a_plan_that_the_job_pins_is_the_only_one(arena: Arena) -> None:
    found = arena("--set", "parallel.plan=dp2 tp2 mb4", "--json").document
    plans = {one["plan"]["text"] for cell in found["cells"] for one in (cell["best"], *cell["others"])}
    assert plans == {"dp2 tp2 pp1 mb4"}


def test_a_job_may_come_from_standard_input(arena: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", StringIO(JOB))
    assert arena("--gpus", "1", "--json", job="-").document["job"] == "mine"


@pytest.mark.parametrize("objective", ["throughput", "cost"])
def test_a_picture(arena: Arena, tmp_path: Path, objective: str) -> None:
    pytest.importorskip("matplotlib")
    done = arena("--objective", objective, "--png", "grid.png", "--json")
    assert done.document["png"] == "grid.png"
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]
    data = (tmp_path / "grid.png").read_bytes()
    width, height = struct.unpack(">II", data[16:24])
    assert data.startswith(b"\x89PNG\r\n")
    assert width > 400
    assert height > 200


def test_free_gpus_can_be_drawn(arena: Arena, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    (tmp_path / "cluster.yaml").write_text("nodes: [{type: a100-40, gpus: 2}]\ngpu_types: {a100-40: {usd_per_hour: 0}}")
    done = arena("--objective", "cost", "--png", "grid.png")
    assert (done.code, done.out.splitlines()[-1]) == (0, "drawn in grid.png")


def test_without_a_feasible_group_nothing_is_drawn(arena: Arena, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    done = arena("--type", "tiny", "--png", "grid.png", "--json", "--set", "train.model.layers=96")
    assert (done.code, done.document["png"], (tmp_path / "grid.png").exists()) == (4, None, False)


def test_without_matplotlib_a_picture_is_refused_before_anything_is_planned(
    arena: Arena, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    done = arena("--png", "grid.png")
    assert (done.code, done.out) == (4, "")
    assert (
        "--png needs matplotlib, which is not installed. Install it with pip install 'arena-sched[report]'" in done.err
    )


def test_a_picture_that_the_disk_has_no_room_for_is_not_there_in_part(arena: Arena, tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        done = arena("--png", "grid.png")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert done.code == 8
    assert "cannot write grid.png: File too large" in done.err
    assert not [path for path in tmp_path.iterdir() if path.suffix == ".png" or path.name.startswith(".")]


@pytest.mark.parametrize(
    ("job", "cluster", "said"),
    [
        ("cluster.yaml", "job.yaml", "cluster.yaml is no job file: it looks like a cluster file."),
        ("job.yaml", "job.yaml", "job.yaml is no cluster file: it looks like a job file."),
        ("job.yaml", "shares.yaml", "shares.yaml is no cluster file: it looks like a tenants file."),
    ],
)
def test_files_that_are_swapped_are_told_as_that_alone(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    job: str,
    cluster: str,
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cluster.yaml").write_text("nodes: [{type: cpu, count: 2, gpus: 1}]\n")
    (tmp_path / "shares.yaml").write_text("projects: {red: {gpus: 1}}\n")
    (tmp_path / "job.yaml").write_text(
        "name: x\ntrain: {model: {family: gpt, layers: 2, hidden: 8, heads: 2}, global_batch: 4}\n"
    )
    assert run(["plan", job, "--cluster", cluster]) == 4
    told = capsys.readouterr().err
    assert told.startswith(f"error: {said}")
    assert told.count("\n") == 1


def test_what_is_wrong_in_a_file_of_the_right_kind_is_told_field_by_field(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.yaml").write_text("name: x\ntrain: {}\nnodes: 2\n")
    assert run(["plan", "job.yaml", "--cluster", "cluster.yaml"]) == 4
    assert "job.yaml:3:1: nodes: unknown field" in capsys.readouterr().err
