"""How ranks act as one: one rank does, all learn the outcome, and an error of one is an error of all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import torch.distributed as dist

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """The ranks of the attempt, over a group that carries Python objects.

    Args:
        rank: This rank.
        world_size: Ranks in all.
        group: A gloo group over all ranks.
    """

    rank: int
    world_size: int
    group: dist.ProcessGroup

    def first_does(self, action: Callable[[], T]) -> T:
        """Run an action on rank 0 and return its result, or raise its error, on every rank.

        Only errors that pickling keeps are passed on: Arena's own, and those of the operating system.
        """
        outcome: list[Any] = [None, None]
        failure: BaseException | None = None
        if self.rank == 0:
            try:
                outcome[0] = action()
            except Exception as error:  # noqa: BLE001 - passed on to all ranks, and raised again on each
                outcome[1] = failure = error
        dist.broadcast_object_list(outcome, src=0, group=self.group)
        if outcome[1] is not None:
            raise failure or cast(Exception, outcome[1])
        return cast(T, outcome[0])

    def gathered(self, value: T) -> list[T]:
        """Return every rank's value, in rank order, on every rank."""
        values: list[Any] = [None] * self.world_size
        dist.all_gather_object(values, value, group=self.group)
        return values
