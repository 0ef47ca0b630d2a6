"""Plans from mixes of chains. Pure: no I/O, no clock."""

from __future__ import annotations

import numpy as np

from arena.domain.parallel import ParallelPlan, Replica, Stage
from arena.planner.candidates import Ints
from arena.planner.heterogeneous.chains import Mix
from arena.planner.heterogeneous.offer import PartKey


def plan_of(mix: Mix, keys: list[PartKey], *, is_equal: bool, keeps_all: bool = False) -> ParallelPlan:
    """Return the plan of a mix; counts of micro-batches are left out where an even share gives them.

    Args:
        keeps_all: Whether no chain may be left without a micro-batch, and so out.
    """
    chain = np.repeat(np.arange(len(mix.kinds)), mix.replicas)
    counts = mix.counts[chain]
    if not is_equal:
        counts = _trimmed(counts, mix.slowest_s[chain], mix.table.need, least=int(keeps_all))
        chain, counts = chain[counts > 0], counts[counts > 0]
    is_even = is_equal or (counts == counts[0]).all()
    stages: list[Stage] = []
    for stage in range(len(mix.cuts) - 1):
        kinds = [mix.table.kinds[kind] for kind in mix.kinds[chain, stage].tolist()]
        made: dict[tuple[int, int, int | None], Replica] = {}
        replicas: list[Replica] = []
        for kind, count in zip(kinds, counts.tolist(), strict=True):
            known = (kind.part, kind.tp, None if is_even else count)
            if known not in made:
                gpu_type, zone = keys[kind.part]
                made[known] = Replica(tp=kind.tp, gpu_type=gpu_type, zone=zone, micro_batch_count=known[2])
            replicas.append(made[known])
        stages.append(Stage(layer_count=mix.cuts[stage + 1] - mix.cuts[stage], replicas=tuple(replicas)))
    return ParallelPlan(
        stages=tuple(stages), micro_batch_size=mix.table.micro_batch_size, recompute=mix.table.recompute
    )


def _trimmed(slots: Ints, times: np.ndarray, need: int, *, least: int) -> Ints:
    """Take off what is more than needed, where it takes longest, down to the least."""
    counts = slots.copy()
    excess = int(counts.sum()) - need
    while excess > 0 and (counts > least).any():
        busy = np.where(counts > least, counts * times, -1.0)
        top = np.flatnonzero(busy >= busy.max() * (1.0 - 1e-9))[:excess]
        counts[top] -= 1
        excess -= len(top)
    return counts
