"""A step under a plan over mixed GPUs, pass by pass in the order of the worker. Pure: no I/O, no clock."""

from __future__ import annotations

from collections.abc import Sequence

from arena.domain.micro_batches import MicroBatch
from arena.domain.parallel import ParallelPlan
from arena.domain.schedule import Action, Pass, schedule_of
from arena.errors import SpecError
from arena.planner.candidates import Floats
from arena.planner.pipeline import BACKWARD_SHARE


def step_s(
    plan: ParallelPlan, batches: Sequence[MicroBatch], replica_s: Sequence[Floats], after_s: Sequence[float]
) -> float:
    """Return when the last stage is done.

    Args:
        replica_s: Time of a micro-batch on each replica, by stage.
        after_s: What follows the last pass of each stage.

    Raises:
        SpecError: The orders of the plan's ranks wait for each other.
    """
    orders = schedule_of(plan, batches)
    done: dict[Action, float] = {}
    free = dict.fromkeys(orders, 0.0)
    position = dict.fromkeys(orders, 0)
    left = sum(len(order) for order in orders.values())
    while left:
        before = left
        for key, order in orders.items():
            while position[key] < len(order):
                action = order[position[key]]
                ready = _ready_at(action, done, plan.pp)
                if ready is None:
                    break
                share = 1.0 - BACKWARD_SHARE if action.direction is Pass.FORWARD else BACKWARD_SHARE
                free[key] = max(ready, free[key]) + share * float(replica_s[key[0]][key[1]])
                done[action] = free[key]
                position[key] += 1
                left -= 1
        if left == before:
            raise SpecError("the orders of a plan wait for each other", why=str(plan))
    ends = [max(free[key] for key in orders if key[0] == stage) for stage in range(plan.pp)]
    return max(end + after for end, after in zip(ends, after_s, strict=True))


def _ready_at(action: Action, done: dict[Action, float], pp: int) -> float | None:
    """Return when what a pass needs is there, None where nobody knows yet."""
    if action.direction is Pass.FORWARD:
        if action.chunk == 0:
            return 0.0
        return done.get(Action(Pass.FORWARD, action.chunk - 1, action.micro_batch))
    if action.chunk == pp - 1:
        return done.get(Action(Pass.FORWARD, action.chunk, action.micro_batch))
    return done.get(Action(Pass.BACKWARD, action.chunk + 1, action.micro_batch))
