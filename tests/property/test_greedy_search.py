"""The published greedy's search sees through most ways before it follows them; it finds what following all would."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from arena.domain.cluster import NodeInfo
from arena.domain.grid import Grid
from arena.domain.job import JobId, JobSpec
from arena.policies.base import Holding, Snapshot
from arena.policies.greedy_rosters import Ask, Cells
from arena.policies.greedy_search import Search
from arena.policies.greedy_seats import Seating, opening, seat_of
from tests.builders import allocation_on, cell, grid_of, holding_of, node_info, snapshot_of, train_spec

TYPES = ("a", "b", "c")
LAYOUTS = ((1,), (2,), (1, 1), (4,), (2, 2), (4, 4))


@st.composite
def full_clusters(draw: st.DrawFn) -> Snapshot:
    """Three types of nodes of four GPUs, malleable jobs on most of them, and one that waits."""
    nodes = [node_info(f"{gpu_type}{index}", gpus=4, gpu_type=gpu_type) for gpu_type in TYPES for index in range(2)]
    speeds = [
        grid_of(
            *(
                cell(gpu_type, layout, draw(st.floats(0.5, 4.0)) / sum(layout))
                for gpu_type in TYPES
                for layout in LAYOUTS
            )
        )
        for _ in range(2)
    ]
    known: dict[str, tuple[JobSpec, Grid]] = {}
    running: dict[str, Holding] = {}
    for node in nodes:
        first = 0
        for count in draw(st.sampled_from([(4,), (2, 2), (2, 1, 1), (2,), (1, 1, 1)])):
            job_id = f"j{len(known)}"
            grid = speeds[draw(st.integers(0, 1))]
            known[job_id] = (train_spec(job_id, preemptible=draw(st.sampled_from([True, True, False]))), grid)
            running[job_id] = holding_of_type(grid, node, range(first, first + count))
            first += count
    known["waits"] = (train_spec("waits"), speeds[0])
    return snapshot_of(nodes, known, running=running)


def holding_of_type(grid: Grid, node: NodeInfo, indexes: Sequence[int]) -> Holding:
    mine = grid_of(*(one for one in grid.cells if one.group.parts[0].gpu_type == node.gpu_type))
    return holding_of(mine, allocation_on((node.node_id, list(indexes))))


def followed(state: Seating, job_id: JobId, ask: Ask, depth: int) -> Seating | None:
    """Follow every way there is, as the artifact does; the best one, the first of equals."""
    frontier, best = [state], None
    for _ in range(depth):
        following: list[Seating] = []
        for at in frontier:
            for after in every_step(at):
                found = after.seated(job_id, ask)
                if not isinstance(found, Seating):
                    following.append(after)
                elif best is None or found.gain > best.gain:
                    best = found
        frontier = following
    return best


def every_step(state: Seating) -> Iterator[Seating]:
    for gpu_type in TYPES:
        mine = [(job_id, seat) for job_id, seat in sorted(state.seats.items()) if seat.ask[0] == gpu_type]
        largest = max((seat.ask[1] for _, seat in mine), default=0)
        wide = [one for one in mine if one[1].ask[1] >= 2 and 2 * one[1].ask[1] >= largest]
        yield from first_seated(state, [(job_id, (gpu_type, seat.ask[1] // 2)) for job_id, seat in wide], tries_max=1)
    for source in TYPES:
        mine = [(job_id, seat) for job_id, seat in sorted(state.seats.items()) if seat.ask[0] == source]
        for target in TYPES:
            if source != target:
                yield from first_seated(state, [(job_id, (target, seat.ask[1])) for job_id, seat in mine])


def first_seated(state: Seating, wishes: list[tuple[JobId, Ask]], tries_max: int = 1_000) -> Iterator[Seating]:
    losses = []
    for job_id, ask in wishes:
        speed = state.speed_of(job_id, ask)
        if state.seats[job_id].is_movable and speed is not None:
            losses.append((state.seats[job_id].samples_per_s - speed, job_id, ask))
    for _, job_id, ask in sorted(losses)[:tries_max]:
        after = state.seated(job_id, ask)
        if isinstance(after, Seating):
            yield after
            return


@settings(max_examples=40, deadline=None)
@given(
    snapshot=full_clusters(),
    ask=st.tuples(st.sampled_from(TYPES), st.sampled_from([1, 2, 4, 8])),
    depth=st.integers(1, 3),
)
def test_nothing_that_would_win_is_left_out(snapshot: Snapshot, ask: Ask, depth: int) -> None:
    waits = JobId("waits")
    cells = {job_id: Cells.of(grid) for job_id, grid in snapshot.grids.items()}
    seats = {job_id: seat_of(snapshot, job_id, one, cells[job_id]) for job_id, one in snapshot.holding.items()}
    start = opening(snapshot, cells, seats)
    assume(not isinstance(start.seated(waits, ask), Seating))
    search = Search(job_id=waits, ask=ask, types=TYPES, halves=True, moves=True, allowed=None)
    found, expected = search.best(start, depth), followed(start, waits, ask, depth)
    assert (found is None) is (expected is None)
    if found is not None and expected is not None:
        assert (found.gain, found.seats) == (expected.gain, expected.seats)
