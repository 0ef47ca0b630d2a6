"""A rank that measures the bytes of its live tensors while it trains."""

from __future__ import annotations

import json
import weakref
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from arena_agent.worker.main import RankEnvironment, build_trainer
from arena_agent.worker.train import StopRequest, Trainer


@dataclass(kw_only=True)
class Ledger:
    """Bytes of the storages that are alive, and the most there were."""

    live_bytes: int = 0
    peak_bytes: int = 0
    _sizes: dict[int, int] = field(default_factory=dict)

    def note(self, tensor: Tensor) -> None:
        """Count a tensor's storage, once, at its size now; a later call sees that it was resized."""
        storage = tensor.untyped_storage()
        key = id(storage)
        if key not in self._sizes:
            self._sizes[key] = 0
            weakref.finalize(storage, self._gone, key)
        self.live_bytes += storage.nbytes() - self._sizes[key]
        self._sizes[key] = storage.nbytes()
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)

    def _gone(self, key: int) -> None:
        self.live_bytes -= self._sizes.pop(key)


class Watch(TorchDispatchMode):
    """Notes what every operation makes, and the memory that comes and goes under ZeRO-3."""

    def __init__(self, ledger: Ledger, resized: Iterable[Tensor]) -> None:
        super().__init__()
        self.ledger, self.resized = ledger, tuple(resized)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in (*self.resized, *(leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor))):
            self.ledger.note(tensor)
        return result


def run_measured(environ: Mapping[str, str]) -> int:
    """Train two steps and write down this rank's state and the peak of the second, in bytes."""
    trainer = build_trainer(RankEnvironment.read(environ), StopRequest())
    trainer.prepare(rendezvous_s=0.0)
    trainer.one_step()
    ledger = Ledger()
    for tensor in state_tensors(trainer):
        ledger.note(tensor)
    state_bytes, ledger.peak_bytes = ledger.live_bytes, ledger.live_bytes
    with Watch(ledger, [unit.weights for unit in trainer.layout.bank.units if unit.zero == 3]):
        trainer.one_step()
    path = Path(environ["ARENA_REPORT"]).parent / f"memory-{environ['RANK']}.json"
    path.write_text(json.dumps({"state": state_bytes, "peak": ledger.peak_bytes}))
    dist.barrier()
    dist.destroy_process_group()
    return 0


def state_tensors(trainer: Trainer) -> Iterator[Tensor]:
    """Yield what a rank holds between steps."""
    for unit in trainer.layout.bank.units:
        yield unit.weights
        if unit.gradients is not None:
            yield unit.gradients
        for bucket in unit.buckets:
            yield from (tensor for tensor in (bucket.master, bucket.gradient) if tensor is not None)
    for state in trainer.optimizer.state.values():
        yield from (value for key, value in state.items() if key != "step")
