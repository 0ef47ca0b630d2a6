"""How a global batch is cut into micro-batches, and which replica of each stage takes each. Pure: no I/O, no clock.

A micro-batch is a global thing: the same samples on every stage, also where stages have unequal replicas. Where dp
does not divide the batch, or where the plan says so, replicas take unequal shares; each sample counts once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from arena.domain.parallel import ParallelPlan, Stage, even_split


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """One micro-batch of a step.

    Args:
        rows: Its samples, as positions in the global batch; empty when it only keeps replicas in step, and then
            computed on one stand-in sample that counts nowhere.
        replicas: The replica that takes it, by stage.
    """

    rows: range
    replicas: tuple[int, ...]

    @property
    def row_count(self) -> int:
        """Samples that are computed."""
        return max(1, len(self.rows))


def runs_in_step(plan: ParallelPlan) -> bool:
    """Return whether a stage's replicas meet within every micro-batch, so that all must run equally many."""
    return plan.zero > 1 or plan.expert_parallel > 1


def micro_batches(plan: ParallelPlan, global_batch: int) -> tuple[MicroBatch, ...]:
    """Cut a step into micro-batches, in the order in which they enter the pipeline.

    The stage with the most replicas leads: its replicas take contiguous shares, by their micro-batch counts where
    the plan gives them and as evenly as possible else, and each share is cut into micro-batches. Micro-batches enter
    by turns of the replicas; other stages deal them out in that order.
    """
    lead = max(range(plan.pp), key=lambda index: (len(plan.stages[index].replicas), -index))
    shares = replica_shares(plan.stages[lead], plan.micro_batch_size, global_batch)
    cuts = [_cut(share, plan.micro_batch_size) for share in shares]
    rounds = max(len(cut) for cut in cuts)
    if runs_in_step(plan):
        while any(rounds * len(cuts) % len(stage.replicas) for stage in plan.stages):
            rounds += 1
        cuts = [[*cut, *[range(0)] * (rounds - len(cut))] for cut in cuts]
    order = [(turn, replica) for turn in range(rounds) for replica in range(len(cuts)) if turn < len(cuts[replica])]
    dealt = [_dealt(plan, index, lead, [replica for _, replica in order]) for index in range(plan.pp)]
    return tuple(
        MicroBatch(rows=cuts[replica][turn], replicas=tuple(stage[index] for stage in dealt))
        for index, (turn, replica) in enumerate(order)
    )


def replica_shares(stage: Stage, micro_batch_size: int, global_batch: int) -> tuple[range, ...]:
    """Return which samples of a step each replica of the leading stage takes, as positions in the global batch."""
    counts = [replica.micro_batch_count for replica in stage.replicas]
    sizes = even_split(global_batch, len(counts))
    if all(count is not None for count in counts):
        # The last replicas take less when the counts hold more than the batch.
        sizes = [(count or 0) * micro_batch_size for count in counts]
    ends = [min(end, global_batch) for end in accumulate(sizes)]
    return tuple(range(first, end) for first, end in zip([0, *ends], ends, strict=False))


def _cut(share: range, size: int) -> list[range]:
    return [share[start : start + size] for start in range(0, len(share), size)]


def _dealt(plan: ParallelPlan, index: int, lead: int, leaders: Sequence[int]) -> list[int]:
    """Return the replica of a stage for each micro-batch: its namesake, or whoever has the least for its weight."""
    stage = plan.stages[index]
    if len(stage.replicas) == len(plan.stages[lead].replicas) and _counts(stage) == _counts(plan.stages[lead]):
        return list(leaders)
    weights = [1 if count is None or runs_in_step(plan) else count for count in _counts(stage)]
    taken = [0] * len(weights)
    dealt: list[int] = []
    for _ in leaders:
        replica = min(range(len(weights)), key=lambda one: ((taken[one] + 1) / weights[one], one))
        taken[replica] += 1
        dealt.append(replica)
    return dealt


def _counts(stage: Stage) -> tuple[int | None, ...]:
    return tuple(replica.micro_batch_count for replica in stage.replicas)
