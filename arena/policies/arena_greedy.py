"""The published Arena's search, as a baseline (Arena, EuroSys'26; details from its artifact). Pure: no I/O, no clock.

Jobs are served in order of submission. Each asks for one GPU type and count. Where that is not free, a breadth-first
search of bounded depth looks for steps that make room: a step halves one job's GPUs, or moves one job to another type
at the same count; of the ways that admit the job, the one with the largest change of the cluster's samples per second
is taken, even if that is a loss. A job that finds room while an earlier one waits runs at that one's mercy
("opportunistic") and is suspended when it is in the way. After each arrival and once more at the end, up to ten
upgrades: double one job's GPUs or change its type, whichever gains most. Neither the cost of a restart nor what is left
of a job is looked at: that is the published policy, not an oversight here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from arena.domain.grid import Grid
from arena.domain.job import JobId, JobSpec
from arena.domain.reason import Reason, ReasonCode, reason
from arena.policies.base import Choice, Decision, Holding, Snapshot
from arena.policies.choose import PLANNING, choice_of
from arena.policies.greedy_deadlines import Deadlines
from arena.policies.greedy_rosters import Ask, Cells, Seat, data_parallel_only
from arena.policies.greedy_search import Search
from arena.policies.greedy_seats import Seating, opening, seat_of

GRIDS_REMEMBERED = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class GreedyRules:
    """What the search may do; each switch off is one of the published ablations.

    Args:
        scaling: Halve and double GPU counts.
        type_change: Move jobs between GPU types.
        opportunism: Let jobs pass an earlier one that waits, and suspend them for it.
        migration: Change running jobs at all.
        data_parallel: Only plans whose replicas are whole on each GPU, nothing of them divided. What a table measured
            has no plan that is known.
        deadlines: Heed them (``arena.policies.greedy_deadlines``).
        depth: Steps of the search; ``busy_depth`` where more than ``busy_count`` jobs run.
        upgrades_max: Upgrade steps after an arrival or departure.
        count_max: Largest GPU count that is asked for.
    """

    scaling: bool = True
    type_change: bool = True
    opportunism: bool = True
    migration: bool = True
    data_parallel: bool = False
    deadlines: bool = False
    depth: int = 3
    busy_depth: int = 2
    busy_count: int = 150
    upgrades_max: int = 10
    count_max: int = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class ArenaGreedy:
    """The ``arena-greedy`` policy.

    Args:
        rules: What the search may do.
        asks: What users asked for, by job; who is missing asks for its fastest cell of the fewest GPUs.
    """

    rules: GreedyRules = GreedyRules()
    asks: Mapping[JobId, Ask] = field(default_factory=dict)
    _sorted: dict[int, tuple[Grid, Cells]] = field(default_factory=dict, repr=False, compare=False)
    _narrow: dict[int, tuple[Grid, Grid]] = field(default_factory=dict, repr=False, compare=False)
    _seats: dict[JobId, tuple[Holding, Cells | None, JobSpec, Seat]] = field(
        default_factory=dict, repr=False, compare=False
    )
    name: str = "arena-greedy"
    version: str = "2"

    def decide(self, snapshot: Snapshot) -> Decision:
        """Admit in order of submission, then upgrade; see the module for the rules."""
        snapshot = self._narrowed(snapshot)
        cells = {job_id: self._cells(grid) for job_id, grid in snapshot.grids.items()}
        seating = opening(snapshot, cells, self._seated(snapshot, cells))
        reasons: dict[JobId, tuple[Reason, ...]] = {}
        first_waiting: JobId | None = None
        deadlines = Deadlines(snapshot=snapshot, is_on=self.rules.deadlines)
        for job_id in self._in_order(seating, deadlines):
            if job_id not in snapshot.grids:
                reasons[job_id] = PLANNING
                continue
            if first_waiting is not None and not self.rules.opportunism:
                reasons[job_id] = (reason(ReasonCode.BEHIND, job=first_waiting, ahead=1),)
                continue
            found = self._admitted(seating, job_id, deadlines, is_blocked=first_waiting is not None)
            if isinstance(found, Reason):
                first_waiting = first_waiting or job_id
                reasons[job_id] = (found,)
                continue
            seating = self._upgraded(found, deadlines)
        return _decision(snapshot, self._upgraded(seating, deadlines), reasons)

    def _narrowed(self, snapshot: Snapshot) -> Snapshot:
        """Return what the policy may look at: under ``data_parallel`` no other plans of jobs that have any."""
        if not self.rules.data_parallel:
            return snapshot
        grids: dict[JobId, Grid] = {}
        for job_id, grid in snapshot.grids.items():
            has_plans = job_id in snapshot.jobs and snapshot.jobs[job_id].spec.command is None
            grids[job_id] = self._data_parallel(grid) if has_plans else grid
        return replace(snapshot, grids=grids)

    def _data_parallel(self, grid: Grid) -> Grid:
        known = self._narrow.get(id(grid))
        if known is None:
            if len(self._narrow) >= GRIDS_REMEMBERED:
                self._narrow.clear()
            known = self._narrow[id(grid)] = (grid, data_parallel_only(grid))
        return known[1]

    def _in_order(self, seating: Seating, deadlines: Deadlines) -> Sequence[JobId]:
        waiting = seating.snapshot.waiting
        if not self.rules.deadlines:
            return waiting
        return sorted(waiting, key=lambda job_id: deadlines.is_lost(seating, job_id))

    def _cells(self, grid: Grid) -> Cells:
        """Sort a grid once; the grid is kept beside, so that its identity stays its own."""
        known = self._sorted.get(id(grid))
        if known is None:
            if len(self._sorted) >= GRIDS_REMEMBERED:
                self._sorted.clear()
            known = self._sorted[id(grid)] = (grid, Cells.of(grid))
        return known[1]

    def _seated(self, snapshot: Snapshot, cells: Mapping[JobId, Cells]) -> dict[JobId, Seat]:
        """Return the seats of those that have devices; a job whose holding is that of before sits as before."""
        if len(self._seats) >= GRIDS_REMEMBERED:
            self._seats.clear()
        seats = {}
        for job_id, holding in snapshot.holding.items():
            mine, spec, known = cells.get(job_id), snapshot.jobs[job_id].spec, self._seats.get(job_id)
            if known is None or known[0] is not holding or known[1] is not mine or known[2] is not spec:
                known = self._seats[job_id] = (holding, mine, spec, seat_of(snapshot, job_id, holding, mine))
            seats[job_id] = known[3]
        return seats

    def _admitted(self, seating: Seating, job_id: JobId, deadlines: Deadlines, *, is_blocked: bool) -> Seating | Reason:
        """Seat a job as it asks, making room where nobody earlier waits, or say why not."""
        ask = self._ask(seating, job_id)
        if ask is None:
            return reason(ReasonCode.NO_FEASIBLE_PLAN, detail="its grid has no cell of one GPU type")
        found = seating.seated(job_id, ask)
        if isinstance(found, Seating) or is_blocked:
            return found
        return (
            self._searched(seating, job_id, ask, deadlines)
            or self._suspending(seating, job_id, ask, deadlines)
            or found
        )

    def _ask(self, seating: Seating, job_id: JobId) -> Ask | None:
        """Return what a job asks for: its wish, or the nearest to it that its grid has; fewer GPUs come before more."""
        known = seating.cells[job_id].by_ask
        wish = self.asks.get(job_id)
        if wish in known:
            return wish
        gpu_type, count = wish or ("", min((ask[1] for ask in known), default=0))

        def distance(ask: Ask) -> tuple[bool, bool, int, float, Ask]:
            return (
                wish is not None and ask[0] != gpu_type,
                ask[1] > count,
                abs(ask[1] - count),
                -(seating.speed_of(job_id, ask) or 0.0),
                ask,
            )

        return min(known, key=distance, default=None)

    def _searched(self, seating: Seating, job_id: JobId, ask: Ask, deadlines: Deadlines) -> Seating | None:
        """Look breadth first for steps that make room for an ask; return the best way, None where there is none."""
        if not self.rules.migration:
            return None
        depth = self.rules.busy_depth if len(seating.seats) > self.rules.busy_count else self.rules.depth
        search = Search(
            job_id=job_id,
            ask=ask,
            types=sorted({pool.gpu_type for pool in seating.snapshot.shape.pools}),
            halves=self.rules.scaling,
            moves=self.rules.type_change,
            allowed=deadlines.allows if self.rules.deadlines else None,
        )
        best = search.best(seating.from_here(), depth)
        return best.from_here() if best is not None else None

    def _suspending(self, seating: Seating, job_id: JobId, ask: Ask, deadlines: Deadlines) -> Seating | None:
        """Suspend jobs that came later and passed this one, the latest first, until it fits; None if it never does."""
        if not self.rules.opportunism:
            return None
        keys = {other: deadlines.service_key(seating, other) for other in (job_id, *seating.seats)}
        later = [
            other
            for other, seat in seating.seats.items()
            if seat.is_suspendable and seat.ask[0] == ask[0] and keys[other] > keys[job_id]
        ]
        state = seating.from_here()
        for other in sorted(later, key=lambda one: keys[one], reverse=True):
            state = state.suspended(other, job_id)
            found = state.seated(job_id, ask) if state.has_room(job_id, ask) else None
            if isinstance(found, Seating):
                return _without_vain_suspensions(found, seating, job_id)
        return None

    def _upgraded(self, seating: Seating, deadlines: Deadlines) -> Seating:
        """Double a job's GPUs or change its type, whichever gains most, up to the limit."""
        if not self.rules.migration:
            return seating
        for _ in range(self.rules.upgrades_max):
            options = sorted(self._upgrades(seating, deadlines), key=lambda one: (-one[0], one[1], one[2]))
            better = next(
                (
                    after
                    for _, job_id, ask in options
                    if isinstance(after := seating.seated(job_id, ask), Seating) and after.gain > seating.gain
                ),
                None,
            )
            if better is None:
                break
            seating = better
        return seating

    def _upgrades(self, seating: Seating, deadlines: Deadlines) -> Iterator[tuple[float, JobId, Ask]]:
        """Yield upgrades that would gain on the most local group: (gain, job, ask)."""
        free = {gpu_type: seating.free_count(gpu_type) for gpu_type, _ in seating.capacity.pools}
        for job_id, seat in seating.seats.items() if free else ():
            if not seat.is_movable:
                continue
            gpu_type, count = seat.ask
            asks: list[Ask] = []
            if self.rules.scaling and 2 * count <= self.rules.count_max and free.get(gpu_type, 0) >= count:
                asks.append((gpu_type, 2 * count))
            if self.rules.type_change:
                asks.extend((other, count) for other, room in free.items() if other != gpu_type and room >= count)
            for ask in asks:
                speed = seating.speed_of(job_id, ask)
                if speed is not None and speed > seat.samples_per_s and deadlines.allows(seating, job_id, ask):
                    yield speed - seat.samples_per_s, job_id, ask


def _without_vain_suspensions(after: Seating, before: Seating, job_id: JobId) -> Seating:
    """Give those their devices back of which the job took none."""
    taken = after.seats[job_id].allocation.device_ids
    for other, job_for in sorted(after.suspended_for.items()):
        seat = before.seats.get(other)
        if job_for == job_id and seat is not None and not seat.allocation.device_ids & taken:
            after = after.resumed(other, seat)
    return after.from_here()


def _decision(snapshot: Snapshot, seating: Seating, reasons: dict[JobId, tuple[Reason, ...]]) -> Decision:
    choices: dict[JobId, Choice | None] = {}
    for job_id, seat in sorted(seating.seats.items()):
        before = snapshot.holding.get(job_id)
        if before is not None and before.allocation == seat.allocation:
            continue
        assert seat.cell is not None
        code = ReasonCode.STARTED if before is None else ReasonCode.MOVED
        choice = choice_of(seat.cell, seat.allocation, code)
        choices[job_id] = choice
        reasons[job_id] = (choice.cause,)
    for job_id in sorted(snapshot.holding):
        if job_id not in seating.seats:
            choices[job_id] = None
            reasons[job_id] = (reason(ReasonCode.PREEMPTED, job=seating.suspended_for[job_id]),)
    return Decision(choices=choices, reasons=reasons)
