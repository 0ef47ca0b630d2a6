"""How a global batch is cut into the micro-batches of each replica. Pure: no I/O, no clock.

Replicas take unequal sample counts where dp does not divide the batch, or where the plan says so. Micro-batches have
one shape everywhere, so the last one is filled with padding samples whose targets are ignored: they add exactly zero
to loss and gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from arena.domain.parallel import ParallelPlan, Schedule, even_split
from arena_agent.worker.data import Corpus

IGNORED_TARGET = -100


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaBatch:
    """What one replica computes in a step, both ``[micro_batch_count * micro_batch_size, seq_len]``."""

    inputs: npt.NDArray[np.int64]
    targets: npt.NDArray[np.int64]


def replica_shares(plan: ParallelPlan, global_batch: int) -> tuple[range, ...]:
    """Return which samples of a step each replica takes, as positions in the global batch.

    By the plan's micro-batch counts where it gives them (the last replicas take less when the counts hold more than
    the batch), else as evenly as possible.
    """
    counts = [replica.micro_batch_count for replica in plan.stages[0].replicas]
    sizes = even_split(global_batch, plan.dp)
    if all(count is not None for count in counts):
        sizes = [(count or 0) * plan.micro_batch_size for count in counts]
    ends = [min(end, global_batch) for end in accumulate(sizes)]
    return tuple(range(first, end) for first, end in zip([0, *ends], ends, strict=False))


def micro_batch_count(plan: ParallelPlan, global_batch: int, replica_index: int) -> int:
    """Return how many micro-batches a replica runs per step.

    Gradients that are sharded after every micro-batch (zero 2 and 3) tie replicas together: then all run as many as
    the largest, the rest of it padding.
    """
    own = [-(-len(share) // plan.micro_batch_size) for share in replica_shares(plan, global_batch)]
    count = max(1, max(own) if plan.zero > 1 else own[replica_index])
    if plan.schedule is Schedule.INTERLEAVED:
        # torch's interleaved schedule wants whole rounds of equal length.
        while count % max(1, count // plan.pp):
            count += 1
    return count


def replica_batch(corpus: Corpus, ids: Sequence[int], *, row_count: int) -> ReplicaBatch:
    """Read one replica's samples and pad them to ``row_count`` rows."""
    rows = corpus.samples(ids)
    inputs = np.zeros((row_count, rows.shape[1] - 1), dtype=np.int64)
    targets = np.full_like(inputs, IGNORED_TARGET)
    inputs[: len(ids)] = rows[:, :-1]
    targets[: len(ids)] = rows[:, 1:]
    return ReplicaBatch(inputs=inputs, targets=targets)
