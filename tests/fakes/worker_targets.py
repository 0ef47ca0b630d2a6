"""What forked ranks run in tests: the worker itself, with its data and its state made visible."""

from __future__ import annotations

import json
import pickle
import resource
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from arena.domain.job import TrainSpec
from arena_agent.checkpoints.boxes import box_slices
from arena_agent.worker.data import Batch, Corpora, Corpus, open_corpora
from arena_agent.worker.main import RankEnvironment, build_trainer, run_rank
from arena_agent.worker.train import StopRequest, Trainer
from tests.fakes.held_pieces import Array, HeldPiece

SMALL_DISK_BYTES = 64 * 1024


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
    """Run a rank, noting its samples, and the state it holds after loading and at the end."""
    stop = StopRequest()
    stop.install()
    trainer = build_trainer(RankEnvironment.read(environ), stop, recording(environ))
    trainer.prepare(rendezvous_s=0.0)
    write_state(trainer, environ, "start")
    trainer.run()
    write_state(trainer, environ, "end")
    dist.destroy_process_group()
    return 0


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


def write_state(trainer: Trainer, environ: Mapping[str, str], moment: str) -> None:
    """Write down what this rank holds of the training state; whoever compares puts the ranks' pieces together."""
    pieces = [
        HeldPiece(piece.name, piece.shape, box_slices(piece.box), _array(piece.tensor), piece.is_written)
        for piece in trainer.state()
    ]
    path = Path(environ["ARENA_REPORT"]).parent / f"state-{moment}-{environ['RANK']}.pickle"
    path.write_bytes(pickle.dumps(pieces))


def _array(tensor: Tensor) -> Array:
    array: Array = tensor.detach().to(torch.float32).numpy()
    return array
