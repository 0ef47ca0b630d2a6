"""What is remembered of how fast jobs ran against their estimates."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arena.domain.allocation import GpuGroup, GroupPart
from arena.domain.grid import Grid
from arena.domain.paces import (
    KINDS_KEPT,
    LOG_DIGITS,
    RUNS_KEPT,
    PaceHistory,
    PaceKind,
    estimator,
    types_name,
    work_name,
)
from tests.builders import command_spec, train_spec

PACES = st.floats(min_value=0.05, max_value=20.0)
KINDS = st.sampled_from([PaceKind("planner", work, gpu) for work in "ab" for gpu in ("cpu", "a100")])
RUNS = st.lists(st.tuples(KINDS, PACES), max_size=40)


def grown(runs: list[tuple[PaceKind, float]]) -> PaceHistory:
    history = PaceHistory()
    for at_s, (kind, pace) in enumerate(runs):
        history = history.after(kind, pace, float(at_s))
    return history


@given(runs=RUNS)
def test_of_each_kind_the_median_of_the_latest_runs_counts(runs: list[tuple[PaceKind, float]]) -> None:
    history = grown(runs)
    assert set(history.kinds) == {kind for kind, _ in runs}
    for kind, known in history.kinds.items():
        latest = sorted([math.log(pace) for own, pace in runs if own == kind][-RUNS_KEPT:])
        half = len(latest) // 2
        middle = latest[half] if len(latest) % 2 else (latest[half - 1] + latest[half]) / 2.0
        assert known.log_pace == pytest.approx(middle, abs=2.0 * 10.0**-LOG_DIGITS)


@given(runs=RUNS)
def test_one_that_is_made_of_what_it_remembers_is_the_same(runs: list[tuple[PaceKind, float]]) -> None:
    history = grown(runs)
    shuffled = list(history.all)
    random.Random(len(runs)).shuffle(shuffled)
    assert PaceHistory.of(shuffled) == history
    assert PaceHistory.of(shuffled).all == history.all


@given(runs=RUNS)
def test_what_is_known_of_a_work_is_what_is_known_of_its_kinds(runs: list[tuple[PaceKind, float]]) -> None:
    history = grown(runs)
    for source, work in [("planner", "a"), ("planner", "b"), ("table", "a")]:
        of_kinds = [one for one in history.all if (one.kind.source, one.kind.work) == (source, work)]
        assert list(history.of_work(source, work)) == of_kinds


@given(usual=PACES, odd=PACES)
def test_one_odd_run_among_equal_ones_changes_nothing(usual: float, odd: float) -> None:
    kind = PaceKind("planner", "a", "cpu")
    for place in range(3):
        runs = [usual] * 3
        runs[place] = odd
        assert grown([(kind, one) for one in runs]).kinds[kind].log_pace == round(math.log(usual), LOG_DIGITS)


def test_it_stays_small_and_forgets_what_was_measured_longest_ago() -> None:
    kinds = [PaceKind("planner", f"work {index}", "cpu") for index in range(KINDS_KEPT)]
    history = grown([(kind, 1.0) for kind in kinds])
    history = history.after(kinds[0], 0.5, 1e6)  # again, so the second is the oldest now
    history = history.after(PaceKind("planner", "new", "cpu"), 0.5, 1e6)
    assert len(history.kinds) == KINDS_KEPT
    assert kinds[1] not in history.kinds
    assert {*kinds[:1], *kinds[2:]} <= set(history.kinds)


def test_many_programs_of_one_user_push_out_no_others() -> None:
    mine = [PaceKind("planner", f"gpt {index}", "cpu") for index in range(20)]
    bobs = [PaceKind("table", "bob: python his.py", "cpu", "bob")]
    runs = [*mine, *bobs, *(PaceKind("table", f"ann: python {at}", "cpu", "ann") for at in range(2 * KINDS_KEPT))]
    history = grown([(kind, 1.0) for kind in runs])
    assert len(history.kinds) == KINDS_KEPT
    assert {*mine, *bobs, runs[-1]} <= set(history.kinds)


@pytest.mark.parametrize("pace", [0.0, 5e-324, 1e-310, 1e300, math.inf])
def test_what_no_clock_can_have_measured_stays_a_number(pace: float) -> None:
    kind = PaceKind("planner", "a", "cpu")
    known = grown([(kind, pace), (kind, 1.0), (kind, 1.1)]).kinds[kind]
    assert all(map(math.isfinite, known.log_paces))
    assert 0.0 <= known.log_pace <= round(math.log(1.1), LOG_DIGITS)


def test_a_program_that_brings_its_text_as_an_argument_has_a_short_name_of_its_own() -> None:
    texts = [" ".join([f"print({last})"] * 10_000) for last in (1, 2)]
    names = {work_name(command_spec("a", command={"argv": ["python", "-c", text]}), "ann") for text in texts}
    assert len(names) == 2
    assert all(len(name) < 500 for name in names)


def test_jobs_do_the_same_whose_steps_take_as_long() -> None:
    first = train_spec("a", stop={"steps": 5}, deadline_s=9.0)
    assert work_name(first, "ann") == work_name(train_spec("b", train={"seed": 7}), "bob")
    for other in (
        train_spec("a", train={"global_batch": first.train.global_batch * 2 if first.train else 0}),
        train_spec("a", train={"precision": "bf16"}),
        train_spec("a", model={"layers": 9}),
    ):
        assert work_name(other, "ann") != work_name(first, "ann")


def test_programs_of_one_name_are_the_same_for_one_user_only() -> None:
    first = command_spec("a", command={"argv": ("python", "train.py", "--lr", "1")})
    again = command_spec("b", command={"argv": ("python", "train.py", "--lr", "2")})
    assert work_name(first, "ann") == work_name(again, "ann") != work_name(again, "bob")


def test_the_types_of_a_group_are_named_in_one_order() -> None:
    parts = [GroupPart(gpu_type=name, node_counts=(2,)) for name in ("t4", "a100", "t4")]
    assert (
        types_name(GpuGroup(parts=(parts[0], parts[1])))
        == "a100+t4"
        == types_name(GpuGroup(parts=(parts[1], parts[2])))
    )
    assert types_name(GpuGroup.of("t4", [4, 4])) == "t4"


def test_who_looks_for_groups_over_several_types_does_not_change_who_estimated_the_others() -> None:
    assert estimator(Grid(cells=(), source="calibrated-3, mixed-1")) == estimator(Grid(cells=(), source="calibrated-3"))
    assert estimator(Grid(cells=(), source="calibrated-4")) != estimator(Grid(cells=(), source="calibrated-3"))
