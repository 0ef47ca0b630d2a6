"""``arena plan --explain``: plans of the user's own, priced, or everything that keeps them from running."""

from __future__ import annotations

from pathlib import Path

import pytest

from arena.planner.memory import USABLE_SHARE
from tests.fakes.command_line import Arena
from tests.fakes.planned_job import planning_in


@pytest.fixture
def arena(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Arena:
    """Runs ``arena plan job.yaml --cluster cluster.yaml`` with further words, in a directory with these files."""
    return planning_in(tmp_path, capsys, monkeypatch)


def test_an_own_plan_is_priced_on_each_group_of_its_size(arena: Arena) -> None:
    found = arena("--explain", "dp2 tp2 mb2 zero1", "--json").document
    assert (found["plan"]["text"], found["refusals"]) == ("dp2 tp2 pp1 mb2 zero1", [])
    assert [one["group"]["text"] for one in found["groups"]] == ["a100-40 4", "a100-40 2+2"]
    for one in found["groups"]:
        (stage,) = one["memory_by_stage"]
        moment = max(stage["working_bytes"], stage["logits_bytes"], stage["exchange_bytes"])
        lasting = sum(stage[f"{part}_bytes"] for part in ("state", "gathered", "activations", "context"))
        assert stage["total_bytes"] == pytest.approx(lasting + moment, abs=8)
        assert one["estimate"]["memory_bytes_by_stage"] == [stage["total_bytes"]]
        assert sum(one["estimate"]["breakdown_s"].values()) == pytest.approx(one["estimate"]["iter_time_s"])
        assert one["units_per_s"] == pytest.approx(64 * 1024 / one["estimate"]["iter_time_s"])
    same, spread = (one["estimate"]["iter_time_s"] for one in found["groups"])
    assert spread > same


def test_the_best_plan_explained_is_as_the_grid_has_it(arena: Arena) -> None:
    best = arena("--gpus", "8", "--json").document["cells"][0]
    (one,) = arena("--explain", best["best"]["plan"]["text"], "--json").document["groups"]
    assert one["estimate"] == best["best"]["estimate"]
    assert one["best"]["plan"] == best["best"]["plan"]


def test_an_own_plan_that_cannot_run_says_all_its_reasons(arena: Arena) -> None:
    done = arena("--explain", "dp1 tp8 pp1 mb1 ep2")
    assert done.code == 4
    assert "cannot run: tp8 does not divide model.heads = 12; possible: tp in {1, 2, 3, 4, 6, 12}" in done.out
    assert "cannot run: the model has no experts" in done.out
    assert "cannot run: tp8 would span nodes on a100-40 4+4; tp stays inside a node" in done.out
    assert "\nbest here: dp" in done.out


def test_an_own_plan_that_is_too_big_says_by_how_much(arena: Arena) -> None:
    done = arena("--explain", "dp2", "--json")
    by_group = {one["group"]["text"]: one for one in done.document["groups"]}
    assert done.code == 0, "the plan fits the larger GPUs"
    (told,) = by_group["tiny 2"]["refusals"]
    assert told.startswith("needs ")
    assert told.endswith(f" GiB on stage 0, has {USABLE_SHARE:.1f}")
    assert by_group["tiny 2"]["estimate"]["iter_time_s"] > 0


def test_an_uneven_plan_is_explained_stage_by_stage(arena: Arena) -> None:
    done = arena("--explain", "[layers=8 tp2 | layers=4 tp1*2] mb1", "--type", "a100-40")
    assert done.code == 0
    assert [line.split()[0] for line in done.out.splitlines() if line[:1].isdigit()][:2] == ["0", "1"]


def test_a_plan_of_no_groups_size(arena: Arena) -> None:
    done = arena("--explain", "dp16 mb1")
    assert done.code == 4
    assert "it is for 16 GPUs of one type in one zone; the cluster has a100-40/east 8, tiny/west 2" in done.out
