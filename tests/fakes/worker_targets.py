"""What forked ranks run in tests: the worker itself, with its data and its state made visible."""

from __future__ import annotations

import hashlib
import json
import os
import resource
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from arena.domain.job import TrainSpec
from arena_agent.checkpoints.boxes import box_slices
from arena_agent.worker.checkpoint import StatePiece
from arena_agent.worker.data import Batch, Corpora, Corpus, open_corpora
from arena_agent.worker.main import RankEnvironment, build_trainer, run_rank
from arena_agent.worker.train import StopRequest, Trainer

SMALL_DISK_BYTES = 64 * 1024
_COMPILER = frozenset({"torch._dynamo", "sympy"})
"""What torch compiles with, and what that calculates with: seconds to load."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingCorpus:
    """Writes down which samples are read, one line a batch."""

    inner: Corpus
    path: Path

    @property
    def sample_count(self) -> int:
        return self.inner.sample_count

    @property
    def fingerprint(self) -> str:
        return self.inner.fingerprint

    def batch(self, ids: Sequence[int], positions: Sequence[int]) -> Batch:
        with self.path.open("a") as file:
            file.write(json.dumps(list(ids)) + "\n")
        return self.inner.batch(ids, positions)


def recording(environ: Mapping[str, str]) -> Callable[[TrainSpec], Corpora]:
    path = Path(environ["ARENA_REPORT"]).parent / f"samples-{environ['RANK']}.jsonl"

    def opened(train: TrainSpec) -> Corpora:
        corpora = open_corpora(train)
        return replace(corpora, training=RecordingCorpus(inner=corpora.training, path=path))

    return opened


def run_recorded(environ: Mapping[str, str]) -> int:
    """Run a rank, noting its samples, and digests of the whole state after loading and at the end.

    No part of torch is used that loads its compiler: each rank would wait for that, or each agent's warm launcher.
    """
    stop = StopRequest()
    stop.install()
    trainer = build_trainer(RankEnvironment.read(environ), stop, recording(environ))
    trainer.prepare(rendezvous_s=0.0)
    write_digests(trainer, environ, "start")
    trainer.run()
    write_digests(trainer, environ, "end")
    dist.destroy_process_group()
    loaded = _COMPILER & sys.modules.keys()
    if loaded:
        print("a rank loaded", *sorted(loaded), flush=True)
    return len(loaded)


def run_with_small_disk(environ: Mapping[str, str]) -> int:
    """Run a rank whose large writes fail from SIGUSR1 on, and succeed again from SIGUSR2 on."""
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    for number, limit in ((signal.SIGUSR1, SMALL_DISK_BYTES), (signal.SIGUSR2, hard)):
        signal.signal(number, lambda *_, limit=limit: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard)))
    return run_rank(environ)


def run_on_full_disk(environ: Mapping[str, str]) -> int:
    """Run a rank whose large writes fail."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (SMALL_DISK_BYTES, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    return run_rank(environ)


def write_digests(trainer: Trainer, environ: Mapping[str, str], moment: str) -> None:
    parts = trainer.ranks.gathered(trainer.state())
    digests = {name: digest(tensor) for name, tensor in joined([piece for part in parts for piece in part]).items()}
    path = Path(environ["ARENA_REPORT"]).parent / f"state-{moment}-{os.environ['RANK']}.json"
    path.write_text(json.dumps(digests))


def joined(pieces: Sequence[StatePiece]) -> dict[str, Tensor]:
    """Return the logical tensors that all ranks' pieces make up; what several ranks hold must be equal."""
    whole: dict[str, Tensor] = {}
    for piece in sorted(pieces, key=lambda piece: not piece.is_written):
        tensor = whole.setdefault(piece.name, torch.full(piece.shape, torch.nan, dtype=piece.tensor.dtype))
        part = tensor[box_slices(piece.box)]
        if piece.is_written:
            part.copy_(piece.tensor)
        assert torch.equal(part, piece.tensor), f"ranks hold different parts of {piece.name}"
    return whole


def digest(tensor: Tensor) -> str:
    """Return the SHA-256 of a tensor's elements in logical order."""
    content = tensor.detach().to(torch.float32).contiguous().numpy().tobytes()
    return hashlib.sha256(content).hexdigest()
