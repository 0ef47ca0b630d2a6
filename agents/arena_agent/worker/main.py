"""One rank of an attempt, from its environment to its exit code.

Importing this module loads torch but runs no tensor operation and starts no thread, so that a warm launcher may
import it once and fork every rank.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
import torch._dynamo  # torch's optimizers load it when first built; so a warm launcher has it before it forks
import torch.distributed as dist

from arena.domain.capability import unsupported
from arena.domain.job import ModelSpec, TrainSpec
from arena.domain.launch import LAUNCH_JSON, LAUNCH_VARIABLE, REPORT_JSON, REPORT_VARIABLE, Launch, WorkerError
from arena.domain.parallel import ParallelPlan
from arena.errors import SpecError, UnavailableError, UserError
from arena_agent.checkpoints.fence import Fence
from arena_agent.checkpoints.manifest import CheckpointError
from arena_agent.worker.checkpoint import CheckpointStore
from arena_agent.worker.data import Corpora, DataError, open_corpora
from arena_agent.worker.layout import build_layout
from arena_agent.worker.rendezvous import PortTakenError, meet
from arena_agent.worker.report import Reporter
from arena_agent.worker.train import StopRequest, Trainer

# What every rank reads and writes is built before a warm launcher forks, not again in each rank.
LAUNCH_JSON.rebuild()
REPORT_JSON.rebuild()
ModelSpec.model_rebuild()

ErrorCode = Literal["config", "oom", "checkpoint", "data", "port", "crash"]

_CUDA_ENVIRONMENT = {
    # Streams beyond the number of hardware queues (8 by default) share one; work queued behind a receive that was
    # posted ahead would wait for it.
    "CUDA_DEVICE_MAX_CONNECTIONS": "32",
    # NCCL else connects ranks for an algorithm when it is first chosen, and the host waits there within a step.
    "NCCL_RUNTIME_CONNECT": "0",
}
"""Read when CUDA and NCCL start; what the user has set stays."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankEnvironment:
    """The torchrun environment of one rank, with Arena's two paths."""

    rank: int
    local_rank: int
    world_size: int
    master_addr: str
    master_port: int
    launch_path: Path
    report_path: str

    @classmethod
    def read(cls, environ: Mapping[str, str]) -> RankEnvironment:
        """Read the variables; a missing one is a fault of the launcher."""
        try:
            return cls(
                rank=int(environ["RANK"]),
                local_rank=int(environ["LOCAL_RANK"]),
                world_size=int(environ["WORLD_SIZE"]),
                master_addr=environ["MASTER_ADDR"],
                master_port=int(environ["MASTER_PORT"]),
                launch_path=Path(environ[LAUNCH_VARIABLE]),
                report_path=environ[REPORT_VARIABLE],
            )
        except KeyError as error:
            raise SpecError(f"the worker's environment lacks {error.args[0]}") from None


def run_rank(environ: Mapping[str, str], *, corpora_of: Callable[[TrainSpec], Corpora] = open_corpora) -> int:
    """Run one rank to its end.

    Args:
        environ: RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT, ARENA_LAUNCH, ARENA_REPORT.
        corpora_of: Opens the data.

    Returns:
        The exit code: 0 when the job finished or stopped as asked, 1 after an error that was reported.
    """
    stop = StopRequest()
    stop.install()
    try:
        where = RankEnvironment.read(environ)
    except UserError as error:
        print(error.message, file=sys.stderr)
        return 1
    try:
        began_s = time.monotonic()
        trainer = build_trainer(where, stop, corpora_of)
        trainer.prepare(rendezvous_s=time.monotonic() - began_s)
        trainer.run()
    except Exception as error:  # noqa: BLE001 - the outermost frame of the rank
        # The group is left to the end of the process: taking it down could wait for ranks that are stuck.
        _report_failure(where, error)
        return 1
    dist.destroy_process_group()
    return 0


def build_trainer(
    where: RankEnvironment, stop: StopRequest, corpora_of: Callable[[TrainSpec], Corpora] = open_corpora
) -> Trainer:
    """Read the launch, meet the other ranks and lay the model out; nothing is loaded yet."""
    launch = LAUNCH_JSON.validate_json(where.launch_path.read_bytes())
    train, plan = _checked(launch, where)
    corpora = _opened(corpora_of, train)
    device = _device(launch, where)
    ranks = meet(
        rank=where.rank,
        world_size=where.world_size,
        address=where.master_addr,
        port=where.master_port,
        device=device,
    )
    root = Path(launch.checkpoint_dir)
    fence = Fence(root=root, epoch=launch.epoch)
    return Trainer(
        launch=launch,
        train=train,
        layout=build_layout(train, plan, rank=where.rank, device=device),
        corpora=corpora,
        ranks=ranks,
        store=CheckpointStore(
            root=root,
            fence=fence,
            keep=launch.spec.checkpoint.keep,
            quota_bytes=launch.spec.checkpoint.quota_bytes,
            ranks=ranks,
        ),
        reporter=Reporter(path=where.report_path) if where.rank == 0 else None,
        stop=stop,
    )


def _checked(launch: Launch, where: RankEnvironment) -> tuple[TrainSpec, ParallelPlan]:
    train, plan = launch.spec.train, launch.plan
    if train is None or plan is None:
        raise SpecError("the launch holds no model to train and no plan")
    if reason := unsupported(train, plan):
        raise SpecError(f"the worker cannot run plan {plan}", why=reason)
    if plan.gpu_count != where.world_size:
        raise SpecError(
            "plan and world size differ", why=f"plan {plan} has {plan.gpu_count} ranks, WORLD_SIZE {where.world_size}"
        )
    return train, plan


def _opened(corpora_of: Callable[[TrainSpec], Corpora], train: TrainSpec) -> Corpora:
    try:
        return corpora_of(train)
    except OSError as error:
        raise DataError("the data cannot be read", why=str(error)) from error


def _device(launch: Launch, where: RankEnvironment) -> torch.device:
    if launch.gpu_type != "cpu":
        for name, value in _CUDA_ENVIRONMENT.items():
            os.environ.setdefault(name, value)
    if launch.gpu_type != "cpu" and torch.cuda.is_available():
        device = torch.device("cuda", where.local_rank)
        torch.cuda.set_device(device)
        return device
    if launch.gpu_type != "cpu" and os.environ.get("CUDA_VISIBLE_DEVICES"):
        # Where GPUs are virtual the variable is empty. Training on the CPU unasked would look like a slow GPU.
        raise UnavailableError(
            f"torch sees no GPU where the agent gave {len(launch.device_ids)} of type {launch.gpu_type}",
            why=f"torch {torch.__version__}, CUDA_VISIBLE_DEVICES={os.environ['CUDA_VISIBLE_DEVICES']}",
            fix="install a torch build for this node's driver",
        )
    # Ranks share the host's cores; one thread each keeps them out of each other's way, and sums in one order.
    torch.set_num_threads(1)
    return torch.device("cpu")


def _report_failure(where: RankEnvironment, error: Exception) -> None:
    traceback.print_exception(error)
    message = str(error) or type(error).__name__
    report = WorkerError(code=error_code(error), rank=where.rank, message=message[:2000])
    Reporter(path=where.report_path).send(report, is_synced=True)


def error_code(error: Exception) -> ErrorCode:
    """Return the code under which a rank reports an error."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError) or "can't allocate memory" in str(error):
        return "oom"
    if isinstance(error, PortTakenError):
        return "port"
    if isinstance(error, CheckpointError):
        return "checkpoint"
    if isinstance(error, DataError):
        return "data"
    if isinstance(error, UserError):
        return "config"
    return "crash"
