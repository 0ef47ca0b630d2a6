"""What changes take in a simulated cluster. Pure: no I/O, no clock."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from arena.domain.allocation import GpuGroup
from arena.domain.job import JobSpec
from arena.errors import UserError
from arena.planner.holdings import state_bytes
from arena.planner.model import model_cost

_ADAM_BYTES = 12.0
"""Of a parameter in fp32 with both moments."""

_SIZE = re.compile(r"__([0-9]+(?:[.][0-9]+)?)([KMBT])$")
_UNITS = {"K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}


class RestartCost(Protocol):
    """How long an attempt needs from its processes being up to its first step."""

    def restart_s(self, spec: JobSpec, group: GpuGroup, *, is_first: bool) -> float:
        """Return the seconds; ``is_first`` when there is no state to be loaded."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstantRestart:
    """The same for every job: ``first_s`` for a fresh start, ``again_s`` when it goes on from a checkpoint."""

    first_s: float
    again_s: float

    def restart_s(self, spec: JobSpec, group: GpuGroup, *, is_first: bool) -> float:
        """Return the constant."""
        return self.first_s if is_first else self.again_s


@dataclass(frozen=True, slots=True, kw_only=True)
class PerGpuRestart:
    """So much for each GPU, at most ``most_s``; a fresh start costs as much where ``counts_first``."""

    per_gpu_s: float
    most_s: float
    counts_first: bool = True

    def restart_s(self, spec: JobSpec, group: GpuGroup, *, is_first: bool) -> float:
        """Return the cost of a group of this size."""
        return 0.0 if is_first and not self.counts_first else min(self.per_gpu_s * group.gpu_count, self.most_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """Where checkpoints go; every node of a job moves its part at the same time.

    Args:
        state_bytes: Size of a job's checkpoint.
        node_bytes_per_s: What one node moves.
        job_bytes_per_s: What one job gets, however many nodes it has.
    """

    state_bytes: Callable[[JobSpec], float]
    node_bytes_per_s: float
    job_bytes_per_s: float = math.inf

    def transfer_s(self, spec: JobSpec, group: GpuGroup) -> float:
        """Return how long a job's checkpoint takes from or to the nodes of a group."""
        return self.state_bytes(spec) / min(self.node_bytes_per_s * group.node_count, self.job_bytes_per_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRestart:
    """Processes and compilation, then the checkpoint from the storage, if there is one.

    Args:
        setup_s: Everything that does not depend on the size.
    """

    storage: Storage
    setup_s: float

    def restart_s(self, spec: JobSpec, group: GpuGroup, *, is_first: bool) -> float:
        """Return setup plus load."""
        return self.setup_s if is_first else self.setup_s + self.storage.transfer_s(spec, group)


class Pace(Protocol):
    """How fast attempts really are, where that is not what was estimated."""

    def step_s(self, spec: JobSpec, group: GpuGroup, *, estimated_s: float) -> float:
        """Return the seconds of a step."""
        ...


class Memory(Protocol):
    """Which groups really cannot hold a job that was estimated to fit."""

    def runs_out(self, spec: JobSpec, group: GpuGroup) -> bool:
        """Tell whether an attempt dies for want of memory at its first step."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SimCosts:
    """What the modelled agents take.

    Args:
        start_s: From launch to processes up.
        restart: From processes up to ready.
        save_s: A checkpoint that a stop waits for, without its way to the storage.
        storage: Where it goes; None: it costs nothing to get there.
        exit_s: From the last word of a worker until its processes are gone.
        round_s: Jobs end on multiples of this, as in simulators that go in rounds; 0 for any instant.
        profile_s: From the submission of a job that may be laid out until its grid is there: it has to be measured.
        profile_gpus: GPUs that do so; they are set apart from the cluster, and what they do is charged to the job.
        pace: How long steps take; None: as long as estimated.
        memory: Which groups run out of memory; None: those that were estimated to fit do.
    """

    start_s: float = 1.0
    restart: RestartCost = ConstantRestart(first_s=2.0, again_s=2.0)
    save_s: float = 1.0
    storage: Storage | None = None
    exit_s: float = 0.1
    round_s: float = 0.0
    profile_s: float = 0.0
    profile_gpus: int = 1
    pace: Pace | None = None
    memory: Memory | None = None

    def step_s(self, spec: JobSpec, group: GpuGroup, *, estimated_s: float) -> float:
        """Return the seconds of a step of an attempt."""
        return estimated_s if self.pace is None else self.pace.step_s(spec, group, estimated_s=estimated_s)

    def runs_out(self, spec: JobSpec, group: GpuGroup) -> bool:
        """Tell whether an attempt runs out of memory at its first step."""
        return self.memory is not None and self.memory.runs_out(spec, group)

    def saving_s(self, spec: JobSpec, group: GpuGroup) -> float:
        """Return how long a job that is asked to stop saves."""
        return self.save_s + (self.storage.transfer_s(spec, group) if self.storage is not None else 0.0)


def checkpoint_bytes(spec: JobSpec) -> float:
    """Return the size of a job's checkpoint: its weights and what its optimizer keeps, each of them once.

    Of a workload known by its name the size in it counts (``bert__1.3B``), trained by Adam in fp32. Nothing is known of
    the state of commands, so it counts as none.

    Raises:
        UserError: A workload's name does not say its size.
    """
    if spec.train is not None:
        each = state_bytes(spec.train)
        return model_cost(spec.train.model).parameter_count * (each.sharded_weights + each.moments)
    if spec.workload is None:
        return 0.0
    size = _SIZE.search(spec.workload.name)
    if size is None:
        raise UserError(
            f"the checkpoint of a {spec.workload.name} has no known size",
            why="only a workload that is named by its size has one, as bert__1.3B",
            fix="give the time of a restart without the bandwidth of the storage",
        )
    return _ADAM_BYTES * float(size[1]) * _UNITS[size[2]]
