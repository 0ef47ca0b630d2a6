"""What the services show of the engine's durable state: jobs with their reasons, the status at a glance."""

from __future__ import annotations

import heapq
import logging
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from ipaddress import ip_address

from arena.domain.cluster import NodeState
from arena.domain.job import JobId
from arena.domain.launch import NodeId
from arena.domain.reason import Reason
from arena.domain.records import JobRecord, JobState, NodeRecord
from arena.domain.tenants import Guarantees
from arena.engine.node_state import cause_of
from arena.engine.spending import spent_usd
from arena.engine.state import ClusterState, reasons_of
from arena.errors import NotFoundError
from arena.rpc.views import GpuCounts, JobView, StatusView, job_view
from arena_scheduler.access import Caller
from arena_scheduler.doubts import for_good
from arena_scheduler.job_views import as_asked, with_live_time
from arena_scheduler.loop import LONG_S, Driver
from arena_scheduler.reading import Dropped
from arena_scheduler.tenant_view import tenant_shares, warnings_of

_log = logging.getLogger(__name__)

_DRAINING = {NodeState.DRAINING, NodeState.DRAINED}
_BLOCKED = {NodeState.CLEANING, NodeState.DEGRADED, NodeState.QUARANTINED}
SKEW_WARNING_S = 5.0
WARNED_NODES_MAX = 5
WARNED_AHEAD_S = 3_600.0
"""Nodes that are to be empty later than this are no news yet; `arena nodes` lists them."""


class ClusterView:
    """Answers from memory, as of the last durable batch.

    Args:
        driver: Holds the state.
        now_s: The scheduler's clock.
        scheduler_version, policy: Shown in the status.
        explain: Asks the policy about one job.
        warnings: What the store could not read.
        tenants: Guaranteed GPUs by project.
        usd_per_hour: Price of a GPU hour of each type.
    """

    def __init__(
        self,
        *,
        driver: Driver,
        now_s: Callable[[], float],
        scheduler_version: str,
        policy: str,
        explain: Callable[[ClusterState, JobId, float], tuple[Reason, ...]],
        warnings: tuple[str, ...] = (),
        tenants: Guarantees | None = None,
        usd_per_hour: Mapping[str, float] | None = None,
        checkpoint_root: str = "",
    ) -> None:
        self._driver = driver
        self._now_s = now_s
        self._scheduler_version = scheduler_version
        self._policy = policy
        self._explain = explain
        self._warnings = warnings
        self.tenants: Guarantees = tenants or {}
        self.usd_per_hour: Mapping[str, float] = usd_per_hour or {}
        self._checkpoint_root = checkpoint_root
        self._started_at_s = now_s()
        self._gpus: tuple[ClusterState, tuple[GpuCounts, ...]] | None = None

    @property
    def state(self) -> ClusterState:
        """The durable state."""
        return self._driver.durable_state

    @property
    def dropped(self) -> Dropped:
        """What is not kept any more."""
        return self._driver.dropped

    @property
    def now_s(self) -> float:
        """The present instant."""
        return self._now_s()

    async def changed(self) -> None:
        """Return after the next durable batch."""
        await self._driver.changed()

    def job(self, record: JobRecord) -> JobRecord:
        """Return a job in its latest version, with its reasons as of the latest decision."""
        live = self.state.jobs.get(record.job_id)
        if live is None:
            return record
        reasons, evaluated_at_s = reasons_of(self.state, live)
        meant = as_asked(reasons, self._policy, self.state.grids.get(live.job_id))
        return replace(live, reasons=self._for_good(meant, live), evaluated_at_s=evaluated_at_s)

    def _for_good(self, reasons: tuple[Reason, ...], job: JobRecord) -> tuple[Reason, ...]:
        if job.state is not JobState.QUEUED:
            return reasons
        return for_good(reasons, job.spec, self.state.grids.get(job.job_id), self.tenants, self.state.shape)

    def job_view(self, record: JobRecord, caller: Caller, *, with_spec: bool) -> JobView:
        """Return a job as a caller may see it."""
        job = self.job(record)
        attempt = self.state.attempts.get(job.attempt_id) if job.attempt_id else None
        view, now_s = job_view(job, attempt, private=caller.owns(job.user), with_spec=with_spec), self._now_s()
        return replace(with_live_time(view, attempt, now_s), spent_usd=self.spent_usd(job))

    def spent_usd(self, job: JobRecord) -> float:
        """Return what a job has cost by now."""
        attempt = self.state.attempts.get(job.attempt_id) if job.attempt_id else None
        return spent_usd(job, attempt, self.usd_per_hour, self._now_s())

    def explanation(self, job_id: JobId) -> tuple[Reason, ...]:
        """Return what the policy says of a job as things are; safe from any thread, and takes as long as a decision."""
        job = self.state.jobs.get(job_id)
        if job is None:
            return ()
        try:
            return self._for_good(self._explain(self.state, job_id, self._now_s()), job)
        except Exception:  # noqa: BLE001 - the outermost frame of one question, whose answer only adds to the reasons
            _log.exception("the policy did not explain job %s", job_id)
            return ()

    def node(self, node_id: NodeId) -> NodeRecord:
        """Return a node.

        Raises:
            NotFoundError: No such node ever registered.
        """
        node = self.state.nodes.get(node_id)
        if node is None:
            raise NotFoundError(f"there is no node {node_id}", fix="see `arena nodes`", details={"node_id": node_id})
        return node

    def status(self, caller: Caller, job_count_max: int) -> StatusView:
        """Return the cluster at a glance."""
        state = self.state
        active = [job for job in state.jobs.values() if job.attempt_id is not None]
        waiting = [job for job in state.jobs.values() if job.attempt_id is None]
        gpus = self._gpu_counts(state)
        return StatusView(
            scheduler_version=self._scheduler_version,
            policy=self._policy,
            now_s=self._now_s(),
            started_at_s=self._started_at_s,
            read_only_cause=self._driver.read_only_cause,
            gpus=gpus,
            job_count_by_state=self._job_counts(state),
            node_count_by_state=dict(Counter(node.state for node in state.nodes.values())),
            active_jobs=self._first_jobs(active, caller, job_count_max),
            waiting_jobs=self._first_jobs(waiting, caller, job_count_max),
            decision_index=state.decision_index,
            decided_at_s=state.decided_at_s,
            decision_time_s=self._driver.decision_time_s,
            warnings=(
                *self._warnings,
                *_skew_warnings(state),
                *_address_warnings(state),
                *_work_warnings(self._driver.at_work_s, self._policy),
                *_going_warnings(state, self._now_s()),
                *warnings_of(self.tenants, state),
            ),
            tenants=tenant_shares(self.tenants, state, {counts.gpu_type: counts.free for counts in gpus}),
            restart_s=state.restart_s,
            restart_sample_count=state.restart_sample_count,
            checkpoint_root=self._checkpoint_root,
        )

    def _first_jobs(self, jobs: list[JobRecord], caller: Caller, count_max: int) -> tuple[JobView, ...]:
        first = heapq.nsmallest(count_max, jobs, key=_service_key)
        return tuple(self.job_view(job, caller, with_spec=False) for job in first)

    def _job_counts(self, state: ClusterState) -> dict[JobState, int]:
        counts = Counter(job.state for job in state.jobs.values())
        counts.update(self._driver.ended_counts)
        return {job_state: counts[job_state] for job_state in JobState if counts[job_state]}

    def _gpu_counts(self, state: ClusterState) -> tuple[GpuCounts, ...]:
        if self._gpus is None or self._gpus[0] is not state:
            self._gpus = (state, gpu_counts(state))
        return self._gpus[1]


def _service_key(job: JobRecord) -> tuple[bool, tuple[int, float, JobId]]:
    return (job.state is JobState.HELD, job.queue_key)


def gpu_counts(state: ClusterState) -> tuple[GpuCounts, ...]:
    """Return each type's GPUs, every device in exactly one place.

    A held device is used, whatever its node is, except on a draining node. Devices of lost nodes, and idle ones of
    nodes out of reach, are down: outside the total.
    """
    places: dict[str, Counter[str]] = {}
    for node in state.nodes.values():
        counts = places.setdefault(node.info.gpu_type, Counter())
        for device in node.info.devices:
            is_held = device.device_id in state.holders
            counts[place_of(node, is_held=is_held, is_dirty=device.dirty is not None)] += 1
    return tuple(_counts(gpu_type, places[gpu_type]) for gpu_type in sorted(places))


def place_of(node: NodeRecord, *, is_held: bool, is_dirty: bool) -> str:
    """Return what a device is counted as, by the names of ``GpuCounts``."""
    if node.state is NodeState.LOST:
        return "down"
    if is_dirty and not is_held:
        return "dirty"
    if node.state in _DRAINING:
        return "draining"
    if is_held:
        return "used"
    if node.disconnected_at_s is not None:
        return "down"
    return "dirty" if node.state in _BLOCKED else "free"


def _counts(gpu_type: str, counts: Counter[str]) -> GpuCounts:
    free, used, draining, dirty = (counts[place] for place in ("free", "used", "draining", "dirty"))
    return GpuCounts(
        gpu_type=gpu_type,
        total=free + used + draining + dirty,
        free=free,
        used=used,
        draining=draining,
        dirty=dirty,
        down=counts["down"],
    )


def _going_warnings(state: ClusterState, now_s: float) -> list[str]:
    """Say which nodes are to be empty soon that are not, the next ones first."""
    going = sorted(
        (node.empty_at_s, node.node_id)
        for node in state.nodes.values()
        if node.empty_at_s is not None
        and node.empty_at_s <= now_s + WARNED_AHEAD_S
        and node.state is NodeState.DRAINING
    )
    lines = [str(cause_of(state.nodes[node_id], now_s)) for _, node_id in going[:WARNED_NODES_MAX]]
    if len(going) > WARNED_NODES_MAX:
        lines.append(f"{len(going) - WARNED_NODES_MAX} further nodes are to be empty")
    return lines


def _skew_warnings(state: ClusterState) -> list[str]:
    skewed = sorted(
        (node.node_id, node.info.clock_skew_s)
        for node in state.nodes.values()
        if abs(node.info.clock_skew_s) > SKEW_WARNING_S and node.disconnected_at_s is None
    )
    lines = [f"clock_skew {skew_s:+.0f} s on node {node_id}" for node_id, skew_s in skewed[:WARNED_NODES_MAX]]
    if len(skewed) > WARNED_NODES_MAX:
        lines.append(f"clock_skew on {len(skewed) - WARNED_NODES_MAX} further nodes")
    return lines


def _address_warnings(state: ClusterState) -> list[str]:
    """Say which nodes only their own host can reach, where there are others: a job over both would never meet."""
    here = [
        node for node in state.nodes.values() if node.disconnected_at_s is None and node.state is not NodeState.LOST
    ]
    alone = sorted(node.node_id for node in here if _is_loopback(node.info.address))
    if not alone or len(alone) == len(here):
        return []
    more = f" and {len(alone) - WARNED_NODES_MAX} more" if len(alone) > WARNED_NODES_MAX else ""
    named = f"{', '.join(alone[:WARNED_NODES_MAX])}{more}"
    return [f"other nodes cannot reach the loopback address of {named}: jobs over both fail; start it with --address"]


def _is_loopback(address: str) -> bool:
    try:
        return ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"


def _work_warnings(at_work_s: float, policy: str) -> list[str]:
    """Say that a decision takes long: what is shown is from before it."""
    if at_work_s < LONG_S:
        return []
    return [f"a decision of the policy {policy} has taken {at_work_s:.0f} s so far: what is shown is from before it"]
