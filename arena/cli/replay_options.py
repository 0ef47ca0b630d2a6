"""Options of ``arena replay`` that its results depend on. Pure: no I/O, no clock."""

from __future__ import annotations

import math
from dataclasses import dataclass

from arena.domain.allocation import GpuGroup
from arena.domain.job import JobSpec
from arena.errors import UserError
from arena.sim.costs import (
    CheckpointRestart,
    ConstantRestart,
    PerGpuRestart,
    RestartCost,
    SimCosts,
    Storage,
    checkpoint_bytes,
)

_GIGA = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnStartOfPrograms:
    """Programs, which keep no checkpoints and load nothing of ours, start in a time of their own."""

    start_s: float
    others: RestartCost

    def restart_s(self, spec: JobSpec, group: GpuGroup, *, is_first: bool) -> float:
        """Return the seconds from processes being up to the first step."""
        return self.start_s if spec.command is not None else self.others.restart_s(spec, group, is_first=is_first)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions:
    """What is done with a trace and to its jobs; all of it is part of what names a result.

    Args:
        load: Offered load that arrivals are scaled to, None leaves them as they are.
        lengths: ``true``, ``predicted`` or ``none``.
        length_sigma: Of the log-normal error of predicted lengths, whose median is 1.
        restart_s: Seconds of every start; where ``restart_per_gpu_s`` is given, the most of them.
        storage_gb_per_s: What a node moves of a checkpoint when a job saves to stop, and loads to go on; None: no time.
        storage_job_gb_per_s: What one job gets of the storage at most, None: as much as its nodes move.
        save_s: Seconds of a save beside that.
        profile_s: Seconds until the grid of a job that may be laid out is there.
        kind: ``rigid``, ``malleable``, or ``auto``: as the policy was published.
        steps: Share of the steps that the trace states.
        needs_data_parallel: Whether a policy of the study knows data-parallel plans alone.
        keeps_shares: Whether a policy of the study gives projects their guaranteed GPUs.
        projects: Shares of the jobs without a project that are dealt to each.
        decide_after_s: How long events are gathered before the policy is asked about all of them.
        program_start_s: Seconds of a start of a program, where they are not those of other jobs.
        ignores_budgets: Whether budgets of specifications bind nobody.
    """

    load: float | None = None
    lengths: str = "true"
    length_sigma: float = 1.0
    restart_s: float = 60.0
    restart_per_gpu_s: float | None = None
    storage_gb_per_s: float | None = None
    storage_job_gb_per_s: float | None = None
    save_s: float = 0.0
    profile_s: float = 0.0
    decide_after_s: float = 0.0
    kind: str = "auto"
    steps: float = 1.0
    until_s: float | None = None
    checks_all: bool = False
    drops_unplaceable: bool = False
    needs_data_parallel: bool = False
    keeps_shares: bool = False
    projects: tuple[tuple[str, float], ...] = ()
    ignores_budgets: bool = False
    program_start_s: float | None = None

    def __post_init__(self) -> None:
        if self.storage_gb_per_s is not None and self.restart_per_gpu_s is not None:
            raise UserError(
                "--restart-per-gpu-s and --storage-gb-per-s are two answers to one question",
                why="a restart costs by its GPUs, or by its checkpoint",
                fix="leave one out",
            )
        if self.storage_job_gb_per_s is not None and self.storage_gb_per_s is None:
            raise UserError("--storage-job-gb-per-s bounds --storage-gb-per-s", fix="give that as well")

    @property
    def storage(self) -> Storage | None:
        """Where checkpoints go."""
        if self.storage_gb_per_s is None:
            return None
        job = math.inf if self.storage_job_gb_per_s is None else self.storage_job_gb_per_s * _GIGA
        return Storage(
            state_bytes=checkpoint_bytes, node_bytes_per_s=self.storage_gb_per_s * _GIGA, job_bytes_per_s=job
        )

    @property
    def costs(self) -> SimCosts:
        """What changes take: all in one, from the launch to the first step."""
        storage = self.storage
        restart: RestartCost = ConstantRestart(first_s=self.restart_s, again_s=self.restart_s)
        if self.restart_per_gpu_s is not None:
            restart = PerGpuRestart(per_gpu_s=self.restart_per_gpu_s, most_s=self.restart_s)
        elif storage is not None:
            restart = CheckpointRestart(storage=storage, setup_s=self.restart_s)
        if self.program_start_s is not None:
            restart = OwnStartOfPrograms(start_s=self.program_start_s, others=restart)
        return SimCosts(
            start_s=0.0,
            restart=restart,
            save_s=self.save_s,
            storage=storage,
            exit_s=0.0,
            profile_s=self.profile_s,
        )

    @property
    def is_rigid(self) -> bool | None:
        """Whether jobs get what they ask for; None leaves it to the policy."""
        return None if self.kind == "auto" else self.kind == "rigid"
