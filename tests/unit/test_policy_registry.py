"""Policies by name, and what is said to those who mistype one."""

from __future__ import annotations

import pytest

from arena.errors import SpecError
from arena.policies.arena_greedy import ArenaGreedy
from arena.policies.priced.policy import PricedPolicy
from arena.policies.registry import make_policy, policy_names


@pytest.mark.parametrize("name", policy_names())
def test_a_policy_says_its_name_and_version(name: str):
    policy = make_policy(name)
    assert policy.name == name
    assert policy.version


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(SpecError, match=r"unknown policy 'fifo'\. Use one of arena, arena-greedy, elastic, fcfs"):
        make_policy("fifo")


def test_an_unknown_option_lists_the_known_ones():
    with pytest.raises(SpecError, match=r"no option 'horizon'.*horizon_s"):
        make_policy("elastic", {"horizon": 3})
    with pytest.raises(SpecError, match="takes none"):
        make_policy("fcfs", {"horizon_s": 3})


def test_an_option_out_of_range_is_refused():
    with pytest.raises(SpecError, match="change_interval_s must be at least 0"):
        make_policy("elastic", {"change_interval_s": -1.0})


def test_ablations_of_the_published_greedy_are_switches():
    policy = make_policy("arena-greedy", {"scaling": 0, "depth": 2})
    assert isinstance(policy, ArenaGreedy)
    assert (policy.rules.scaling, policy.rules.type_change, policy.rules.depth) == (False, True, 2)
    for options, says in (({"scaling": 0.5}, "0 or 1"), ({"migration": 2}, "0 or 1"), ({"depth": -1}, "whole number")):
        with pytest.raises(SpecError, match=says):
            make_policy("arena-greedy", options)


def test_exact_is_a_switch():
    policy = make_policy("arena", {"exact": 1})
    assert isinstance(policy, PricedPolicy)
    assert policy.effort.gap == 0.0
    assert make_policy("arena", {"exact": 0}) == make_policy("arena")
    with pytest.raises(SpecError, match="exact must be 0 or 1"):
        make_policy("arena", {"exact": 0.5})
