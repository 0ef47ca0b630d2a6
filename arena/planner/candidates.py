"""Plans as arrays, so that the cost model prices all of a group's plans at once. Pure: no I/O, no clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from arena.domain.parallel import ParallelPlan, Recompute, Schedule

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """n uniform plans; ``stage_layers`` is ``[n, p]`` with zeros beyond a plan's depth, everything else ``[n]``.

    Args:
        micro_batch_count: Micro-batches per replica and step, padding included.
        virtual_stage_count: Model chunks per pipeline rank.
        is_gpipe, is_full_recompute: Flags of schedule and recomputation.
    """

    dp: Ints
    tp: Ints
    pp: Ints
    micro_batch_size: Ints
    micro_batch_count: Ints
    zero: Ints
    virtual_stage_count: Ints
    is_gpipe: Flags
    is_full_recompute: Flags
    stage_layers: Ints

    def __len__(self) -> int:
        return len(self.dp)

    @property
    def stage_mask(self) -> Flags:
        """Which stages exist, ``[n, p]``."""
        return self.stage_layers > 0


def micro_batch_count(global_batch: int, dp: int, micro_batch_size: int) -> int:
    """Return the micro-batches of the replica with the most samples; the others are padded to it."""
    samples_max = -(-global_batch // dp)
    return -(-samples_max // micro_batch_size)


def candidates_of(plans: Sequence[ParallelPlan], global_batch: int) -> Candidates:
    """Return plans (of one or more depths) as arrays."""
    depth = max(plan.pp for plan in plans)
    layers = [[stage.layer_count for stage in plan.stages] + [0] * (depth - plan.pp) for plan in plans]
    counts = [micro_batch_count(global_batch, plan.dp, plan.micro_batch_size) for plan in plans]
    return Candidates(
        dp=np.array([plan.dp for plan in plans], dtype=np.int64),
        tp=np.array([plan.tp for plan in plans], dtype=np.int64),
        pp=np.array([plan.pp for plan in plans], dtype=np.int64),
        micro_batch_size=np.array([plan.micro_batch_size for plan in plans], dtype=np.int64),
        micro_batch_count=np.array(counts, dtype=np.int64),
        zero=np.array([plan.zero for plan in plans], dtype=np.int64),
        virtual_stage_count=np.array([plan.virtual_stage_count for plan in plans], dtype=np.int64),
        is_gpipe=np.array([plan.schedule is Schedule.GPIPE for plan in plans], dtype=np.bool_),
        is_full_recompute=np.array([plan.recompute is Recompute.FULL for plan in plans], dtype=np.bool_),
        stage_layers=np.array(layers, dtype=np.int64),
    )
