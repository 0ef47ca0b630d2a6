"""How a global batch is cut into the micro-batches of one replica. Pure: no I/O, no clock.

Replicas take unequal sample counts where dp does not divide the batch. Pipelines and sharded gradients need the same
number of equally shaped micro-batches everywhere, so what is missing is filled with padding samples whose targets are
ignored: they add exactly zero to loss and gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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


def micro_batch_count(plan: ParallelPlan, global_batch: int) -> int:
    """Return how many micro-batches every replica runs per step, padding included."""
    samples_max = -(-global_batch // plan.dp)
    count = -(-samples_max // plan.micro_batch_size)
    if plan.schedule is Schedule.INTERLEAVED:
        # torch's interleaved schedule wants whole rounds of equal length.
        while count % max(1, count // plan.pp):
            count += 1
    return count


def replica_ids(ids: Sequence[int], *, dp: int, replica_index: int) -> Sequence[int]:
    """Return the samples of one replica: a contiguous share of the step's ids, sizes differing by at most one."""
    counts = even_split(len(ids), dp)
    first = sum(counts[:replica_index])
    return ids[first : first + counts[replica_index]]


def replica_batch(corpus: Corpus, ids: Sequence[int], *, row_count: int) -> ReplicaBatch:
    """Read one replica's samples and pad them to ``row_count`` rows."""
    rows = corpus.samples(ids)
    inputs = np.zeros((row_count, rows.shape[1] - 1), dtype=np.int64)
    targets = np.full_like(inputs, IGNORED_TARGET)
    inputs[: len(ids)] = rows[:, :-1]
    targets[: len(ids)] = rows[:, 1:]
    return ReplicaBatch(inputs=inputs, targets=targets)
