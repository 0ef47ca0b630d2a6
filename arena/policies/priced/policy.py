"""The ``arena`` policy: what each job has is decided together, by prices. Pure: no I/O, no clock.

A decision is one allocation problem. Every job that may be touched answers to prices of the GPU pools with its best
column, a cell of its grid; the value of a column is how fast it lowers the estimated total flow time
(``marginal_values``), less what the change to it costs (``changes``); ``allocation`` finds the prices and the choice,
``seating`` the devices. What cannot be seated is cut off, and the problem solved again.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from arena.domain.job import JobId
from arena.domain.reason import Reason, ReasonCode
from arena.policies.base import Admission, Choice, Decision, Snapshot
from arena.policies.choose import PLANNING, choice_of
from arena.policies.length_beliefs import LengthFacts
from arena.policies.length_estimates import JobKeys
from arena.policies.priced.admitting import View, admitted
from arena.policies.priced.allocation import Answer, Effort
from arena.policies.priced.budgets import offered
from arena.policies.priced.changes import ChangeRules, column_values, outlook, standby, useful_speeds
from arena.policies.priced.claims import Claims, claimed
from arena.policies.priced.columns import Columns, Floats, Ints, firsts
from arena.policies.priced.explaining import Asked, cause_of, explained, measured_pace, offer_of
from arena.policies.priced.fairness import fairer
from arena.policies.priced.marginal_values import Crew, Curve, concave, values_of
from arena.policies.priced.market import Market, Tables, market_of
from arena.policies.priced.promising import with_cause
from arena.policies.priced.rooms import Rooms
from arena.policies.priced.roster import steps_in_time, work_made
from arena.policies.priced.seating import Seats
from arena.policies.priced.settling import by_prices, settled
from arena.policies.priced.share_reasons import Shares, share_use, shares_of, with_share_causes
from arena.policies.priced.shares import shared
from arena.policies.priced.shortages import no_cell, shortages
from arena.policies.priced.unopposed import unopposed
from arena.policies.priced.urgency import types_kept_free, weights

SOON_RESTARTS = 10.0
"""Of a job that ends within so many restarts, those count that its changes would need."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedPolicy:
    """The ``arena`` policy.

    Args:
        changes: What changes cost.
        effort: How hard to look for a better choice.
    """

    changes: ChangeRules = field(default_factory=ChangeRules)
    effort: Effort = field(default_factory=Effort)
    _tables: Tables = field(default_factory=Tables, repr=False, compare=False)
    name: str = "arena"
    version: str = "9"

    def decide(self, snapshot: Snapshot) -> Decision:
        """Price, choose, seat; see the module for the rules."""
        return unopposed(snapshot, self._tables, self.changes.wait_max_s) or self.weighed(snapshot)

    def weighed(self, snapshot: Snapshot) -> Decision:
        """Decide by values and prices, also where nobody is in anybody's way."""
        market = market_of(snapshot, self._tables)
        planning = {job_id: PLANNING for job_id in snapshot.waiting if job_id not in snapshot.grids}
        hopeless = _hopeless(snapshot, market)
        if not len(market.job):
            return Decision(reasons={**planning, **hopeless}, look_again_at_s=market.rested_at_s)
        problem = _problem(snapshot, market, self.changes)
        market, problem, (answer, seats) = self._chosen(snapshot, problem.claims.market, problem)
        choices = _choices(market, answer.chosen, seats)
        shares = shares_of(snapshot, market, problem.columns, (answer, seats))
        choices = with_share_causes(shares, choices)
        reasons = _reasons(problem, shares, seats, choices)
        return Decision(
            choices=choices,
            reasons=dict(sorted({**planning, **hopeless, **reasons}.items())),
            look_again_at_s=_first(problem.claims.next_look_s, market.rested_at_s),
            numbers=_numbers(market, answer),
        )

    def explain(self, snapshot: Snapshot, job_id: JobId) -> tuple[Reason, ...]:
        """Return why a job has what it has, and what would give way for more; see ``explaining``."""
        market = market_of(snapshot, self._tables)
        at = next((at for at, contender in enumerate(market.contenders) if contender.job_id == job_id), None)
        if at is None:
            return ()
        problem = _problem(snapshot, market, self.changes)
        if problem.claims.is_barred(at):
            return problem.claims.explained(snapshot, at)
        market, problem, (answer, seats) = self._chosen(snapshot, problem.claims.market, problem)
        by_share = shares_of(snapshot, market, problem.columns, (answer, seats)).reason(at)
        asked = Asked(job_id=job_id, effort=self.effort, usd_per_hour=snapshot.usd_per_hour)
        short = shortages(snapshot, market, asking=at)
        lacks = short.reasons(at) if market.keeping[at] < 0 else ()
        is_offer = short.fits & ~np.isin(np.arange(len(market.job)), list(seats.cuts))
        offers = () if lacks else explained(market, problem.columns, answer, asked, is_offer)
        if not lacks and not offers:  # what it could have finds no devices, as the decision says
            lacks = short.in_the_way(at)
        told = (*lacks, *((by_share,) if by_share else ()), *offers)
        claims = problem.claims.explained(snapshot, at)
        return (*told, *claims, *measured_pace(snapshot, market, at), *share_use(snapshot, job_id))

    def admission(self, snapshot: Snapshot, job_id: JobId) -> Admission | None:
        """Return whether a waiting job's deadline can be promised; see ``deadlines``."""
        market = market_of(snapshot, self._tables)
        if not len(market.job):
            return with_cause(snapshot, market, None, job_id)
        markets = (market, market_of(snapshot, self._tables, is_fine=True))
        views = [View(market=one, power=_power(one), offered=offered(snapshot, one).mask(one)) for one in markets]
        return with_cause(snapshot, market, admitted(snapshot, views, job_id), job_id)

    def _chosen(
        self, snapshot: Snapshot, market: Market, problem: Problem
    ) -> tuple[Market, Problem, tuple[Answer, Seats]]:
        """Choose and seat within the shares of tenants, whose rows the market then has, where there are any."""
        effort = replace(self.effort, gap=self.effort.gap * problem.claims.finer)
        if _has_shares(snapshot, market):
            closed = types_kept_free(market, problem.claims.overdue)
            found = shared(snapshot, market, problem.columns, guess=problem.guess, effort=effort, closed=closed)
            return found.market, replace(problem, columns=found.columns), (found.answer, found.seats)
        answer = settled(
            snapshot,
            market,
            problem.columns,
            by_prices(market, problem.guess, effort),
            rooms=Rooms.of_all(len(market.contenders), market.supply),
            incumbents=_incumbents(market, problem.columns),
            effort=effort,
        )
        return market, problem, answer


def _first(*instants_s: float | None) -> float | None:
    return min((at_s for at_s in instants_s if at_s is not None), default=None)


def _has_shares(snapshot: Snapshot, market: Market) -> bool:
    """Tell whether shares limit anybody: a tenant has work, or somebody waits who could not give back what is lent."""
    return bool(snapshot.tenants) and any(
        (spec := snapshot.jobs[one.job_id].spec).project in snapshot.tenants
        or (one.holding is None and not spec.preemptible)
        for one in market.contenders
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """The allocation problem of a decision.

    Args:
        guess: Prices to begin with.
        claims: What comes before the values of jobs, in the columns' already.
    """

    columns: Columns
    guess: Floats
    claims: Claims


LEAST_SHARE = 1e-4
"""Of a column's value so much is left to it, whatever it takes: nobody waits beside GPUs that nobody else can use."""


def _problem(snapshot: Snapshot, market: Market, changes: ChangeRules) -> Problem:
    power = _power(market)
    machine = float(power @ market.supply) or float(power.max())  # where nothing is free, as if one GPU were
    shares = market.usage @ power / machine
    remaining = _remaining(snapshot, market)
    useful = useful_speeds(market, remaining, snapshot.restart_s, changes)
    crew = _crew(snapshot, market, shares, remaining, useful)
    if changes.fairness > 0.0:
        crew = Crew.of(fairer(snapshot, market, crew.workers, shares, changes))
    wanted = standby(snapshot, market, changes)
    values, price, early_price = values_of(crew, max(outlook(market, changes), wanted))
    value = column_values(market, values, useful, snapshot.restart_s, changes)
    value = np.maximum(value - wanted * early_price * _taken(market, shares), LEAST_SHARE * value)
    claims = claimed(snapshot, market, power, value, changes)
    return Problem(
        columns=Columns(job=market.job, value=claims.value, usage=claims.market.usage),
        guess=np.pad(price * power / machine, (0, len(claims.market.rows) - len(market.rows))),
        claims=claims,
    )


def _taken(market: Market, shares: Floats) -> Floats:
    """Return the share of the machine that each column takes beyond what its job has."""
    kept = np.where(market.keeping >= 0, shares[market.keeping], 0.0)
    taken: Floats = np.maximum(shares - kept[market.job], 0.0)
    return taken


def _power(market: Market) -> Floats:
    """Return what a GPU of each row does for the jobs, the mean over them of its best speed against the best pool.

    Rows of whole nodes have none: they are the same GPUs again.
    """
    _, first, own = np.unique(market.facts["table"], return_index=True, return_inverse=True)
    power = np.array([market.contenders[at].table.power for at in first.tolist()])[own]
    total = np.cumsum(power, axis=0)[-1]
    is_gpus = np.array([row.chunk == 1 for row in market.rows])
    return np.where(is_gpus, np.maximum(total / len(market.contenders), 0.05), 0.0)


def _remaining(snapshot: Snapshot, market: Market) -> Floats:
    """Return the steps that are believed to be left, by contender."""
    least = np.minimum.reduceat(market.gpu_count / market.speed, firsts(market.job))
    facts, (keys, rows) = market.facts, np.unique(market.facts["key"], return_inverse=True)
    lengths = LengthFacts(
        keys=JobKeys([market.keys[key] for key in keys.tolist()], rows),
        declared=facts["declared_steps"],
        limit_steps=steps_in_time(facts, snapshot.now_s, least),
    )
    return lengths.effective_remaining(snapshot.history, least, work_made(facts, snapshot.now_s))


def _crew(snapshot: Snapshot, market: Market, shares: Floats, remaining: Floats, useful: Floats) -> Crew:
    """Return the jobs with what each can do: where its changes count, those included."""
    kept = np.where(market.keeping >= 0, market.speed[market.keeping], np.inf)
    counts = (market.keeping < 0) | (remaining / kept < SOON_RESTARTS * snapshot.restart_s)
    starts = firsts(market.job)
    sizes = np.diff(np.r_[starts, len(market.job)])
    speeds = np.where(counts[market.job], useful, market.speed)
    keys: list[Hashable] = [*zip(shares[starts].tolist(), speeds[starts].tolist(), strict=True)]
    ends = starts + sizes
    works = market.facts["work"].tolist() if market.has_typed_paces else [0] * len(sizes)
    for at in np.flatnonzero(sizes > 1).tolist():
        table = market.contenders[at].table
        if not counts[at]:  # what it can do on its grid, whatever it has; jobs of one grid differ in measured pace
            ends[at] = starts[at] + len(table.speed)
        keys[at] = at if counts[at] else (id(table), works[at], keys[at])
    curves, number = list[Curve](), dict[Hashable, int]()
    which = np.empty(len(keys), dtype=np.intp)
    for at, key in enumerate(keys):
        if key not in number:
            number[key] = len(curves)
            part = slice(int(starts[at]), int(ends[at]))
            curves.append(concave(zip(shares[part].tolist(), speeds[part].tolist(), strict=True)))
        which[at] = number[key]
    return Crew(weight=weights(market), remaining_steps=remaining, curves=curves, which=which)


def _incumbents(market: Market, columns: Columns) -> tuple[Ints, ...]:
    """Return the choice that all that runs stays, unless shares do not allow it."""
    is_allowed = bool((columns.used(market.keeping) <= market.supply + 1e-6).all())
    return (market.keeping,) if is_allowed else ()


def _choices(market: Market, chosen: Ints, seats: Seats) -> dict[JobId, Choice | None]:
    choices: dict[JobId, Choice | None] = {}
    for at in np.flatnonzero(chosen != market.keeping).tolist():
        contender, column = market.contenders[at], int(chosen[at])
        if column < 0:
            choices[contender.job_id] = None
            continue
        choice = choice_of(market.cell(column), seats.allocations[at])
        if contender.holding is not None:
            choice = replace(choice, cause=cause_of(market, contender, column))
        choices[contender.job_id] = choice
    return dict(sorted(choices.items()))


def _reasons(
    problem: Problem, shares: Shares, seats: Seats, choices: Mapping[JobId, Choice | None]
) -> dict[JobId, tuple[Reason, ...]]:
    """Return why each job that changes does, and why each that has nothing is not served at these prices."""
    snapshot, market, answer = shares.snapshot, shares.market, shares.answer
    reasons: dict[JobId, tuple[Reason, ...]] = {}
    unseated = {int(market.job[column]): why for column, why in seats.cuts.items()}
    short = shortages(snapshot, market)
    top = short.tops(answer.priced.reduced, answer.priced.top)
    for at in np.flatnonzero((answer.chosen != market.keeping) | (answer.chosen < 0)).tolist():
        contender = market.contenders[at]
        choice = choices.get(contender.job_id)
        if choice is not None:
            reasons[contender.job_id] = (choice.cause,)
        else:
            told = problem.claims.reasons(snapshot, at)
            if problem.claims.is_barred(at):
                reasons[contender.job_id] = told
                continue
            by_share, lacks = shares.reason(at), short.reasons(at) if market.keeping[at] < 0 else ()
            if lacks:
                reasons[contender.job_id] = (*lacks, *((by_share,) if by_share else ()), *told)
                continue
            outbid = offer_of(market, problem.columns, answer, int(top[at]), ReasonCode.OUTBID)
            reasons[contender.job_id] = (unseated.get(at) or by_share or outbid, *told)
    for at, why in problem.claims.broken(snapshot).items():
        job_id = market.contenders[at].job_id
        reasons[job_id] = (*reasons.get(job_id, snapshot.jobs[job_id].reasons), why)
    return reasons


def _numbers(market: Market, answer: Answer) -> dict[str, float]:
    prices = {f"price {row}": float(price) for row, price in zip(market.rows, answer.priced.prices, strict=True)}
    return {"value": answer.value, "bound": answer.priced.bound, "gap": answer.gap, **prices}


def _hopeless(snapshot: Snapshot, market: Market) -> dict[JobId, tuple[Reason, ...]]:
    """Return why those that wait can be given nothing whose grids have no cell for this cluster."""
    competing = {contender.job_id for contender in market.contenders}
    rest = [job_id for job_id in snapshot.waiting if job_id in snapshot.grids and job_id not in competing]
    return {job_id: no_cell(snapshot, snapshot.grids[job_id]) for job_id in rest}
