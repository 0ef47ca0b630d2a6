"""What decisions must know of each job, worked out when its record changes, else carried over. Pure: no I/O, no clock.

Of thousands of jobs a few change from one decision to the next. A job whose record, holding and grid are the very
objects that they were has the same row in every table; so what is carried over never changes an answer. A roster
holds the jobs of one snapshot, and no others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from arena.domain.grid import Grid
from arena.domain.history import workload_name
from arena.domain.job import JobId, JobKind, JobSpec
from arena.domain.launch import NodeId
from arena.domain.paces import estimator, work_name
from arena.domain.records import JobRecord, JobState
from arena.domain.replacing import quickly_made
from arena.policies.base import Holding, Snapshot
from arena.policies.capacity import NodeRoom, Pool
from arena.policies.length_beliefs import declared_steps
from arena.policies.length_estimates import JobKey
from arena.policies.lengths import measured_step_s
from arena.policies.priced.columns import Floats, Ints

DOUBLINGS_MAX = 30
"""No job's time counts more, or less, than a usual job's by more than so many doublings."""

if TYPE_CHECKING:
    from arena.policies.priced.market import Contender, Table

NUMBERS_KEPT = 64
"""With so many more numbers than twice the jobs, all are given anew: most are of what no job has any more."""

FACTS = np.dtype(
    [
        ("weight", np.float64),  # how much its time counts
        ("submitted_at_s", np.float64),
        ("due_s", np.float64),  # instant of its deadline, -inf without one
        ("has_budget", np.bool_),
        ("is_preemptible", np.bool_),
        ("is_malleable", np.bool_),
        ("has_grid", np.bool_),
        ("may_move", np.bool_),  # what it has may be taken from it, as far as that does not depend on the time
        ("again_s", np.float64),  # instant of the last of its launches that counts as a move, -inf without one
        ("since_s", np.float64),  # when it got what it has; nan where it has nothing
        ("held_count", np.float64),  # GPUs of that
        ("kept_speed", np.float64),  # steps per second there
        ("log_pace", np.float64),  # logarithm of its measured speed over its estimate, nan where it is not measured
        ("step", np.float64),  # last one reported
        ("reported_at_s", np.float64),  # nan where it makes no steps at a known pace at present
        ("step_time_s", np.float64),
        ("is_silent", np.bool_),  # a program that has told of no step
        ("up_since_s", np.float64),  # when it began to run; nan where it does not
        ("count_min", np.float64),
        ("declared_steps", np.float64),  # nan where it declares none
        ("time_limit_s", np.float64),  # inf without one
        ("run_time_s", np.float64),
        ("runs_since_s", np.float64),  # nan where it does not run
        ("pace_s", np.float64),  # seconds a step, measured or else estimated, 0 where nobody knows
        ("node_count", np.intp),  # usable nodes that it is on
        ("key", np.intp),  # number of its user and kind of work
        ("work", np.intp),  # number of what it does and who estimated it
        ("table", np.intp),  # number of the table of what it could be given, -1 where it has none
    ]
)


Item = TypeVar("Item")

Work = tuple[str, str]
"""What the pace of a job depends on beside its GPUs: who estimated it, and what it does."""


@dataclass(frozen=True, slots=True)
class Numbered(Generic[Item]):
    """Things by number, each once."""

    items: tuple[Item, ...] = ()
    number: Mapping[Hashable, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.items)

    def with_more(self, more: Sequence[tuple[Hashable, Item]]) -> Numbered[Item]:
        """Return these and those of some more, by key, that are not known yet."""
        number, items = dict(self.number), list(self.items)
        for key, item in more:
            if key not in number:
                number[key] = len(items)
                items.append(item)
        return self if len(items) == len(self.items) else Numbered(tuple(items), number)


@quickly_made
@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A job of a roster.

    Args:
        contender: As which it competes if it does, not counting how often it was moved of late.
        key: Its user and kind of work.
        work: Who made its grid, and what it does.
        nodes: Numbers of the usable nodes that it is on.
        counts: Its GPUs on each of these.
    """

    record: JobRecord
    holding: Holding | None
    grid: Grid | None
    contender: Contender | None
    key: JobKey
    work: Work
    nodes: tuple[int, ...]
    counts: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Roster:
    """Jobs that have something, by id, then those that wait, in order of service.

    Args:
        devices: All devices of the usable nodes; the numbers of nodes hold while it is this very object.
        pools: Of these nodes.
        node_pool: Of each node the number of its pool.
        held_count: How many have something.
        facts: Of each member; see ``FACTS``.
        keys: Users and kinds of work, also of former members.
        works: What they do and who estimated it, also of former members.
        tables: Tables of what jobs could be given, also of former members.
    """

    devices: Mapping[NodeId, NodeRoom]
    node_number: Mapping[NodeId, int]
    pools: Sequence[Pool]
    node_pool: Ints
    ids: Sequence[JobId] = ()
    members: Sequence[Member] = ()
    held_count: int = 0
    facts: NDArray[Any] = field(default_factory=lambda: np.empty(0, dtype=FACTS))
    keys: Numbered[JobKey] = field(default_factory=Numbered)
    works: Numbered[Work] = field(default_factory=Numbered)
    tables: Numbered[Table] = field(default_factory=Numbered)

    @classmethod
    def nobody(cls, devices: Mapping[NodeId, NodeRoom]) -> Roster:
        """Return the roster of no jobs on some nodes."""
        names = sorted(devices)
        number = {node_id: at for at, node_id in enumerate(names)}
        pools = sorted({room.pool for room in devices.values()})
        place = {pool: at for at, pool in enumerate(pools)}
        node_pool = np.array([place[devices[node_id].pool] for node_id in names], dtype=np.intp)
        return cls(devices=devices, node_number=number, pools=pools, node_pool=node_pool)


Contending = Callable[[JobRecord, Holding | None, Grid | None], "Contender | None"]
"""Returns as which a job competes, None where it does not."""


def roster_of(snapshot: Snapshot, before: Roster | None, contending: Contending) -> Roster:
    """Return the roster of a snapshot.

    Args:
        before: One to carry over from, of any snapshot.
        contending: Asked about those only whose record, holding or grid is another than before.
    """
    devices = snapshot.capacity.devices
    before = before if before is not None and before.devices is devices else Roster.nobody(devices)
    numbers = max(len(before.keys), len(before.works), len(before.tables))
    if numbers > 2 * (len(snapshot.holding) + len(snapshot.waiting)) + NUMBERS_KEPT:
        before = Roster.nobody(devices)
    held = _held(snapshot, before)
    places = {job_id: at for at, job_id in enumerate(before.ids[before.held_count :], before.held_count)}
    waiting = [(job_id, None, places.get(job_id)) for job_id in snapshot.waiting]
    members, source, fresh = _members(snapshot, before, [*held, *waiting], contending)
    tables = before.tables.with_more([(id(one.contender.table), one.contender.table) for one in fresh if one.contender])
    keys = before.keys.with_more([(one.key, one.key) for one in fresh])
    works = before.works.with_more([(one.work, one.work) for one in fresh])
    facts = before.facts
    if fresh:
        rows = [_facts(one, (keys.number[one.key], works.number[one.work]), tables.number) for one in fresh]
        facts = np.concatenate([facts, np.array(rows, dtype=FACTS)])
    return Roster(
        devices=devices,
        node_number=before.node_number,
        pools=before.pools,
        node_pool=before.node_pool,
        ids=[job_id for job_id, _, _ in held] + [job_id for job_id, _, _ in waiting],
        members=members,
        held_count=len(held),
        facts=facts[source],
        keys=keys,
        works=works,
        tables=tables,
    )


_Place = tuple[JobId, Holding | None, int | None]
"""A job, what it has, and where it was in the roster before."""


def _held(snapshot: Snapshot, before: Roster) -> list[_Place]:
    """Return the jobs that have something, by id; those before are in order."""
    get = snapshot.holding.get
    known = enumerate(before.ids[: before.held_count])
    found: list[_Place] = [(job_id, held, at) for at, job_id in known if (held := get(job_id)) is not None]
    if len(found) < len(snapshot.holding):
        ids = {job_id for job_id, _, _ in found}
        found += [(job_id, held, None) for job_id, held in snapshot.holding.items() if job_id not in ids]
        found.sort(key=_id_of)
    return found


def _id_of(place: _Place) -> JobId:
    return place[0]


def _members(
    snapshot: Snapshot, before: Roster, places: Sequence[_Place], contending: Contending
) -> tuple[list[Member], list[int], list[Member]]:
    """Return the members, where the facts of each are, and those of them that are new, whose facts come last."""
    jobs, grid_of, old = snapshot.jobs, snapshot.grids.get, before.members
    members, source, fresh = list[Member](), list[int](), list[Member]()
    for job_id, held, place in places:
        job, grid = jobs[job_id], grid_of(job_id)
        if place is not None:
            member = old[place]
            if member.record is job and member.holding is held and member.grid is grid:
                members.append(member)
                source.append(place)
                continue
        source.append(len(old) + len(fresh))
        member = _member(before.node_number, job, held, grid, contending(job, held, grid))
        members.append(member)
        fresh.append(member)
    return members, source, fresh


def _member(
    number: Mapping[NodeId, int], job: JobRecord, held: Holding | None, grid: Grid | None, contender: Contender | None
) -> Member:
    shares = () if held is None else held.allocation.shares
    found = [(number[share.node_id], len(share.device_ids)) for share in shares if share.node_id in number]
    return Member(
        record=job,
        holding=held,
        grid=grid,
        contender=contender,
        key=(job.user, workload_name(job.spec)),
        work=("" if grid is None else estimator(grid), work_name(job.spec, job.user)),
        nodes=tuple([node for node, _ in found]),
        counts=tuple([count for _, count in found]),
    )


def weight_of(spec: JobSpec) -> float:
    """Return how much a job's time counts: its weight, and twice as much for each step of priority."""
    doublings = min(max(spec.priority, -DOUBLINGS_MAX), DOUBLINGS_MAX)
    return min(max(spec.weight * 2.0**doublings, 2.0**-DOUBLINGS_MAX), 2.0**DOUBLINGS_MAX)


def _facts(member: Member, numbers: tuple[int, int], tables: Mapping[Hashable, int]) -> tuple[Any, ...]:
    """Return a member's row, in the order of ``FACTS``; the numbers are those of its key and its work."""
    job, held, contender = member.record, member.holding, member.contender
    spec, progress, estimate = job.spec, job.progress, None if held is None else held.estimate
    is_running, step_s = job.state is JobState.RUNNING, measured_step_s(job)
    steps = is_running and progress.reported_at_s is not None and bool(step_s)
    again = job.launched_at_s[1:] if job.epoch <= len(job.launched_at_s) else job.launched_at_s
    return (
        weight_of(spec),
        job.submitted_at_s,
        -math.inf if spec.deadline_s is None else job.submitted_at_s + spec.deadline_s,
        spec.budget_usd is not None,
        spec.preemptible,
        spec.kind is JobKind.MALLEABLE,
        member.grid is not None,
        held is not None and contender is not None and held.movable and spec.preemptible,
        max(again, default=-math.inf),
        math.nan if held is None else held.since_s,
        0 if held is None else held.group.gpu_count,
        0.0 if contender is None else contender.kept_speed,
        math.log(estimate.iter_time_s / step_s) if estimate is not None and is_running and step_s else math.nan,
        progress.step,
        progress.reported_at_s if steps else math.nan,
        step_s if steps else math.nan,
        spec.command is not None and not progress.step,
        job.changed_at_s if is_running else math.nan,
        spec.gpus.count_min,
        math.nan if (declared := declared_steps(spec)) is None else declared,
        math.inf if spec.stop.time_limit_s is None else spec.stop.time_limit_s,
        job.run_time_s,
        held.since_s if held is not None and is_running else math.nan,
        step_s or (0.0 if estimate is None else estimate.iter_time_s),
        len(member.nodes),
        *numbers,
        -1 if contender is None else tables[id(contender.table)],
    )


def steps_made(facts: NDArray[Any], now_s: float) -> Floats:
    """Return the steps that jobs have made by now: the last they reported, and what they did since at their pace."""
    later = facts["step"] + (now_s - facts["reported_at_s"]) / facts["step_time_s"]
    return np.where(np.isnan(facts["reported_at_s"]), facts["step"], later)


def work_made(facts: NDArray[Any], now_s: float) -> Floats:
    """Return the same; a program that tells of none makes one a second while it is up, as its grid says."""
    up_s = np.where(np.isnan(facts["up_since_s"]), 0.0, now_s - facts["up_since_s"])
    return np.where(facts["is_silent"], facts["run_time_s"] + up_s, steps_made(facts, now_s))


def steps_in_time(facts: NDArray[Any], now_s: float, gpu_s_per_step: Floats) -> Floats:
    """Return how far jobs get in their time limits, at their pace: measured, else estimated, else on their fewest GPUs.

    Args:
        gpu_s_per_step: GPU-seconds that a step costs; shape (jobs,).
    """
    if not np.isfinite(facts["time_limit_s"]).any():
        return np.full(len(facts), np.inf)
    run_s = facts["run_time_s"] + np.where(np.isnan(facts["runs_since_s"]), 0.0, now_s - facts["runs_since_s"])
    step_s = np.where(facts["pace_s"] > 0.0, facts["pace_s"], gpu_s_per_step / facts["count_min"])
    return np.asarray(work_made(facts, now_s) + np.maximum(facts["time_limit_s"] - run_s, 0.0) / step_s)
