"""What changes take in a simulated cluster. Pure: no I/O, no clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from arena.domain.allocation import GpuGroup
from arena.domain.job import JobSpec


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
class CheckpointRestart:
    """Processes and compilation, then the training state through the storage.

    Args:
        state_bytes: Size of a job's checkpoint.
        bandwidth_bytes_per_s: What one node reads from the storage.
        total_bytes_per_s: What the storage gives to one job, however many nodes it has.
        setup_s: Everything that does not depend on the size.
    """

    state_bytes: Callable[[JobSpec], float]
    bandwidth_bytes_per_s: float
    total_bytes_per_s: float
    setup_s: float

    def restart_s(self, spec: JobSpec, group: GpuGroup, *, is_first: bool) -> float:
        """Return setup plus load; every node reads its part."""
        if is_first:
            return self.setup_s
        rate = min(self.bandwidth_bytes_per_s * group.node_count, self.total_bytes_per_s)
        return self.setup_s + self.state_bytes(spec) / rate


@dataclass(frozen=True, slots=True, kw_only=True)
class SimCosts:
    """What the modelled agents take.

    Args:
        start_s: From launch to processes up.
        restart: From processes up to ready.
        save_s: A checkpoint.
        exit_s: From the last word of a worker until its processes are gone.
        round_s: Jobs end on multiples of this, as in simulators that go in rounds; 0 for any instant.
    """

    start_s: float = 1.0
    restart: RestartCost = ConstantRestart(first_s=2.0, again_s=2.0)
    save_s: float = 1.0
    exit_s: float = 0.1
    round_s: float = 0.0
