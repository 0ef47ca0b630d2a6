"""Reads back which samples the ranks of a recorded attempt trained on (``worker_targets.run_recorded``)."""

from __future__ import annotations

import json

from arena.domain.micro_batches import micro_batches
from arena.domain.parallel import ParallelPlan
from tests.fakes.rank_launcher import Attempt


def samples_by_step(attempt: Attempt, plan: ParallelPlan, global_batch: int) -> list[list[int]]:
    """Return the samples of each step, by their place in the global batch, as the first stage's replicas read them.

    Stand-ins, which count nowhere, are left out.
    """
    batches = micro_batches(plan, global_batch)
    steps: list[dict[int, int]] = []
    rank = 0
    for replica, shape in enumerate(plan.stages[0].replicas):
        own = [batch for batch in batches if batch.replicas[0] == replica]
        lines = (attempt.directory / f"samples-{rank}.jsonl").read_text().splitlines()
        rank += shape.tp
        assert len(lines) % len(own) == 0, f"{len(lines)} reads of {len(own)} micro-batches a step"
        steps += [{} for _ in range(len(lines) // len(own) - len(steps))]
        for index, line in enumerate(lines):
            rows = own[index % len(own)].rows
            for row, sample in zip(rows, json.loads(line), strict=len(rows) > 0):
                assert row not in steps[index // len(own)], f"row {row} is read twice"
                steps[index // len(own)][row] = sample
    return [[step[row] for row in range(global_batch)] for step in steps]
