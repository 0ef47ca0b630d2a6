"""What a step computes on: the samples of each micro-batch, read when their turn comes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from arena.domain.micro_batches import MicroBatch
from arena_agent.worker.data import IGNORED_TARGET, Batch, Corpus
from arena_agent.worker.dropout import row_keys
from arena_agent.worker.models.environment import Rows, StepRecord


@dataclass(slots=True, kw_only=True)
class Feed:
    """The samples of a step.

    Args:
        corpus: The data.
        ids: Sample of each row of the global batch.
        first_position: Place of row 0 in the endless sample stream.
        batches: How the rows are cut.
        seed: The job's seed.
        is_training: Whether dropout applies.
        device: Where tensors go.
        record: Where layers note what the step needs to know.
    """

    corpus: Corpus
    ids: Sequence[int]
    first_position: int
    batches: Sequence[MicroBatch]
    seed: int
    is_training: bool
    device: torch.device
    record: StepRecord = field(default_factory=StepRecord)
    _read: dict[int, Batch] = field(default_factory=dict)

    def inputs(self, micro_batch: int) -> Tensor:
        """Return the inputs of a micro-batch's rows."""
        return torch.from_numpy(self._batch(micro_batch).inputs).to(self.device)

    def targets(self, micro_batch: int) -> Tensor:
        """Return the targets of a micro-batch's rows; a stand-in has none that count."""
        targets = torch.from_numpy(self._batch(micro_batch).targets).to(self.device)
        self._read.pop(micro_batch, None)
        return targets if self.batches[micro_batch].rows else torch.full_like(targets, IGNORED_TARGET)

    def rows(self, micro_batch: int) -> Rows:
        """Return what layers need to know of a micro-batch."""
        positions = torch.tensor([self.first_position + row for row in self._rows(micro_batch)], device=self.device)
        return Rows(
            keys=row_keys(self.seed, positions),
            micro_batch=micro_batch,
            is_training=self.is_training,
            is_counted=len(self.batches[micro_batch].rows) > 0,
            record=self.record,
        )

    def _rows(self, micro_batch: int) -> Sequence[int]:
        return self.batches[micro_batch].rows or (0,)

    def _batch(self, micro_batch: int) -> Batch:
        if micro_batch not in self._read:
            self._read.clear()
            rows = self._rows(micro_batch)
            ids = [self.ids[row] for row in rows]
            self._read[micro_batch] = self.corpus.batch(ids, [self.first_position + row for row in rows])
        return self._read[micro_batch]
