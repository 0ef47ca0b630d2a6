"""``arena plan`` over several GPU types and zones: the best plan with its bound, and plans of the user's own."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from arena.cli.main import run
from arena.planner.hardware import catalog
from tests.fakes.command_line import Arena, Done

JOB = """
name: mine
train:
  model: {family: gpt, layers: 12, hidden: 768, heads: 12, vocab_size: 50304, seq_len: 1024}
  precision: bf16
  global_batch: 64
"""
NODES = """
nodes:
  - {type: a100-40, gpus: 4, zone: east}
  - {type: a100-80, gpus: 4, zone: east}
  - {type: a100-40, gpus: 4, zone: west}
"""
LINKS = """
links:
  - {between: [west, east], gb_per_s: 0.1, us: 30000, usd_per_gb: 0.02}
"""


@pytest.fixture
def arena(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Arena:
    """Runs ``arena plan job.yaml --cluster cluster.yaml`` with further words, in a directory with these files."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.yaml").write_text(JOB)
    (tmp_path / "cluster.yaml").write_text(NODES + LINKS)

    def call(*argv: str) -> Done:
        code = run(["plan", "job.yaml", "--cluster", "cluster.yaml", *argv])
        captured = capsys.readouterr()
        return Done(code, captured.out, captured.err)

    return call


def test_types_of_one_zone_together_beat_each_alone(arena: Arena) -> None:
    found = arena("--json").document

    mixed, best = found["mixed"], found["cells"][0]
    assert {(one["gpu_type"], one["zone"], one["gpu_count"]) for one in mixed["gpus"]} == {
        ("a100-40", "east", 4),
        ("a100-80", "east", 4),
    }
    assert mixed["estimate"]["iter_time_s"] < best["best"]["estimate"]["iter_time_s"]
    assert mixed["bound"] <= mixed["estimate"]["iter_time_s"] * (1 + 1e-9)
    assert mixed["gap"] == pytest.approx(1 - mixed["bound"] / mixed["estimate"]["iter_time_s"], abs=1e-6)
    per_hour = sum(one["gpu_count"] * catalog()[one["gpu_type"]].usd_per_hour for one in mixed["gpus"])
    assert mixed["estimate"]["usd_per_step"] == pytest.approx(per_hour * mixed["estimate"]["iter_time_s"] / 3600)
    assert mixed["refusals"] == []


def test_people_read_the_plan_its_bound_and_its_stages(arena: Arena) -> None:
    done = arena()

    assert done.code == 0
    text = done.out[done.out.index("MIXED GPUS") :]
    assert re.search(r"^4 a100-40/east, 4 a100-80/east: [0-9,]+ tokens/s, ", text, re.MULTILINE)
    assert re.search(r"^bound   no plan over these GPUs takes less than [0-9.]+ms, [0-9.]+% better", text, re.MULTILINE)
    assert re.search(r"^0 +12 +a100-40/east +4 x tp1 +[0-9.]+/38.8 GiB", text, re.MULTILINE)


def test_zones_are_crossed_only_where_the_job_allows_it_and_a_link_is_known(arena: Arena, tmp_path: Path) -> None:
    cluster = NODES + LINKS.replace("gb_per_s: 0.1, us: 30000", "gb_per_s: 1000, us: 1")
    (tmp_path / "cluster.yaml").write_text(cluster)

    apart, across = (
        arena("--json").document["mixed"],
        arena("--set", "gpus.same_zone=false", "--json").document["mixed"],
    )
    (tmp_path / "cluster.yaml").write_text(NODES)
    unlinked = arena("--set", "gpus.same_zone=false", "--json").document["mixed"]

    assert {one["zone"] for one in apart["gpus"]} == {one["zone"] for one in unlinked["gpus"]} == {"east"}
    assert {one["zone"] for one in across["gpus"]} == {"east", "west"}
    assert across["transfer_usd_per_step"] > 0
    assert across["units_per_s"] > apart["units_per_s"]


@pytest.mark.parametrize("limit", ["parallel.plan=dp4", "parallel.dp_max=4", "parallel.zero=[1]"])
def test_a_job_with_limits_that_mixed_plans_know_nothing_of_has_none(arena: Arena, limit: str) -> None:
    assert arena("--set", limit, "--json").document["mixed"] is None


@pytest.mark.parametrize(
    ("limit", "least", "most"),
    [
        ("gpus={max: 8}", 1, 8),
        ("gpus={count: 6}", 6, 6),
        ("gpus={count: 7}", 7, 7),
        ("gpus={min: 7}", 7, 8),
        ("gpus={nodes_max: 2}", 1, 8),
    ],
)
def test_a_mixed_plan_keeps_to_the_gpus_and_nodes_that_a_job_asks_for(
    arena: Arena, limit: str, least: int, most: int
) -> None:
    gpus = arena("--set", limit, "--json").document["mixed"]["gpus"]
    assert least <= sum(one["gpu_count"] for one in gpus) <= most
    assert len(gpus) == 2


@pytest.mark.parametrize("limit", ["gpus={nodes_max: 1}", "gpus={max: 4}"])
def test_what_one_type_does_best_is_no_mixed_plan(arena: Arena, limit: str) -> None:
    assert arena("--set", limit, "--json").document["mixed"] is None


def test_a_plan_that_names_types_and_zones_is_priced(arena: Arena) -> None:
    plan = "[layers=5 tp1@a100-80*2 | layers=7 tp1@a100-40/east,tp1@a100-40/west] mb2"

    done = arena("--explain", plan)
    found = arena("--explain", plan, "--json").document["mixed"]

    assert done.code == 0
    assert re.search(r"^0 +5 +a100-80/east +2 x tp1 ", done.out, re.MULTILINE)
    assert re.search(r"^1 +7 +a100-40/east +1 x tp1 ", done.out, re.MULTILINE)
    assert re.search(r"^1 +7 +a100-40/west +1 x tp1 ", done.out, re.MULTILINE)
    assert re.search(r"USD a step, [0-9.]+ of it between zones$", done.out, re.MULTILINE)
    assert found["bound"] is None
    assert found["transfer_usd_per_step"] > 0


def test_a_plan_for_more_gpus_than_there_are_says_so(arena: Arena) -> None:
    done = arena("--explain", "[layers=12 tp1@a100-80*5] mb1")

    assert done.code == 4
    assert re.search(r"cannot run: .*5.*a100-80/east", done.out)


def test_what_does_not_keep_the_constraints_is_left_out(arena: Arena) -> None:
    every = arena("--json").document
    times_s = sorted(cell["best"]["estimate"]["iter_time_s"] for cell in every["cells"])
    middle_s = times_s[len(times_s) // 2]

    kept = arena("--json", "--min-steps-per-s", str(1 / middle_s)).document
    assert {cell["best"]["estimate"]["iter_time_s"] for cell in kept["cells"]} == {
        time_s for time_s in times_s if time_s <= middle_s * (1 + 1e-12)
    }
    assert kept["mixed"]["estimate"]["iter_time_s"] <= middle_s

    budget = min(cell["best"]["estimate"]["usd_per_step"] for cell in every["cells"])
    cheap = arena("--json", "--max-usd-per-step", str(budget * 1.0001)).document
    assert all(cell["best"]["estimate"]["usd_per_step"] <= budget * 1.0001 for cell in cheap["cells"])
    assert cheap["cells"]


def test_constraints_that_nothing_keeps_are_told_with_what_would_do(arena: Arena) -> None:
    done = arena("--max-usd-per-step", "1e-9")
    assert done.code == 4
    assert "asked for at most 1e-09 USD a step; the fastest plan is" in done.err
    assert re.search(r"Ask for a budget of at least [\d.]+ USD a step$", done.err.strip())
    both = arena("--max-usd-per-step", "1e-9", "--min-steps-per-s", "1e9")
    assert re.search(r"Ask for a budget of at least [\d.]+ USD a step and at most [\d.]+ steps/s$", both.err.strip())


def test_the_jobs_own_deadline_and_budget_are_kept(arena: Arena) -> None:
    free = arena("--json", "--set", "stop.steps=1000").document
    slowest_s = max(cell["best"]["estimate"]["iter_time_s"] for cell in free["cells"])
    kept = arena("--json", "--set", "stop.steps=1000", "--set", f"deadline_s={999 * slowest_s}").document
    assert 0 < len(kept["cells"]) < len(free["cells"])
    dear = max(cell["best"]["estimate"]["usd_per_step"] for cell in free["cells"])
    cheap = arena("--json", "--set", "stop.steps=1000", "--set", f"budget_usd={999 * dear}").document
    assert 0 < len(cheap["cells"]) < len(free["cells"])


def test_a_deadline_needs_steps(arena: Arena) -> None:
    done = arena("--deadline-s", "3600")
    assert done.code == 4
    assert "--set stop.steps=N" in done.err
    late = arena("--deadline-s", "1", "--set", "stop.steps=1000000")
    assert "1000000 steps within 1 s" in late.err
