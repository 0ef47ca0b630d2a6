"""What Prometheus is told of a scheduler: families of metrics, made of one moment's values. Pure: no I/O, no clock.

Names follow Prometheus: base units at the end, ``_total`` for what only grows. No label has a value for each job, user
or node; of the types and zones of GPUs, which nodes name, at most ``POOLS_MAX`` are told apart.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric

from arena.domain.cluster import NodeState
from arena.domain.job import JobId
from arena.domain.records import ENDED_JOB_STATES, LIVE_JOB_STATES, JobState
from arena.domain.tenants import Guarantees
from arena.engine.state import ClusterState, pool_of
from arena.policies.capacity import Pool
from arena_scheduler.cluster_view import place_of
from arena_scheduler.tally import LAUNCH_FAULTS, Tally
from arena_scheduler.tenant_view import OTHERS, tenant_shares
from arena_scheduler.turn import Part, Turn

Places = Mapping[Pool, Counter[str]]
"""GPUs by type and zone, and by what they do."""
_Labels = TypeVar("_Labels", bound=tuple[str, ...])

POOLS_MAX = 256
OTHER_POOLS = ("(others)", "(others)")
OTHER_PROJECTS = "(others)"
"""As `arena status` calls them."""
PLACES = ("free", "reserved", "used", "draining", "dirty", "down")


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """A scheduler at one moment.

    Args:
        state: The durable state.
        tally: What has happened since the process started.
        kept_count_by_state: Ended jobs that are still known.
        decision_count: Decisions since the process started.
        decision_time_s: How long the latest took.
        turn: What the loop is at, and for how long.
        event_count: Events that wait for the engine.
        dropped_job_count: Jobs that are not kept any more, of those that were when the process started or came later.
        file_bytes: Sizes of the store's files, by what each is.
    """

    now_s: float
    state: ClusterState
    version: str
    policy: str
    policy_version: str
    tenants: Guarantees = field(default_factory=dict)
    tally: Tally = field(default_factory=Tally)
    kept_count_by_state: Mapping[JobState, int] = field(default_factory=dict)
    decision_count: int = 0
    decision_time_s: float = 0.0
    turn: Turn = field(default_factory=Turn)
    event_count: int = 0
    session_count: int = 0
    is_read_only: bool = False
    dropped_job_count: int = 0
    file_bytes: Mapping[str, int] = field(default_factory=dict)


def metrics_of(seen: Observed) -> Iterator[Metric]:
    """Yield every family, each once."""
    yield from _of_scheduler(seen)
    yield from _of_jobs(seen)
    places = gpu_places(seen.state)
    yield from _of_gpus(places)
    yield from _of_nodes(seen)
    yield from _of_projects(seen, places)
    yield from _of_store(seen)


def _of_scheduler(seen: Observed) -> Iterator[Metric]:
    build = {"version": seen.version, "policy": seen.policy, "policy_version": seen.policy_version}
    yield InfoMetricFamily("arena_scheduler_build", "The scheduler and its policy.", build)
    yield _gauge("arena_read_only", "1 while nothing can be written: the disk is full.", seen.is_read_only)
    yield _counter("arena_decisions_total", "Decisions of the policy since the start.", seen.decision_count)
    yield _gauge("arena_decision_duration_seconds", "How long the latest decision took.", seen.decision_time_s)
    decided_at_s = seen.state.decided_at_s
    yield _gauge(
        "arena_decision_age_seconds",
        "Since the latest decision; none before the first. One is made when something changes.",
        None if decided_at_s is None else max(seen.now_s - decided_at_s, 0.0),
    )
    yield from _of_turn(seen.turn)
    yield _gauge("arena_waiting_events", "Events that wait for the engine, beside the batch in hand.", seen.event_count)
    yield _gauge("arena_restart_cost_seconds", "What a restart of a job is taken to cost.", seen.state.restart_s)
    yield _gauge(
        "arena_restart_cost_samples", "Restarts that this was measured on; 0: assumed.", seen.state.restart_sample_count
    )


def _of_turn(turn: Turn) -> Iterator[Metric]:
    yield _gauge(
        "arena_loop_turn_seconds",
        "For how long the present turn of the loop has taken: deciding about a batch, writing it; 0 while it is idle.",
        turn.took_s,
    )
    yield _gauge(
        "arena_engine_work_seconds",
        "For how long the engine has been at work on the batch in hand; 0 while it is not.",
        turn.time_at_s(Part.DECISION),
    )
    yield _gauge(
        "arena_store_work_seconds",
        "For how long the store has been at work on the write in hand; 0 while it is not.",
        turn.time_at_s(Part.WRITING),
    )


def _of_jobs(seen: Observed) -> Iterator[Metric]:
    jobs, tally = seen.state.jobs.values(), seen.tally
    states = Counter(job.state for job in jobs)
    yield _gauges(
        "arena_jobs", "Jobs that have not ended.", ("state",), {(state,): states[state] for state in LIVE_JOB_STATES}
    )
    kept = {(state,): seen.kept_count_by_state.get(state, 0) for state in ENDED_JOB_STATES}
    yield _gauges("arena_ended_jobs", "Jobs that have ended and are still known.", ("state",), kept)
    yield _counter("arena_jobs_submitted_total", "Jobs submitted since the start.", tally.submitted_count)
    ended = {(state,): tally.ended_count_by_state[state] for state in ENDED_JOB_STATES}
    yield _counters("arena_jobs_ended_total", "Jobs that ended since the start.", ("state",), ended)
    yield _gauge(
        "arena_queued_jobs",
        "Queued jobs that the policy is asked about: not being planned, nor waiting out a failure.",
        len(seen.state.queue),
    )
    fitting = [job_id for job_id in seen.state.queue if _fits_somewhere(seen.state, job_id)]
    yield _gauge(
        "arena_infeasible_jobs",
        "Of arena_queued_jobs, those that no GPUs that there are can run: they wait for other nodes.",
        len(seen.state.queue) - len(fitting),
    )
    since_s = min((seen.state.jobs[job_id].changed_at_s for job_id in fitting), default=seen.now_s)
    yield _gauge(
        "arena_queue_age_seconds",
        "Since the oldest of arena_queued_jobs without arena_infeasible_jobs was queued (submitted, released or"
        " stopped); 0 where there is none.",
        max(seen.now_s - since_s, 0.0),
    )
    yield from _of_changes(seen)


def _fits_somewhere(state: ClusterState, job_id: JobId) -> bool:
    grid = state.grids.get(job_id)
    return grid is not None and bool(grid.cells or grid.mixed)


def _of_changes(seen: Observed) -> Iterator[Metric]:
    tally, jobs = seen.tally, seen.state.jobs.values()
    yield _counter(
        "arena_job_restarts_total",
        "Jobs that went on after a crash, a late start, a lost node or a plan out of memory, since the start; launches"
        " that failed and ports that were taken are arena_launch_failures_total.",
        tally.restart_count,
    )
    yield _counters(
        "arena_launch_failures_total",
        "Launches that failed since the start, each on each node where one did, by fault: node, which could start"
        " nothing (`arena nodes` says which), port, which was taken, config, which the job wants and is not there.",
        ("fault",),
        {(fault,): tally.launch_failure_count_by_fault[fault] for fault in LAUNCH_FAULTS},
    )
    yield _counter(
        "arena_job_preemptions_total",
        "Jobs that lost their GPUs since the start: to others, or as a node was drained or taken away.",
        tally.preemption_count,
    )
    yield _counter(
        "arena_job_reconfigurations_total", "Running jobs given other GPUs or plans.", tally.reconfiguration_count
    )
    changes = {
        ("restart",): sum(job.restart_count for job in jobs),
        ("preemption",): sum(job.preemption_count for job in jobs),
        ("reconfiguration",): sum(job.reconfiguration_count for job in jobs),
    }
    yield _gauges("arena_live_job_changes", "What befell the jobs that have not ended.", ("kind",), changes)
    yield _counter(
        "arena_gpu_seconds_total", "GPU time of attempts that ended since the start, at their ends.", tally.gpu_seconds
    )
    yield _gauge(
        "arena_live_job_gpu_seconds", "GPU time so far of the jobs that have not ended.", _live_gpu_seconds(seen)
    )


def _live_gpu_seconds(seen: Observed) -> float:
    running_gpu_seconds = sum(
        max(seen.now_s - attempt.launched_at_s, 0.0) * attempt.allocation.gpu_count
        for attempt in seen.state.attempts.values()
        if attempt.is_live
    )
    return sum(job.gpu_seconds for job in seen.state.jobs.values()) + running_gpu_seconds


def _of_gpus(places: Places) -> Iterator[Metric]:
    kept = sorted(places)[:POOLS_MAX]
    counts = {pool: Counter(places[pool]) for pool in kept}
    for pool in places.keys() - counts.keys():
        counts.setdefault(OTHER_POOLS, Counter()).update(places[pool])
    yield _gauges(
        "arena_gpus",
        "GPUs, each in one state: reserved waits for others of a job's to be free, dirty is unusable, down is lost.",
        ("gpu_type", "zone", "state"),
        {(*pool, place): found[place] for pool, found in counts.items() for place in PLACES},
    )


def gpu_places(state: ClusterState) -> Places:
    """Return what the GPUs of each type and zone do, as `arena status` counts them; reserved ones are free there."""
    places: dict[Pool, Counter[str]] = {}
    for node in state.nodes.values():
        counts = places.setdefault(pool_of(node), Counter())
        for device in node.info.devices:
            is_held = device.device_id in state.holders
            place = place_of(node, is_held=is_held, is_dirty=device.dirty is not None)
            counts["reserved" if place == "free" and device.device_id in state.reserved else place] += 1
    return places


def _of_nodes(seen: Observed) -> Iterator[Metric]:
    nodes = seen.state.nodes.values()
    states = Counter(node.state for node in nodes)
    yield _gauges("arena_nodes", "Nodes that are known.", ("state",), {(state,): states[state] for state in NodeState})
    silent = sum(node.disconnected_at_s is not None and node.state is not NodeState.LOST for node in nodes)
    yield _gauge("arena_silent_nodes", "Nodes out of reach that are not taken for lost yet.", silent)
    yield _counter("arena_nodes_lost_total", "Nodes taken for lost since the start.", seen.tally.lost_node_count)
    yield _gauge("arena_agent_sessions", "Agents that are connected.", seen.session_count)


def _of_projects(seen: Observed, places: Places) -> Iterator[Metric]:
    """Yield how shares are used; nothing where there are none."""
    if not seen.tenants:
        return
    free: Counter[str] = Counter()
    for (gpu_type, _), counts in places.items():
        free[gpu_type] += counts["free"] + counts["reserved"]
    shares = {_project(share.project, seen.tenants): share for share in tenant_shares(seen.tenants, seen.state, free)}
    guaranteed = {(name,): seen.tenants[name].gpu_count for name in sorted(seen.tenants)}
    yield _gauges("arena_project_guaranteed_gpus", "GPUs that a project is guaranteed.", ("project",), guaranteed)
    used = {(name,): share.used for name, share in shares.items()}
    yield _gauges("arena_project_used_gpus", "GPUs that its jobs have.", ("project",), used)
    lent = {(name,): share.lent for name, share in shares.items() if share.project in seen.tenants}
    yield _gauges("arena_project_lent_gpus", "Of those that it is guaranteed, GPUs others use.", ("project",), lent)
    jobs = {(name, "running"): share.running_jobs for name, share in shares.items()}
    jobs |= {(name, "waiting"): share.waiting_jobs for name, share in shares.items()}
    yield _gauges("arena_project_jobs", "Its jobs that have GPUs, or wait for some.", ("project", "state"), jobs)


def _project(name: str, tenants: Guarantees) -> str:
    """Return the label of a project; those without a share have one together, which is nobody's name."""
    if name != OTHERS:
        return name
    label = OTHER_PROJECTS
    while label in tenants:
        label = f"({label})"
    return label


def _of_store(seen: Observed) -> Iterator[Metric]:
    told = "Jobs that were dropped since the start, as they had ended long ago."
    yield _counter("arena_history_dropped_jobs_total", told, seen.dropped_job_count)
    sizes = {(name,): size for name, size in sorted(seen.file_bytes.items())}
    yield _gauges("arena_database_size_bytes", "The database, and its log (-wal).", ("file",), sizes)


def _gauge(name: str, told: str, value: float | None) -> Metric:
    family = GaugeMetricFamily(name, told)
    if value is not None:
        family.add_metric((), float(value))
    return family


def _counter(name: str, told: str, value: float) -> Metric:
    return CounterMetricFamily(name, told, value=value)


def _counters(name: str, told: str, labels: Sequence[str], values: Mapping[_Labels, float]) -> Metric:
    family = CounterMetricFamily(name, told, labels=labels)
    for found, value in values.items():
        family.add_metric(found, value)
    return family


def _gauges(name: str, told: str, labels: Sequence[str], values: Mapping[_Labels, float]) -> Metric:
    family = GaugeMetricFamily(name, told, labels=labels)
    for found, value in values.items():
        family.add_metric(found, value)
    return family
