"""The plans that integration tests train hold every pair of features that the capability table allows."""

from __future__ import annotations

import itertools

import pytest

from arena.domain.capability import REFUSALS, TRAINED_FAMILIES, Feature, features_of, unsupported
from tests.covering_plans import (
    ALIKE,
    LEVELS,
    Families,
    Pair,
    Usual,
    allowed_features,
    covering_set,
    levels_of,
    pairs_of,
    possible_pairs,
    train,
)

RANKS_MAX = 4


def among(*levels: Feature | Usual) -> set[Pair]:
    return {frozenset(pair) for pair in itertools.combinations(levels, 2)}


# One plan has one of each of these.
ONE_OF = (
    among(Feature.ZERO_1, Feature.ZERO_2, Feature.ZERO_3, Usual.NO_ZERO)
    | among(Feature.RECOMPUTE_SELECTIVE, Feature.RECOMPUTE_FULL, Usual.NO_RECOMPUTE)
    | among(Feature.GPIPE, Feature.INTERLEAVED, Usual.ONE_F_ONE_B)
    | among(Feature.SEQUENCE_PARALLEL, Usual.WHOLE_SEQUENCE)
)
# Interleaved stages have the same replicas; so have stages of different degrees only from five ranks on.
BY_RULE = {frozenset({Feature.INTERLEAVED, Feature.MIXED_DP})}
NEED_MORE_RANKS = {
    frozenset({Feature.INTERLEAVED, Feature.MIXED_TP}),
    frozenset({Feature.EXPERT_PARALLEL, Feature.MIXED_DP}),
    frozenset({Feature.EXPERT_PARALLEL, Feature.MIXED_TP}),
}


# Results in bf16 are compared more loosely, so it meets features alone.
LEFT_OUT = {frozenset({Feature.BF16, usual}) for usual in Usual}


def allowed_pairs(families: Families) -> set[Pair]:
    return set().union(*(pairs_of(allowed_features(one) | frozenset(Usual) | {one}) for one in families))


def impossible_pairs(families: Families) -> set[Pair]:
    return (ONE_OF | BY_RULE | NEED_MORE_RANKS) & allowed_pairs(families)


def test_every_family_is_in_one_set() -> None:
    assert sorted(family for families in ALIKE for family in families) == sorted(TRAINED_FAMILIES)


@pytest.mark.parametrize("families", ALIKE, ids=" ".join)
def test_every_pair_that_can_be_is_in_the_set(families: Families) -> None:
    """Pairs of features, and of a family with a feature."""
    covered = set().union(*(case.pairs for case in covering_set(families, 1, RANKS_MAX)))
    assert covered - LEFT_OUT == allowed_pairs(families) - impossible_pairs(families) - LEFT_OUT


@pytest.mark.parametrize("families", ALIKE, ids=" ".join)
def test_families_that_share_a_set_may_have_the_same_plans(families: Families) -> None:
    """So that one of them can speak for the others; of the jobs' own features images have no tied embeddings."""
    of_plans = [frozenset(allowed_features(family) - {Feature.TIED_EMBEDDINGS}) for family in families]
    assert len(set(of_plans)) == 1


@pytest.mark.parametrize("families", ALIKE, ids=" ".join)
def test_what_is_called_impossible_no_plan_of_so_many_ranks_has(families: Families) -> None:
    """The candidates are all plans of up to four ranks, by what they ask for."""
    assert possible_pairs(families, 1, RANKS_MAX) & impossible_pairs(families) == set()


@pytest.mark.parametrize("families", ALIKE, ids=" ".join)
def test_each_case_runs_and_asks_for_what_it_says(families: Families) -> None:
    for case in covering_set(families, 1, RANKS_MAX):
        spec = train(case.family, case.features)
        assert case.family in families
        assert unsupported(spec, case.plan) is None
        assert features_of(spec, case.plan) == case.features
        assert case.plan.gpu_count <= RANKS_MAX
        assert not case.features & REFUSALS[case.family].keys()


def test_every_feature_is_one_that_some_family_has_or_the_table_refuses_to_all() -> None:
    sets = [covering_set(families, 1, RANKS_MAX) for families in ALIKE]
    seen = frozenset().union(*(case.features for cases in sets for case in cases))
    refused_to_all = {feature for feature in Feature if all(feature in REFUSALS[family] for family in TRAINED_FAMILIES)}
    assert seen == frozenset(Feature) - refused_to_all
    assert levels_of(frozenset({Feature.PIPELINE})) < frozenset(LEVELS)


def test_the_sets_are_the_same_each_time_and_small() -> None:
    first = covering_set(ALIKE[0], 1, RANKS_MAX)
    covering_set.cache_clear()
    assert covering_set(ALIKE[0], 1, RANKS_MAX) == first
    assert len(first) <= 24
