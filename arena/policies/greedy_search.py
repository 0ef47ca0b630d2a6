"""The search of ``arena-greedy``: steps that make room for a job, breadth first, the best way of all. Pure.

On each GPU type the job loses half its GPUs whose loss is least, among those that hold at least half of the type's
largest allocation; from each type to each other the job moves, at the same count, that gains most by it.

The number of ways is the cube of the number of steps, so most are seen through before they are followed: a job that
waits for one GPU type finds room only after a step that frees some of that type, so of the last steps the others are
left out; and a last step is left out that frees too little, or by which not even the fastest cells would win.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from arena.domain.job import JobId
from arena.policies.greedy_rosters import Ask
from arena.policies.greedy_seats import Seating, has_room

Allowed = Callable[[Seating, JobId, Ask], bool]
"""Tells whether a seated job may be given an ask."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """A search on behalf of one job that does not fit.

    Args:
        types: GPU types of the cluster, in order.
        halves, moves: Which steps there are.
        allowed: None where every seated job may be given everything.
    """

    job_id: JobId
    ask: Ask
    types: Sequence[str]
    halves: bool
    moves: bool
    allowed: Allowed | None

    def best(self, start: Seating, depth: int) -> Seating | None:
        """Return the way with the largest gain, the first of equals; None where there is none.

        Args:
            start: Where the job does not fit.
        """
        frontier, best = [start], None
        for _ in range(depth - 1):
            following: list[Seating] = []
            for state in frontier:
                for freed, after in self._steps(state):
                    found = self._seated(after) if freed == self.ask[0] else None
                    if found is None:
                        following.append(after)
                    elif best is None or found.gain > best.gain:
                        best = found
            frontier = following
        for state in frontier if depth else ():
            for found in self._last_steps(state, best):
                if best is None or found.gain > best.gain:
                    best = found
        return best

    def _seated(self, state: Seating) -> Seating | None:
        """Return the state with the job seated, None where it does not fit."""
        found = state.seated(self.job_id, self.ask) if state.has_room(self.job_id, self.ask) else None
        return found if isinstance(found, Seating) else None

    def _steps(self, state: Seating) -> Iterator[tuple[str, Seating]]:
        """Yield what one step can make of a state, with the GPU type of which it frees some."""
        for gpu_type in self.types if self.halves else ():
            after = self._halved(state, gpu_type)
            if after is not None:
                yield gpu_type, after
        free = {gpu_type: state.free_count(gpu_type) for gpu_type in self.types}
        for source in self.types if self.moves else ():
            for target in self.types:
                after = self._moved(state, source, target, free[target]) if source != target else None
                if after is not None:
                    yield source, after

    def _halved(self, state: Seating, gpu_type: str) -> Seating | None:
        found = self._to_halve(state, gpu_type)
        after = None if found is None else state.seated(found[0], (gpu_type, found[1]))
        return after if isinstance(after, Seating) else None

    def _to_halve(self, state: Seating, gpu_type: str) -> tuple[JobId, int] | None:
        """Return the job that loses half its GPUs, and what it keeps."""
        largest = state.largest(gpu_type)
        for _, job_id, count in state.halvings(gpu_type):
            before = state.seats[job_id].ask[1]
            if before >= 2 and 2 * before >= largest and self._is_allowed(state, job_id, (gpu_type, count)):
                return job_id, count
        return None

    def _moved(self, state: Seating, source: str, target: str, free_count: int) -> Seating | None:
        for job_id, ask in self._to_move(state, source, target, free_count):
            after = state.seated(job_id, ask)
            if isinstance(after, Seating):
                return after
        return None

    def _to_move(self, state: Seating, source: str, target: str, free_count: int) -> Iterator[tuple[JobId, Ask]]:
        """Yield the jobs that fit on another type, with what they ask for; who loses least first.

        What they have now is of another type: they fit there as things are, or not at all.
        """
        fitting: dict[int, bool] = {}
        for _, job_id, count in state.moves(source, target):
            if count > free_count:
                continue
            ask = (target, count)
            groups = state.cells[job_id].placeable[ask]
            if id(groups) not in fitting:
                fitting[id(groups)] = has_room(state.capacity, groups)
            if fitting[id(groups)] and self._is_allowed(state, job_id, ask):
                yield job_id, ask

    def _is_allowed(self, state: Seating, job_id: JobId, ask: Ask) -> bool:
        return self.allowed is None or self.allowed(state, job_id, ask)

    def _last_steps(self, state: Seating, best: Seating | None) -> Iterator[Seating]:
        """Yield the ways that end with one more step; some of those that cannot win are left out."""
        # Where nodes see different checkpoints, whether a job finds devices is known only when it has.
        is_sure = not any(state.snapshot.places.values())
        wanted = self.ask[0]
        half = self._to_halve(state, wanted) if self.halves else None
        if half is not None and (not is_sure or self._may_win(state, half[0], (wanted, half[1]), best)):
            after = state.seated(half[0], (wanted, half[1]))
            found = self._seated(after) if isinstance(after, Seating) else None
            if found is not None:
                yield found
        for target in self.types if self.moves else ():
            found = self._last_move(state, target, best, is_sure=is_sure) if target != wanted else None
            if found is not None:
                yield found

    def _last_move(self, state: Seating, target: str, best: Seating | None, *, is_sure: bool) -> Seating | None:
        for job_id, ask in self._to_move(state, self.ask[0], target, state.free_count(target)):
            if is_sure and not self._may_win(state, job_id, ask, best):
                return None
            room = state.capacity.restore(state.seats[job_id].allocation)
            if is_sure and not has_room(room, state.cells[self.job_id].placeable.get(self.ask, ())):
                return None
            after = state.seated(job_id, ask)
            if isinstance(after, Seating):
                return self._seated(after)
        return None

    def _may_win(self, state: Seating, other: JobId, ask: Ask, best: Seating | None) -> bool:
        """Tell whether the job could fit and win after another's step: an upper bound, rounded as the gain itself."""
        seat = state.seats[other]
        freed = seat.ask[1] - (ask[1] if ask[0] == self.ask[0] else 0)
        if state.free_count(self.ask[0]) + freed < self.ask[1]:
            return False
        if best is None:
            return True
        gain = state.gain + state.speed_max(other, ask) - seat.samples_per_s
        return gain + state.speed_max(self.job_id, self.ask) > best.gain
