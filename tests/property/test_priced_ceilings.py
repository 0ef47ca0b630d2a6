"""Rows of shares: whoever keeps to them leaves what is claimed, and no more is asked of anybody than that."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from arena.policies.priced.ceilings import Amounts, ceilings, first_rows, more_rows
from arena.policies.priced.columns import NONE
from arena.policies.priced.market import Row

counts = st.integers(0, 9)


@st.composite
def cases(draw: st.DrawFn) -> tuple[Amounts, np.ndarray, np.ndarray]:
    """An amount, whose column each is, and a choice that keeps to what there is in all."""
    tenants = draw(st.integers(1, 4))
    claims = np.array([[float(draw(counts))] for _ in range(tenants)])
    tenant = np.array(draw(st.lists(st.integers(NONE, tenants - 1), min_size=1, max_size=12)), dtype=np.intp)
    usage = np.array([[float(draw(counts))] for _ in tenant])
    supply = np.array([max(float(claims.sum()), float(usage.sum())) + draw(counts)])
    amounts = Amounts(rows=(Row(("a", "z"), 1),), supply=supply, usage=usage, claims=claims)
    return amounts, tenant, np.arange(len(tenant))


def leaves_claims(amounts: Amounts, tenant: np.ndarray, chosen: np.ndarray) -> bool:
    """Whether every tenant could still have all that it claims, whatever the others keep."""
    used = [float(amounts.usage[chosen[tenant[chosen] == one], 0].sum()) for one in range(len(amounts.claims))]
    others = float(amounts.usage[chosen[tenant[chosen] == NONE], 0].sum())
    beyond = sum(max(one - claim, 0.0) for one, claim in zip(used, amounts.claims[:, 0].tolist(), strict=True))
    return others + beyond <= float(amounts.supply[0] - amounts.claims.sum()) + 1e-6


@given(case=cases(), part=st.data())
def test_a_row_is_found_exactly_where_a_claim_is_not_left(case, part: st.DataObject):
    amounts, tenant, every = case
    chosen = np.array([one for one in every if part.draw(st.booleans())], dtype=np.intp)
    found = list(more_rows(tenant, (amounts,), chosen, is_late=False))
    assert bool(found) is not leaves_claims(amounts, tenant, chosen)
    taken, left = ceilings(tenant, (amounts,), found)
    assert all(taken[chosen, at].sum() > limit for at, limit in enumerate(left)), "and the choice breaks it"


@given(case=cases(), part=st.data())
def test_who_keeps_to_parted_rows_leaves_all_claims(case, part: st.DataObject):
    amounts, tenant, every = case
    if leaves_claims(amounts, tenant, every):
        return
    rows = list(more_rows(tenant, (amounts,), every, is_late=True))
    taken, left = ceilings(tenant, (amounts,), rows)
    assert left.sum() <= float(amounts.supply[0]) + 1e-6
    assert left.sum() > float(amounts.supply[0]) - 1.0, "less than one of it lies idle"
    chosen = np.array([one for one in every if part.draw(st.booleans())], dtype=np.intp)
    if (taken[chosen].sum(axis=0) <= left + 1e-6).all():
        assert leaves_claims(amounts, tenant, chosen)


@given(case=cases())
def test_the_first_rows_never_forbid_what_leaves_all_claims(case):
    amounts, tenant, every = case
    taken, left = ceilings(tenant, (amounts,), first_rows((amounts,)))
    if leaves_claims(amounts, tenant, every):
        assert (taken.sum(axis=0) <= left + 1e-6).all()
