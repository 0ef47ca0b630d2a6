"""A job that was moved too often is looked at again as soon as it may be moved, though nothing else happens."""

from __future__ import annotations

from dataclasses import replace

from arena.domain.job import JobId
from arena.policies.base import Snapshot
from arena.policies.priced.moves import MOVES_MAX, MOVES_S
from arena.policies.registry import make_policy
from tests.builders import allocation_on, chosen, holding_of, node_info, scaling_grid, snapshot_of, train_spec

GRID = scaling_grid("cpu", [(1,), (2,), (4,)], power=0.9)
MOVED_S = tuple(9_000.3 + 100.0 * at for at in range(MOVES_MAX))


def restless(now_s: float) -> Snapshot:
    """A job that has been moved as often as it may has half of a node, and the other half is free."""
    held = {"a": holding_of(GRID, allocation_on(("n1", (0, 1))))}
    spec = train_spec("a", stop={"steps": 100_000})
    snapshot = snapshot_of([node_info("n1", gpus=4)], {"a": (spec, GRID)}, running=held, now_s=now_s)
    record = replace(snapshot.jobs[JobId("a")], epoch=MOVES_MAX + 1, launched_at_s=MOVED_S)
    return replace(snapshot, jobs={JobId("a"): record})


def test_it_takes_what_is_free_at_the_instant_that_the_policy_asked_for() -> None:
    policy = make_policy("arena")
    first = policy.decide(restless(9_500.0))
    assert first.choices == {}
    assert first.look_again_at_s is not None
    assert MOVED_S[0] + MOVES_S < first.look_again_at_s < MOVED_S[1] + MOVES_S

    then = policy.decide(restless(first.look_again_at_s))
    assert chosen(then, "a").group.gpu_count == 4
