"""What is promised beside shares, against a search through all ways in which the rest of them could be given."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from arena.domain.grid import Grid
from arena.domain.job import JobId, JobSpec
from arena.domain.tenants import ANY_TYPE, Guarantee
from arena.policies.base import Holding, Snapshot
from arena.policies.priced.policy import PricedPolicy
from tests.builders import allocation_on, command_spec, holding_of, node_info, scaling_grid, snapshot_of, train_spec

Programs = Sequence[tuple[str, int]]
"""Project and GPUs of each."""

programs = st.lists(st.tuples(st.sampled_from(["vision", "sound", "default", "speech"]), st.integers(1, 3)), max_size=4)
shares = st.fixed_dictionaries({"speech": st.integers(0, 4), "vision": st.integers(0, 6)}) | st.fixed_dictionaries(
    {"speech": st.integers(0, 4), "vision": st.integers(0, 4), "sound": st.integers(0, 3)}
)


def _pieces(left: int, size: int) -> list[int]:
    return [size] * (left // size) + [left % size] * (left % size > 0)


def _placings(free: tuple[int, ...], pieces: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Yield what is free of each node after every way of giving each piece one node."""
    if not pieces:
        yield free
        return
    for at, have in enumerate(free):
        if have >= pieces[0]:
            yield from _placings((*free[:at], have - pieces[0], *free[at + 1 :]), pieces[1:])


def _asking(
    nodes: tuple[int, int], held: dict[str, tuple[str, int, int]], count: int, **tenants: Guarantee
) -> Snapshot:
    """Speech asks for so many GPUs of one node beside programs that are there for good: (project, node, GPUs).

    Args:
        nodes: Their number, and the GPUs of each.
    """
    asked = train_spec(
        "a", kind="rigid", gpus={"count": count}, stop={"steps": 10}, deadline_s=1_000.0, project="speech"
    )
    jobs: dict[str, tuple[JobSpec, Grid]] = {"a": (asked, scaling_grid("cpu", [(count,)]))}
    running, used = dict[str, Holding](), [0] * nodes[0]
    for name, (project, node, gpus) in held.items():
        grid = scaling_grid("cpu", [(gpus,)])
        jobs[name] = (command_spec(name, count=gpus, preemptible=False, project=project), grid)
        devices = tuple(range(used[node], used[node] + gpus))
        running[name] = holding_of(grid, allocation_on((f"n{node}", devices)), movable=False, since_s=1_000.0)
        used[node] += gpus
    infos = [node_info(f"n{at}", gpus=nodes[1]) for at in range(nodes[0])]
    return snapshot_of(infos, jobs, running=running, tenants=tenants)


@settings(max_examples=150, deadline=None)
@given(
    node_count=st.integers(1, 3),
    size=st.integers(1, 4),
    ran=programs,
    nodes=st.lists(st.integers(0, 2), min_size=4, max_size=4),
    guaranteed=shares,
    kind=st.sampled_from(["cpu", ANY_TYPE]),
    count=st.integers(1, 4),
)
def test_what_fits_beside_what_runs_and_the_rest_of_all_shares_is_promised_and_nothing_else(
    node_count: int, size: int, ran: Programs, nodes: list[int], guaranteed: dict[str, int], kind: str, count: int
) -> None:
    """What a tenant runs for good counts against its share once; of a share, part of a node stays together."""
    free, held = [size] * node_count, dict[str, tuple[str, int, int]]()
    for at, (project, gpus) in enumerate(ran):
        node = nodes[at] % node_count
        if gpus <= free[node]:
            free[node] -= gpus
            held[f"p{at}"] = (project, node, gpus)
    used = {name: sum(gpus for project, _, gpus in held.values() if project == name) for name in guaranteed}
    left = {name: max(share - used[name], 0) for name, share in guaranteed.items() if name != "speech"}
    assume(count <= size)
    pieces = sorted((piece for gpus in left.values() for piece in _pieces(gpus, size)), reverse=True)
    ways = list(_placings(tuple(free), pieces))
    assume(ways)  # else programs of others hold what is guaranteed: no promise is tested
    tenants = {name: Guarantee(gpu_count_by_type={kind: share}) for name, share in guaranteed.items()}
    answer = PricedPolicy().admission(_asking((node_count, size), held, count, **tenants), JobId("a"))
    assert answer is not None
    assert answer.is_promised == any(max(way) >= count for way in ways), (free, pieces)
