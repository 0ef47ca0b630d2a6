"""What a step computes on: each micro-batch's samples, stand-ins that count nowhere, a key for each place."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from arena.domain.micro_batches import MicroBatch, micro_batches, replica_shares
from arena.domain.parallel import ParallelPlan, Replica, Stage, parse_plan
from arena_agent.worker.data import IGNORED_TARGET, TokenCorpus
from arena_agent.worker.feed import Feed


def feed(batches: tuple[MicroBatch, ...], ids: tuple[int, ...], first_position: int = 0) -> Feed:
    return Feed(
        corpus=TokenCorpus(tokens=np.arange(1, 14, dtype=np.uint8), seq_len=3, vocab_size=256),
        ids=ids,
        first_position=first_position,
        batches=batches,
        seed=1,
        is_training=True,
        device=torch.device("cpu"),
    )


def test_a_micro_batch_has_the_samples_of_its_rows() -> None:
    batches = micro_batches(parse_plan("dp2 mb2", layer_count=1), 4)
    ours = feed(batches, (2, 0, 3, 1))
    assert [batch.rows for batch in batches] == [range(2), range(2, 4)]
    assert ours.inputs(0).tolist() == [[7, 8, 9], [1, 2, 3]]
    assert ours.targets(0).tolist() == [[8, 9, 10], [2, 3, 4]]
    assert ours.inputs(1).tolist() == [[10, 11, 12], [4, 5, 6]]


def test_a_stand_in_has_a_sample_to_compute_and_no_target_that_counts() -> None:
    """Three replicas that run in step and a batch of four: two have nothing left in the second turn."""
    batches = micro_batches(parse_plan("dp3 mb1 zero2", layer_count=1), 4)
    ours = feed(batches, (2, 0, 3, 1))
    idle = [index for index, batch in enumerate(batches) if not batch.rows]
    assert len(idle) == 2
    for index in idle:
        assert ours.inputs(index).shape == (1, 3)
        assert ours.targets(index).tolist() == [[IGNORED_TARGET] * 3]
        assert not ours.rows(index).is_counted
    assert ours.rows(0).is_counted


def test_keys_belong_to_places_in_the_sample_stream_not_to_micro_batches() -> None:
    one = feed(micro_batches(parse_plan("mb4", layer_count=1), 4), (0, 1, 2, 3), first_position=8)
    many = feed(micro_batches(parse_plan("dp2 mb1", layer_count=1), 4), (3, 2, 1, 0), first_position=8)
    cut = {row: many.rows(index).keys for index, batch in enumerate(many.batches) for row in batch.rows}
    assert torch.equal(torch.cat([cut[row] for row in range(4)]), one.rows(0).keys)
    assert len(set(one.rows(0).keys.tolist())) == 4


@pytest.mark.parametrize(
    ("counts", "shares"),
    [
        ((1, 3), (range(2), range(2, 8))),
        ((3, 2), (range(6), range(6, 8))),
        ((4, 1), (range(8), range(8, 8))),
    ],
)
def test_counts_that_hold_more_than_the_batch_leave_the_last_less(
    counts: tuple[int, int], shares: tuple[range, range]
) -> None:
    replicas = tuple(Replica(micro_batch_count=count) for count in counts)
    plan = ParallelPlan(stages=(Stage(layer_count=1, replicas=replicas),), micro_batch_size=2)
    assert replica_shares(plan.stages[0], plan.micro_batch_size, 8) == shares
