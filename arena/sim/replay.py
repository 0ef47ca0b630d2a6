"""A trace through the production engine, from the first submission to the last end. Pure: no I/O, no clock."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from arena.domain.cluster import ClusterShape, Device, NodeInfo
from arena.domain.events import Event, GridBuilt, JobSubmitted, JobWishChanged, NodeRegistered
from arena.domain.grid import GridSource
from arena.domain.job import JobId, JobSpec
from arena.domain.launch import DeviceId, NodeId
from arena.domain.records import NODE_GOES, AttemptRecord, JobRecord, JobState
from arena.engine.config import EngineConfig
from arena.engine.ports import Step
from arena.errors import ArenaError, InternalError
from arena.policies.base import Policy
from arena.sim.budgets import GIVEN_UP, Budgets
from arena.sim.costs import SimCosts
from arena.sim.disturbances import Disturbance, merged
from arena.sim.kernel import Kernel
from arena.sim.ledger import Ledger, estimated_step_s
from arena.sim.run import HORIZON_S, Simulation
from arena.sim.world import Fate

NEVER_S = math.inf
"""A deadline that modelled agents cannot miss, or a look nobody needs."""

REPLAY_CONFIG = EngineConfig(
    shape_settle_s=0.5,
    launch_deadline_s=NEVER_S,
    ready_deadline_s=NEVER_S,
    stop_margin_s=NEVER_S,
    stall_s_min=NEVER_S,
    sweep_s=NEVER_S,
    is_strict=True,
)
"""Modelled agents answer always, so nothing is looked at only because time has passed."""

LEAD_S = 1.0
"""Nodes register so long before the first job comes, so that the cluster's shape has settled by then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayJob:
    """A job to be replayed.

    Args:
        spec: What the scheduler is told.
        fate: How it really goes.
    """

    job_id: JobId
    submitted_at_s: float
    spec: JobSpec
    fate: Fate
    user: str = "trace"


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """A cluster, a policy and how the modelled agents behave.

    Args:
        shape: The cluster; all its nodes are there from the beginning.
        disturbances: What happens to the nodes.
        check: Examine every state for broken invariants; slower.
    """

    shape: ClusterShape
    policy: Policy
    grids: GridSource
    costs: SimCosts = field(default_factory=SimCosts)
    config: EngineConfig = REPLAY_CONFIG
    disturbances: tuple[Disturbance, ...] = ()
    check: bool = False

    def run(
        self,
        jobs: Sequence[ReplayJob],
        *,
        until_s: float = HORIZON_S,
        watch: Callable[[Step], None] | None = None,
    ) -> Ledger:
        """Submit the jobs at their instants and go on until all have ended.

        Args:
            watch: Also called with every step (progress, pictures); it has nothing happen.

        Raises:
            PolicyFault: A decision cannot be carried out: a device given twice, a gang that is not whole, a job that
                may not be moved; it carries the snapshot.
            InternalError: An invariant broke, or jobs are left that will never end.
        """
        ledger = Ledger(
            step_s=self._step_s(jobs),
            profile_s=self.costs.profile_s,
            profile_gpus=self.costs.profile_gpus,
        )
        budgets = Budgets.of(job.spec for job in jobs)

        def both(step: Step) -> None:
            ledger.watch(step)
            if watch is not None:
                watch(step)
            for job_id in () if budgets is None else budgets.given_up(step, simulation.engine.state):
                simulation.at(step.at_s, JobWishChanged(job_id=job_id, wish="cancel", by=GIVEN_UP))
            for job in step.jobs if self.disturbances else ():
                if _is_held_for_its_node(job):  # its user has it repeated
                    simulation.at(step.at_s, JobWishChanged(job_id=job.job_id, wish="run", by=job.user))

        begins_s = min((self._rounded(job.submitted_at_s) for job in jobs), default=0.0) - LEAD_S
        is_only_watched = budgets is None and not self.disturbances
        simulation = Simulation(
            policy=self.policy,
            grids=self.grids,
            costs=self.costs,
            config=self.config,
            fates={job.job_id: job.fate for job in jobs},
            source=self._source(jobs, begins_s, lambda: simulation.engine.state.shape),
            is_over=lambda: len(ledger.outcomes) == len(jobs),
            check=self.check,
            watch=ledger.watch if is_only_watched and watch is None else both,
            is_only_watched=is_only_watched,
            kernel=Kernel(now_s=begins_s),
        )
        ledger.untold_s = simulation.world.kept_s
        simulation.run(until_s=until_s)
        if until_s >= HORIZON_S and len(ledger.outcomes) < len(jobs):
            raise InternalError(f"{len(jobs) - len(ledger.outcomes)} of {len(jobs)} jobs never ended")
        return ledger

    def _step_s(self, jobs: Sequence[ReplayJob]) -> Callable[[AttemptRecord], float]:
        pace = self.costs.pace
        if pace is None:
            return estimated_step_s
        specs = {job.job_id: job.spec for job in jobs}
        return lambda attempt: pace.step_s(specs[attempt.job_id], attempt.group, estimated_s=estimated_step_s(attempt))

    def _source(
        self, jobs: Sequence[ReplayJob], begins_s: float, shape: Callable[[], ClusterShape]
    ) -> Iterator[tuple[float, Event]]:
        """Yield all that comes from outside, in order of time; nodes first.

        Args:
            shape: What the scheduler knows of the cluster at present.
        """
        nodes = list(nodes_of(self.shape))
        yield from ((begins_s, NodeRegistered(info=info)) for info in nodes)
        if not self.disturbances:
            yield from self._arrivals(jobs, shape)
            return
        disturbed = merged(self.disturbances, nodes, begins_s)
        yield from heapq.merge(self._arrivals(jobs, shape), disturbed, key=lambda timed: timed[0])

    def _arrivals(self, jobs: Sequence[ReplayJob], shape: Callable[[], ClusterShape]) -> Iterator[tuple[float, Event]]:
        for job in sorted(jobs, key=lambda job: job.submitted_at_s):
            event = JobSubmitted(
                job_id=job.job_id,
                spec=job.spec,
                user=job.user,
                request_id=job.job_id,
                planned=self._planned(job, shape()),
            )
            yield self._rounded(job.submitted_at_s), event

    def _planned(self, job: ReplayJob, shape: ClusterShape) -> GridBuilt | None:
        """Return the grid that a job comes with; None where it takes a profile, or might be another one by then."""
        is_profiled = bool(self.costs.profile_s) and job.spec.command is None
        if is_profiled or self.disturbances or not shape.pools:
            return None
        try:
            return GridBuilt(job_id=job.job_id, shape=shape, grid=self.grids.grid(job.spec, shape))
        except ArenaError:  # it is asked for, and fails, once more
            return None

    def _rounded(self, at_s: float) -> float:
        round_s = self.costs.round_s
        return math.ceil(at_s / round_s) * round_s if round_s else at_s


def nodes_of(shape: ClusterShape) -> Iterable[NodeInfo]:
    """Yield the nodes of a cluster of this shape."""
    for pool in shape.pools:
        for index in range(pool.node_count):
            name = f"{pool.gpu_type}-{pool.zone}-{pool.gpus_per_node}x{index:05}"
            yield NodeInfo(
                node_id=NodeId(name),
                incarnation="1",
                gpu_type=pool.gpu_type,
                devices=tuple(
                    Device(device_id=DeviceId(f"{name}/{device}"), index=device) for device in range(pool.gpus_per_node)
                ),
                address=name,
                port_low=20000,
                port_high=29999,
                zone=pool.zone,
            )


def _is_held_for_its_node(job: JobRecord) -> bool:
    """Tell whether a program is held because its node went; another hold is a fault of ours, and repeats for ever."""
    return job.state is JobState.HELD and any(one.code in NODE_GOES for one in job.reasons)
