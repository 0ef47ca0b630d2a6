"""What each rank of the throughput comparison runs: the worker's trainer and the plain loop, in turns."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from itertools import count
from pathlib import Path

import torch
import torch.distributed as dist

from arena_agent.worker.data import TokenCorpus
from arena_agent.worker.main import RankEnvironment, build_trainer
from arena_agent.worker.sample_order import SampleOrder
from arena_agent.worker.train import StopRequest, Trainer
from tests.benchmarks.plain_torch import PlainLoop, plain_loop

WARMUP_STEPS = 2


def run_pair(environ: Mapping[str, str]) -> int:
    """Train with both, in turns, from the same weights; rank 0 writes times and losses where it is told."""
    where = RankEnvironment.read(environ)
    trainer = build_trainer(where, StopRequest())
    trainer.prepare(rendezvous_s=0.0)
    sides = {"arena": arena_steps(trainer), "plain": plain_steps(trainer)}
    losses: dict[str, list[float]] = {name: [step() for _ in range(WARMUP_STEPS)] for name, step in sides.items()}
    wall_s: dict[str, list[float]] = {name: [] for name in sides}
    cpu_s: dict[str, list[float]] = {name: [] for name in sides}
    step_count = int(environ["BENCH_STEPS_PER_TURN"])
    for turn in range(int(environ["BENCH_TURNS"])):
        # Who goes first changes, so that a machine that grows slower or faster favours neither.
        for name in sorted(sides, reverse=turn % 2 == 1):
            wall, cpu = _timed(sides[name], step_count, losses[name])
            wall_s[name].append(wall)
            cpu_s[name].append(cpu)
    if where.rank == 0:
        result = {"losses": losses, "wall_s": wall_s, "cpu_s": cpu_s}
        Path(environ["BENCH_RESULT"]).write_text(json.dumps(result))
    dist.destroy_process_group()
    return 0


def _timed(step: Callable[[], float], step_count: int, losses: list[float]) -> tuple[float, float]:
    """Return wall and CPU seconds a step, the latter the mean over ranks."""
    dist.barrier()
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    losses += [step() for _ in range(step_count)]
    cpu_s = torch.tensor(time.process_time() - began_cpu_s, dtype=torch.float64)
    dist.barrier()
    wall_s = time.perf_counter() - began_s
    dist.all_reduce(cpu_s)
    return wall_s / step_count, float(cpu_s) / dist.get_world_size() / step_count


def arena_steps(trainer: Trainer) -> Callable[[], float]:
    """Return a function that trains one step with the worker."""
    return lambda: trainer.one_step().loss


def plain_steps(trainer: Trainer) -> Callable[[], float]:
    """Return a function that trains one step with the plain loop, on the same samples in the same order."""
    corpus, train, layout = trainer.corpora.training, trainer.train, trainer.layout
    assert isinstance(corpus, TokenCorpus)
    order = SampleOrder(seed=train.seed, sample_count=corpus.sample_count, global_batch=train.global_batch)
    tokens = torch.from_numpy(corpus.tokens.astype("int64"))
    loop: PlainLoop = plain_loop(train, tokens, zero=layout.plan.zero)
    numbers = count()
    rank, world_size = dist.get_rank(), dist.get_world_size()
    size = max(len(batch.rows) for batch in layout.step_plan(train.global_batch).batches)
    # A data loader prepares the order aside; so it is no part of the plain loop's step.
    prepared = [order.ids(step)[rank::world_size] for step in range(1000)]

    def step() -> float:
        ids = prepared[next(numbers)]
        return loop.one_step([list(ids[first : first + size]) for first in range(0, len(ids), size)])

    return step
