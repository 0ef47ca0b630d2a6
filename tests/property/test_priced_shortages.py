"""Whom `arena` tells of bids and whom of a lack, on any snapshot."""

from __future__ import annotations

from hypothesis import given, settings

from arena.domain.cluster import NodeInfo
from arena.domain.job import JobId
from arena.domain.reason import ReasonCode
from arena.policies.base import Snapshot
from arena.policies.placement import fits
from arena.policies.priced.explaining import TIE_SHARE
from arena.policies.priced.policy import PricedPolicy
from tests.property.test_policy_decisions import snapshots

OFFERS = frozenset({ReasonCode.OUTBID, ReasonCode.TIED, ReasonCode.INDIVISIBLE})
BIDS = OFFERS | {ReasonCode.NEXT_BEST, ReasonCode.DISPLACES}
LACKS = frozenset({ReasonCode.INSUFFICIENT_GPUS, ReasonCode.FRAGMENTED})


def fits_if_all_gave_way(snapshot: Snapshot, job_id: JobId) -> bool:
    """Whether any cell could be placed if all gave way that may be moved."""
    capacity = snapshot.capacity
    for other, held in snapshot.holding.items():
        if held.movable and snapshot.jobs[other].spec.preemptible:
            capacity = capacity.restore(held.allocation)
    return any(fits(capacity, cell.group) for cell in snapshot.grids[job_id].cells)


@settings(max_examples=150, deadline=None)
@given(case=snapshots())
def test_nobody_is_told_of_bids_who_could_be_given_nothing_whoever_gave_way(
    case: tuple[list[NodeInfo], Snapshot],
) -> None:
    _, snapshot = case
    policy = PricedPolicy()
    decision = policy.decide(snapshot)
    for job_id in snapshot.waiting:
        if not fits_if_all_gave_way(snapshot, job_id):
            reasons = (*decision.reasons[job_id], *policy.explain(snapshot, job_id))
            assert {one.code for one in reasons} & BIDS == set()
            assert {one.code for one in reasons} & LACKS
            assert all("?" not in str(one) for one in reasons)


@settings(max_examples=300, deadline=None)
@given(case=snapshots())
def test_what_is_said_of_an_offer_is_what_its_numbers_say(case: tuple[list[NodeInfo], Snapshot]) -> None:
    _, snapshot = case
    policy = PricedPolicy()
    decision = policy.decide(snapshot)
    for job_id in snapshot.waiting:
        for one in (*decision.reasons.get(job_id, ()), *policy.explain(snapshot, job_id)):
            if one.code in OFFERS:
                value, price = one.numbers["value"], one.numbers["price"]
                is_close = price * (1.0 - TIE_SHARE) < value <= price * (1.0 + TIE_SHARE)
                told = ReasonCode.INDIVISIBLE if value > price else ReasonCode.OUTBID
                assert one.code is (ReasonCode.TIED if is_close else told)
