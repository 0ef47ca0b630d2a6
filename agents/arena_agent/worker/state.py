"""A rank's share of the training state as checkpoints see it: blocks of logical tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version

import torch
from torch import Tensor

from arena.domain.job import TrainSpec
from arena.domain.parameters import parameters_of
from arena_agent.checkpoints.boxes import Box, boxes_of_range, whole_box
from arena_agent.checkpoints.manifest import Manifest, TensorEntry, expected_tensors
from arena_agent.worker.checkpoint import StatePiece
from arena_agent.worker.data import Corpus
from arena_agent.worker.optimizer import moments
from arena_agent.worker.units import Run

_ROUTER_LOAD = "router.load"


def state_pieces(
    runs: Sequence[Run], optimizer: torch.optim.Optimizer, router_load: Tensor | None, *, is_first_rank: bool
) -> list[StatePiece]:
    """Return this rank's blocks; their tensors share storage with the live ones.

    Args:
        runs: What the rank owns.
        optimizer: Its optimizer.
        router_load: Share of tokens of each expert in the last step, ``[layers, experts]``; the same on every rank.
        is_first_rank: Whether this rank writes what all have.
    """
    pieces = [piece for run in runs for piece in _pieces(run, optimizer)]
    if router_load is not None:
        shape = tuple(router_load.shape)
        pieces.append(
            StatePiece(
                name=_ROUTER_LOAD, shape=shape, box=whole_box(shape), tensor=router_load, is_written=is_first_rank
            )
        )
    return pieces


def _pieces(run: Run, optimizer: torch.optim.Optimizer) -> Iterator[StatePiece]:
    parameter = run.share.parameter
    boxes = boxes_of_range(parameter.shape, run.start, run.stop)
    yield from _blocks(f"model.{parameter.name}", run, boxes, run.value)
    for key, value in moments(optimizer, run):
        yield from _blocks(f"optim.{parameter.name}.{key}", run, boxes, value)


def _blocks(name: str, run: Run, boxes: Sequence[Box], values: Tensor) -> Iterator[StatePiece]:
    offset = 0
    for box in boxes:
        part = values.detach()[offset : offset + box.element_count].view(box.sizes)
        yield StatePiece(name=name, shape=run.share.parameter.shape, box=box, tensor=part, is_written=run.is_written)
        offset += box.element_count


def manifest_of(train: TrainSpec, corpus: Corpus, *, step: int, epoch: int, plan: str) -> Manifest:
    """Return what a checkpoint of a step has to be, without its pieces and files."""
    tensors = dict(expected_tensors(parameters_of(train.model), _moment_names(train)))
    if train.model.expert_count:
        tensors[_ROUTER_LOAD] = TensorEntry(dtype="float32", shape=(train.model.layers, train.model.expert_count))
    return Manifest(
        step=step,
        epoch=epoch,
        plan=plan,
        versions={"torch": torch.__version__, "arena-sched": _own_version()},
        fingerprint=fingerprint(train, corpus),
        samples_consumed=step * train.global_batch,
        tensors=tensors,
        files={},
    )


def _moment_names(train: TrainSpec) -> tuple[str, ...]:
    if train.optimizer.name == "adamw":
        return ("exp_avg", "exp_avg_sq")
    return ("momentum_buffer",) if train.optimizer.momentum else ()


def _own_version() -> str:
    try:
        return version("arena-sched")
    except PackageNotFoundError:
        return "unknown"


def fingerprint(train: TrainSpec, corpus: Corpus) -> Mapping[str, str]:
    """Return what must be equal for training to go on from a checkpoint as if nothing had happened."""
    shape = train.model.model_dump(mode="json")
    # What is left out of a spec means its default, so that spelling a default out makes no other job.
    shape |= {"kv_heads": train.model.kv_head_count, "ffn_hidden": train.model.ffn_width}
    return {
        **{f"model.{name}": str(value) for name, value in shape.items()},
        "data": corpus.fingerprint,
        "sample_count": str(corpus.sample_count),
        "global_batch": str(train.global_batch),
        "seed": str(train.seed),
        "optimizer": train.optimizer.name + (" with momentum" if train.optimizer.momentum else ""),
    }
