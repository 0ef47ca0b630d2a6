"""Pictures of a replay: what is drawn, before it is drawn."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest

from arena.cli import replay_gantt, replay_pictures
from arena.cli.replay_gantt import Block, blocks_of, colour_indices, gantt_png, label_text
from arena.cli.replay_pictures import cdf_png, jct_curve, series_png, together
from arena.cli.replay_results import Study


def run(policy: str, jct_s: Sequence[float], *, seed: int = 0, job_count: int | None = None) -> dict[str, Any]:
    return {
        "policy": policy,
        "seed": seed,
        "whole": {"job_count": len(jct_s) if job_count is None else job_count},
        "jobs": {"submitted_at_s": [10.0] * len(jct_s), "ended_at_s": [10.0 + one for one in jct_s]},
        "series": {"edges_s": [], "busy_gpus": [], "speed": []},
    }


def study(*runs: dict[str, Any]) -> Study:
    policies = tuple(dict.fromkeys(one["policy"] for one in runs))
    return Study(policies=policies, seeds=tuple(sorted({one["seed"] for one in runs})), runs=runs)


def test_the_distribution_of_few_jobs_steps_at_each_of_them() -> None:
    curve = jct_curve(study(run("fcfs", [300.0, 100.0, 100.0, 900.0])), "fcfs")
    assert curve.x.tolist() == [100, 100, 100, 300, 900]
    assert curve.y.tolist() == [0, 0.25, 0.5, 0.75, 1]


def test_who_has_not_ended_is_never_done_and_seeds_are_pooled() -> None:
    runs = (run("fcfs", [5.0], job_count=3), run("fcfs", [7.0], seed=1, job_count=1))
    curve = jct_curve(study(*runs), "fcfs")
    assert list(zip(curve.x.tolist(), curve.y.tolist(), strict=True)) == [(5, 0), (5, 0.25), (7, 0.5)]


def test_a_distribution_of_many_jobs_goes_through_its_true_points_from_the_first_to_the_last() -> None:
    curve = jct_curve(study(run("fcfs", [float(one) for one in range(1, 5_001)])), "fcfs")
    assert len(curve.x) <= 1_001
    assert (curve.x[0], curve.y[0], curve.x[-1], curve.y[-1]) == (1, 0, 5_000, 1)
    assert curve.y[1:] * 5_000 == pytest.approx(curve.x[1:])


def test_policies_that_do_the_same_are_one_curve_that_names_all_of_them() -> None:
    made = study(run("fcfs", [9.0, 5.0]), run("srtf", [5.0, 7.0]), run("easy", [5.0, 9.0]), run("none", [5.0]))
    curves = together({policy: jct_curve(made, policy) for policy in made.policies})
    assert [one.label for one in curves] == ["fcfs = easy", "srtf", "none"]


@pytest.mark.parametrize("jct_s", [[], [0.0, 0.0], [0.0, 10.0]], ids=["none", "all at once", "one at once"])
def test_times_that_have_no_logarithm_are_drawn(jct_s: list[float]) -> None:
    pytest.importorskip("matplotlib")
    made = study(run("fcfs", jct_s, job_count=2))
    assert cdf_png(made).startswith(b"\x89PNG")
    assert series_png(made, "speed", "speed", limit=4).startswith(b"\x89PNG")


def bar(row: int, job_id: str, from_s: float, until_s: float, ready_s: float | None = None) -> dict[str, Any]:
    return {"row": row, "job_id": job_id, "from_s": from_s, "ready_s": ready_s, "until_s": until_s, "label": "a100 2"}


def test_gpus_beside_each_other_are_one_block_of_an_attempt() -> None:
    bars = [bar(2, "a", 0, 9, 1), bar(0, "a", 0, 9, 1), bar(3, "a", 0, 9, 1), bar(1, "b", 0, 5), bar(0, "a", 9, 12, 10)]
    found = [(one.job_id, one.first_row, one.row_count, one.from_s, one.ready_s) for one in blocks_of(bars)]
    assert found == [("a", 0, 1, 0, 1), ("a", 2, 2, 0, 1), ("b", 1, 1, 0, 5), ("a", 0, 1, 9, 10)]


def test_jobs_beside_each_other_and_after_each_other_differ_in_colour() -> None:
    """As many GPUs as colours in turn would give each GPU one colour for ever."""
    blocks: list[Block] = []
    for turn in range(40):
        blocks += blocks_of([bar(row, f"{turn}-{row}", turn, turn + 1) for row in range(8)])
    colours = colour_indices(blocks)
    for turn in range(40):
        own = [colours[f"{turn}-{row}"] for row in range(8)]
        after = [colours[f"{turn + 1}-{row}"] for row in range(8)] if turn < 39 else [-1] * 8
        assert all(first != second for first, second in zip(own, after, strict=True))
        assert all(first != second for first, second in pairwise(own))


@pytest.mark.parametrize(
    ("room", "text"),
    [
        (40, "d36ea58c-460e a100 4+4: dp4 tp2"),
        (30, "d36ea58c-… a100 4+4: dp4 tp2"),
        (25, "d36ea58c-460e"),
        (10, "d36ea58c-…"),
        (6, "d36ea…"),
        (4, ""),
        (-1, ""),
    ],
)
def test_a_plan_stands_whole_in_its_block_or_not_at_all(room: int, text: str) -> None:
    assert label_text("d36ea58c-460e", "a100 4+4: dp4 tp2", room=room) == text
    assert len(text) <= max(room, 0)


def test_a_high_block_has_its_plan_in_several_lines() -> None:
    label = "a100-80 4+4: dp4 tp2 pp1"
    assert label_text("d36ea58c", label, room=12, line_count=4) == "d36ea58c\na100-80 4+4:\ndp4 tp2 pp1"
    assert label_text("d36ea58c", label, room=12, line_count=2) == "d36ea58c"
    assert label_text("d36ea58c", label, room=6, line_count=9) == "d36ea…"


@pytest.mark.parametrize(
    ("span_s", "label", "last"),
    [
        (0.0, "time (s)", 0.0),
        (90.0, "time (s)", 90.0),
        (179.0, "time (s)", 179.0),
        (180.0, "time (min)", 3.0),
        (2 * 3600.0, "time (min)", 120.0),
        (3 * 3600.0, "time (h)", 3.0),
        (2 * 86_400.0, "time (h)", 48.0),
        (30 * 86_400.0, "time (d)", 30.0),
    ],
)
def test_time_is_in_the_unit_of_what_a_replay_lasted(
    monkeypatch: pytest.MonkeyPatch, span_s: float, label: str, last: float
) -> None:
    pytest.importorskip("matplotlib")
    drawn: list[Any] = []

    def look_at(figure: Any, axes: Any, **how: Any) -> bytes:
        drawn.append(axes)
        return b""

    for module in (replay_pictures, replay_gantt):
        monkeypatch.setattr(module, "drawn", look_at)
    short = run("fcfs", [1.0]) | {"series": {"edges_s": [0.0, span_s / 2], "speed": [1.0]}}
    whole = run("srtf", [1.0]) | {"series": {"edges_s": [0.0, span_s], "speed": [2.0]}}
    series_png(study(short, whole), "speed", "speed")
    chart = {"rows": ["n1/0", "n1/1"], "bars": [bar(0, "a", 0.0, span_s, span_s / 10), bar(1, "b", 0.0, span_s)]}
    gantt_png(chart, until_s=span_s)
    series, gantt = drawn
    assert [series.get_xlabel(), gantt.get_xlabel()] == [label, label]
    assert max(patch.get_data().edges[-1] for patch in series.patches) == pytest.approx(last)
    ends = [patch.get_x() + patch.get_width() for patch in gantt.patches]
    assert max(ends, default=0.0) == pytest.approx(last)
    assert gantt.get_xlim() == pytest.approx((0.0, last or 1.0))
