"""What a policy is to show: the verdicts follow from the numbers, and none of them is hidden."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from arena.cli.replay_results import Study
from arena.domain.job import JobId, WorkloadSpec
from arena.domain.trace import TraceJob
from arena.errors import UserError
from experiments.policy.arrivals import Drawn
from experiments.policy.cases import Case, Setting, case_of
from experiments.policy.runs import LENGTH_BLIND, Keeping, studied
from experiments.policy.statements import RIVAL, Statement, Verdict, counted, statements_of
from experiments.policy.variations import ABLATIONS, SENSITIVITY, chosen
from tests.sim.test_policy_studies import GRIDS, SHAPE, WORKLOAD

PREDICTED = Setting(load=0.9, lengths="predicted")


def study(figures: Mapping[str, Sequence[tuple[float, float]]]) -> Study:
    """A study of policies, each with its average and p99 by draw."""
    runs = [
        {"policy": policy, "seed": seed, "whole": {"avg_jct_s": average, "p99_jct_s": p99}}
        for policy, draws in figures.items()
        for seed, (average, p99) in enumerate(draws)
    ]
    seeds = range(len(next(iter(figures.values()))))
    return Study(policies=tuple(figures), seeds=tuple(seeds), runs=tuple(runs))


def said(figures: Mapping[str, Sequence[tuple[float, float]]], setting: Setting = PREDICTED) -> dict[str, Statement]:
    found = statements_of(study(figures), "arena", setting=setting, name="here")
    return {one.text: one for one in found}


LOWEST, NOBODY = "average JCT is the lowest", "no other is better on average and p99"
AVERAGE, TAIL = f"average over {RIVAL} <= 0.6", f"p99 over {RIVAL} <= 1"


def test_what_holds_holds_with_its_interval() -> None:
    found = said({RIVAL: [(100.0, 900.0), (200.0, 900.0)], "arena": [(50.0, 800.0), (110.0, 850.0)]})
    assert {text: one.verdict for text, one in found.items()} == dict.fromkeys(
        [LOWEST, NOBODY, AVERAGE, TAIL], Verdict.HOLDS
    )
    assert found[AVERAGE].numbers == "0.533 [0.500, 0.550]"
    assert found[AVERAGE].draws == 2


def test_an_interval_beyond_the_limit_is_not_enough() -> None:
    found = said({RIVAL: [(100.0, 900.0), (100.0, 900.0)], "arena": [(50.0, 1000.0), (65.0, 850.0)]})
    assert found[AVERAGE].verdict is Verdict.UNSURE
    assert found[TAIL].verdict is Verdict.FAILS


@pytest.mark.parametrize(
    ("arena", "bounds_s", "numbers"),
    [
        ([70.0], [65.0], "0.700; no schedule is below 0.650"),
        ([70.0], [55.0], "0.700"),
        ([55.0, 145.0], [50.0, 130.0], "0.667 [0.550, 0.725]; no schedule is below 0.600 [0.500, 0.650]"),
        ([50.0, 130.0], [50.0, 125.0], "0.600 [0.500, 0.650]; no schedule is below 0.583 [0.500, 0.625]"),
        ([50.0, 130.0], [50.0, 120.0], "0.600 [0.500, 0.650]"),
        ([50.0, 120.0], [65.0, 130.0], "0.567 [0.500, 0.600]"),
    ],
)
def test_what_no_schedule_could_do_is_said_beside_what_does_not_hold(
    arena: Sequence[float], bounds_s: Sequence[float], numbers: str
) -> None:
    """By the upper end of the interval, as the limit is meant; the last bounds are not bounds, but the limit holds."""
    rival = [(100.0, 900.0), (200.0, 900.0)][: len(arena)]
    runs = study({RIVAL: rival, "arena": [(average, 800.0) for average in arena]})
    found = statements_of(runs, "arena", setting=PREDICTED, name="here", bounds_s=bounds_s)
    assert [one.numbers for one in found if one.text == AVERAGE] == [numbers]


def test_one_draw_has_no_interval_and_proves_nothing_against_the_rival() -> None:
    assert said({RIVAL: [(100.0, 900.0)], "arena": [(50.0, 800.0)]})[AVERAGE].verdict is Verdict.UNSURE


def test_the_average_must_be_the_lowest_of_all() -> None:
    found = said({RIVAL: [(100.0, 900.0)], "arena": [(50.0, 800.0)], "srtf": [(49.0, 2000.0)]})
    assert found[LOWEST].verdict is Verdict.FAILS
    assert "srtf 49 s" in found[LOWEST].numbers
    assert found[NOBODY].verdict is Verdict.HOLDS


def test_a_lowest_average_that_another_set_of_draws_might_not_show_is_unsure() -> None:
    found = said({RIVAL: [(100.0, 900.0)] * 2, "arena": [(50.0, 800.0)] * 2, "srtf": [(49.0, 900.0), (60.0, 900.0)]})
    assert found[LOWEST].verdict is Verdict.UNSURE


def test_whoever_is_better_on_both_is_named_also_where_only_in_a_draw() -> None:
    arena, elastic = [(50.0, 800.0), (50.0, 800.0)], [(49.0, 700.0), (90.0, 900.0)]
    found = said({RIVAL: [(100.0, 900.0)] * 2, "arena": arena, "elastic": elastic})
    assert found[NOBODY].verdict is Verdict.HOLDS
    assert found[NOBODY].numbers == "over all draws: none; in single draws: elastic in 0"
    better = said({"elastic": [(49.0, 700.0)], "arena": [(50.0, 800.0)]})
    assert better[NOBODY].verdict is Verdict.FAILS
    assert better[AVERAGE].verdict is Verdict.UNTESTED


def test_a_variant_of_the_policy_itself_is_no_other_policy() -> None:
    found = said({RIVAL: [(100.0, 900.0)], "arena": [(50.0, 800.0)], "arena:outlook=0": [(40.0, 700.0)]})
    assert found[LOWEST].verdict is Verdict.HOLDS


@pytest.mark.parametrize(
    ("setting", "texts"),
    [
        (Setting(load=0.3, lengths="predicted"), {LOWEST, NOBODY}),
        (Setting(load=0.9, lengths="none"), {LOWEST, NOBODY, f"average over {RIVAL} <= 0.75"}),
    ],
)
def test_each_setting_tests_what_is_said_of_it(setting: Setting, texts: set[str]) -> None:
    assert set(said({RIVAL: [(100.0, 900.0)], "arena": [(50.0, 800.0)]}, setting)) == texts


def test_without_the_policy_nothing_is_said() -> None:
    assert statements_of(study({RIVAL: [(1.0, 1.0)]}), "arena", setting=PREDICTED, name="here") == []


def test_the_count_tells_of_too_few_draws() -> None:
    found = statements_of(study({RIVAL: [(9.0, 9.0)], "arena": [(1.0, 1.0)]}), "arena", setting=PREDICTED, name="here")
    assert counted(found) == "2 of 4 statements hold; 4 of them over fewer than 20 draws"


def busy(lengths: str) -> Case:
    """Jobs of other lengths that have to wait for each other."""
    jobs = tuple(
        TraceJob(
            job_id=JobId(f"job-{row}"),
            row=row,
            submitted_at_s=40.0 * row,
            gpu_count=2,
            step_count=step_count,
            workload=WorkloadSpec(name=WORKLOAD.name, global_batch=WORKLOAD.global_batch),
            gpu_type="gpu",
        )
        for row, step_count in enumerate([4000, 100, 2000, 50, 3000, 700, 20, 900])
    )
    return case_of(Drawn(jobs=jobs, sha256={}, notes=()), GRIDS, SHAPE, setting=Setting(lengths=lengths), seed=0)


@pytest.mark.parametrize("policy", sorted(LENGTH_BLIND))
def test_who_is_blind_to_lengths_does_the_same_whatever_is_told(policy: str) -> None:
    averages = [
        studied([busy(lengths)], [policy], keeping=Keeping(), process_count=1).values(policy, "whole", "avg_jct_s")
        for lengths in ("none", "predicted", "true")
    ]
    assert averages[0] == averages[1] == averages[2]


def test_who_is_blind_is_run_on_the_cases_that_may_be_kept() -> None:
    blind = busy("predicted")
    found = studied([busy("none")], ["fcfs", "srtf"], keeping=Keeping(), process_count=1, blind_cases=[blind])
    keys = {run["policy"]: run["key"] for run in found.runs}
    assert keys["fcfs"] == Keeping().key(blind, "fcfs")
    assert keys["srtf"] == Keeping().key(busy("none"), "srtf")


@pytest.mark.parametrize("known", [SENSITIVITY, ABLATIONS])
def test_every_variation_can_be_asked_for_alone(known: dict[str, Any]) -> None:
    for name in known:
        assert list(chosen(known, name)) == [name]
    first, *_, last = known
    assert list(chosen(known, f" {last},{first}")) == [first, last]
    with pytest.raises(UserError, match="there is no variation 'nothing'"):
        chosen(known, "nothing")
