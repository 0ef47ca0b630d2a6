"""The scheduler process: the one place that builds things and puts them together."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc  # type: ignore[import-untyped]  # ships no types

from arena.domain.events import SchedulerStarted
from arena.domain.grid import GridSource
from arena.domain.tenants import Guarantees
from arena.engine.config import EngineConfig
from arena.engine.engine import Engine
from arena.errors import AlreadyRunningError, ArenaError, UserError
from arena.planner.hardware import catalog
from arena.planner.mixed import MixedCells
from arena.planner.source import PlannerGridSource
from arena.policies.base import Policy
from arena.policies.registry import make_policy, weighs_mixed_cells
from arena.rpc.v1 import admin_service_pb2_grpc, agent_service_pb2_grpc, job_service_pb2_grpc
from arena.rpc.version import software_version
from arena_scheduler.access import Access
from arena_scheduler.clock import AwakeClock, LiveClock
from arena_scheduler.cluster_view import ClusterView
from arena_scheduler.config import CLOCK_LEAP_S, SchedulerConfig, is_loopback
from arena_scheduler.grids import GridCache
from arena_scheduler.inbox import Inbox
from arena_scheduler.log_relay import LogRelay
from arena_scheduler.loop import Driver
from arena_scheduler.outputs import Outputs
from arena_scheduler.reading import LiveStore
from arena_scheduler.services.admin import AdminService
from arena_scheduler.services.agents import AgentService
from arena_scheduler.services.exports import JobExports
from arena_scheduler.services.jobs import JobService
from arena_scheduler.services.streams import EventStreams, LogStreams, StreamSlots
from arena_scheduler.sessions import Sessions
from arena_scheduler.store.writes import SqliteStore
from arena_scheduler.submission import AskAdmission, Submission
from arena_scheduler.tenant_view import tenants_from_file
from arena_scheduler.world import LiveWorld

if TYPE_CHECKING:
    from collections.abc import Callable

    from arena_scheduler.metrics import Observed
    from arena_scheduler.metrics_server import MetricsServer

_log = logging.getLogger(__name__)

WATCH_INTERVAL_S = 0.25
STOP_GRACE_S = 0.5
MESSAGE_BYTES_MAX = 16 * 1024 * 1024
SILENT_HEARTBEATS = 2.5
GARBAGE_THRESHOLD = 20_000
GARBAGE_GENERATIONS = 50
_SERVER_OPTIONS = [
    ("grpc.so_reuseport", 0),
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    # Both sides say explicitly what they allow, so that neither takes the other's pings for an attack.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.max_ping_strikes", 0),
]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Parts:
    """What a running scheduler consists of."""

    config: SchedulerConfig
    store: LiveStore
    clock: LiveClock
    awake: AwakeClock
    inbox: Inbox
    sessions: Sessions
    grids: GridCache
    world: LiveWorld
    driver: Driver
    relay: LogRelay
    view: ClusterView
    admission: AskAdmission
    policy: Policy


class RunningScheduler:
    """A scheduler that serves; ``stop`` ends it and leaves the jobs running."""

    def __init__(
        self,
        parts: _Parts,
        server: grpc.aio.Server,
        tasks: list[asyncio.Task[None]],
        port: int,
        metrics: MetricsServer | None,
    ) -> None:
        self._parts = parts
        self._server = server
        self._metrics = metrics
        self._tasks = tasks
        self.host = parts.config.host
        self.port = port

    @property
    def address(self) -> str:
        """Where it listens."""
        return f"{self.host}:{self.port}"

    @property
    def metrics_url(self) -> str | None:
        """Where its metrics are, None where it serves none."""
        return self._metrics.url if self._metrics is not None else None

    @property
    def driver(self) -> Driver:
        """The loop, for its counters."""
        return self._parts.driver

    async def wait_for_fault(self) -> None:
        """Return when a task of the scheduler ended, which none does by itself; raise what ended it."""
        done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()

    async def stop(self) -> None:
        """Close the ports, finish the batch in hand, close the store."""
        parts = self._parts
        for session in parts.sessions:
            session.close("the scheduler is stopping")
        if self._metrics is not None:
            await asyncio.to_thread(self._metrics.close)
        await self._server.stop(STOP_GRACE_S)
        parts.driver.stop()
        watch, loop = self._tasks
        watch.cancel()
        await asyncio.gather(watch, loop, return_exceptions=True)
        parts.world.close()
        parts.grids.close()
        _close_store(parts.store)


def _close_store(store: LiveStore) -> None:
    if isinstance(store, SqliteStore):
        store.close()


async def start(
    config: SchedulerConfig, *, source: GridSource | None = None, store: LiveStore | None = None
) -> RunningScheduler:
    """Start a scheduler: recover its state, then open the port.

    Args:
        config: Settings.
        source: Makes grids; the planner by default.
        store: Where state lives; the database of the configuration by default.

    Raises:
        UserError: The configuration asks for what is not allowed.
        AlreadyRunningError: The port or the database is in use.
        UnavailableError: The database cannot be used.
    """
    access = Access.from_file(config.tokens)
    credentials = _credentials(config)
    policy = make_policy(config.policy, dict(config.policy_options))
    tenants = tenants_from_file(config.tenants, config.policy)
    live_store = store or SqliteStore.open(config.db)
    try:
        parts = _build(config, live_store, policy, source or PlannerGridSource(), tenants)
        tasks = [asyncio.create_task(_watch(parts)), asyncio.create_task(parts.driver.run())]
        try:
            await parts.inbox.request(_started_event(policy))
            server, port, metrics = await _open_ports(parts, access, credentials)
        except BaseException:
            parts.driver.stop()
            tasks[0].cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            raise
    except BaseException:
        _close_store(live_store)
        raise
    running = RunningScheduler(parts, server, tasks, port, metrics)
    _write_address(config.address_file, running.address)
    _log.info("serving on %s with policy %s", running.address, policy.name)
    return running


def _build(
    config: SchedulerConfig, store: LiveStore, policy: Policy, source: GridSource, tenants: Guarantees
) -> _Parts:
    restored = store.load()
    clock = LiveClock(restored.last_at_s)
    awake = AwakeClock(catch_up_s_max=config.node_grace_s)
    inbox = Inbox()
    sessions = Sessions(awake, silence_s_max=SILENT_HEARTBEATS * config.heartbeat_interval_s)
    mixed = MixedCells() if weighs_mixed_cells(config.policy) and isinstance(source, PlannerGridSource) else None
    grids = GridCache(source, time.monotonic, mixed=mixed)  # noqa: TID251 - handed on, not read here
    world = LiveWorld(
        sessions=sessions,
        grids=grids,
        inbox=inbox,
        heartbeat_interval_s=config.heartbeat_interval_s,
        node_grace_s=config.node_grace_s,
    )
    engine = Engine(policy, engine_config(config, tenants), restored)
    leapt_at_s = _last_leap_at_s(store, config.keep_history_s, restored.last_at_s, clock.now_s())
    driver = Driver(
        brain=engine,
        store=store,
        world=world,
        inbox=inbox,
        clock=clock,
        awake=awake,
        drop_node=sessions.drop,
        is_connected=sessions.is_connected,
        keep_history_s=config.keep_history_s,
        leapt_at_s=leapt_at_s,
    )
    driver.ended_counts.update(
        {state: count for state, count in store.reader.count_by_state().items() if state.is_terminal}
    )
    view = ClusterView(
        driver=driver,
        now_s=clock.now_s,
        scheduler_version=software_version(),
        policy=policy.name,
        explain=engine.explain,
        warnings=store.warnings,
        tenants=tenants,
        usd_per_hour=engine.config.usd_per_hour,
        checkpoint_root=engine.config.checkpoint_root,
    )
    return _Parts(
        config=config,
        store=store,
        clock=clock,
        awake=awake,
        inbox=inbox,
        sessions=sessions,
        grids=grids,
        world=world,
        driver=driver,
        relay=LogRelay(sessions),
        view=view,
        admission=engine.admission,
        policy=policy,
    )


def _last_leap_at_s(store: LiveStore, keep_s: float | None, last_at_s: float, now_s: float) -> float:
    """Return since when the clock can be trusted: a long rest looks like a host whose clock is years ahead."""
    leapt_at_s = store.last_leap_at_s()
    if last_at_s and now_s - last_at_s > min(CLOCK_LEAP_S, keep_s or CLOCK_LEAP_S):
        leapt_at_s = now_s
        try:
            store.note_leap(now_s)
        except ArenaError as error:
            _log.error("that the clock leapt could not be written down: %s", error)
        _log.warning("the clock is %.1f days past what was last written: is it right?", (now_s - last_at_s) / 86_400.0)
    if keep_s is not None and now_s < leapt_at_s + keep_s:
        until = datetime.fromtimestamp(leapt_at_s + keep_s, tz=UTC)
        _log.warning("since the clock leapt, nothing is dropped before %s UTC", f"{until:%Y-%m-%d %H:%M}")
    return leapt_at_s


def engine_config(config: SchedulerConfig, tenants: Guarantees | None = None) -> EngineConfig:
    """Return what the engine gets to know of the settings; a replay needs the same."""
    return EngineConfig(
        checkpoint_root=config.checkpoint_root,
        output_root=config.output_root,
        node_grace_s=config.node_grace_s,
        forget_lost_s=config.keep_history_s,
        launch_deadline_s=config.launch_deadline_s,
        decide_after_s=config.decide_after_s,
        restart_s=config.restart_s,
        tenants=tenants or {},
        usd_per_hour={name: gpu_type.usd_per_hour for name, gpu_type in catalog().items()},
    )


def _started_event(policy: Policy) -> SchedulerStarted:
    return SchedulerStarted(scheduler_version=software_version(), policy=policy.name, policy_version=policy.version)


def _server(parts: _Parts, access: Access) -> grpc.aio.Server:
    server = grpc.aio.server(options=_SERVER_OPTIONS)
    reader = parts.store.reader
    slots = StreamSlots()
    submission = Submission(
        store=parts.store,
        inbox=parts.inbox,
        grids=parts.grids,
        view=parts.view,
        outputs=Outputs(parts.config.output_root, lambda: parts.view.state.jobs),
        admission=parts.admission,
    )
    jobs = JobService(
        access=access,
        reader=reader,
        view=parts.view,
        inbox=parts.inbox,
        submission=submission,
        events=EventStreams(driver=parts.driver, reader=reader, view=parts.view, slots=slots),
        logs=LogStreams(reader=reader, relay=parts.relay, slots=slots),
        exports=JobExports(reader=reader, view=parts.view, slots=slots),
    )
    agents = AgentService(
        access=access, sessions=parts.sessions, inbox=parts.inbox, clock=parts.clock, logs=parts.relay
    )
    admin = AdminService(access=access, view=parts.view, inbox=parts.inbox, reader=reader)
    # grpc's generator gives these functions no types.
    job_service_pb2_grpc.add_JobServiceServicer_to_server(jobs, server)  # type: ignore[no-untyped-call]
    admin_service_pb2_grpc.add_AdminServiceServicer_to_server(admin, server)  # type: ignore[no-untyped-call]
    agent_service_pb2_grpc.add_AgentServiceServicer_to_server(agents, server)  # type: ignore[no-untyped-call]
    return server


async def _open_ports(
    parts: _Parts, access: Access, credentials: grpc.ServerCredentials | None
) -> tuple[grpc.aio.Server, int, MetricsServer | None]:
    """Open the port, and that of the metrics where they are asked for; both or none."""
    metrics = _metrics_server(parts, access)
    try:
        server, port = await _open_port(parts.config, _server(parts, access), credentials)
    except BaseException:
        if metrics is not None:
            metrics.close()
        raise
    if metrics is not None:
        metrics.start()
        _log.info("metrics at %s", metrics.url)
    return server, port, metrics


def _metrics_server(parts: _Parts, access: Access) -> MetricsServer | None:
    config, driver = parts.config, parts.driver
    if config.metrics_port is None:
        return None
    # It takes a sixth of a second, and most schedulers' starts are those of tests and trials.
    from arena_scheduler import metrics_server  # noqa: PLC0415

    is_local = is_loopback(config.metrics_host)
    answer = metrics_server.application(
        observe=_observer(parts),
        silent_s=parts.awake.since_beat_s,
        turn=driver.turns.seen,
        read_only_cause=lambda: driver.read_only_cause,
        access=None if is_local else access,
    )
    tls = None if is_local else metrics_server.tls_context(config.tls_cert, config.tls_key)
    return metrics_server.MetricsServer(config.metrics_host, config.metrics_port, answer, tls)


def _observer(parts: _Parts) -> Callable[[], Observed]:
    """Return what looks at a scheduler, from any thread: all that it reads are values, replaced and never changed."""
    from arena_scheduler import metrics, metrics_server  # noqa: PLC0415 - as above

    driver, view = parts.driver, parts.view
    decided_before, dropped_before = driver.durable_state.decision_index, driver.dropped.job_count

    def observe() -> Observed:
        state = driver.durable_state
        return metrics.Observed(
            now_s=parts.clock.now_s(),
            state=state,
            version=software_version(),
            policy=parts.policy.name,
            policy_version=parts.policy.version,
            tenants=view.tenants,
            tally=driver.tally,
            kept_count_by_state=dict(driver.ended_counts),
            decision_count=state.decision_index - decided_before,
            decision_time_s=driver.decision_time_s,
            turn=driver.turns.seen(),
            event_count=parts.inbox.waiting_count,
            session_count=len(parts.sessions),
            is_read_only=driver.read_only_cause is not None,
            dropped_job_count=driver.dropped.job_count - dropped_before,
            file_bytes=metrics_server.sizes_of(parts.config.db),
        )

    return observe


async def _open_port(
    config: SchedulerConfig, server: grpc.aio.Server, credentials: grpc.ServerCredentials | None
) -> tuple[grpc.aio.Server, int]:
    health_servicer = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(health_servicer, server)
    wanted = f"{config.host}:{config.port}"
    try:
        port = server.add_secure_port(wanted, credentials) if credentials else server.add_insecure_port(wanted)
    except RuntimeError as error:
        raise _port_error(wanted, str(error)) from error
    if port == 0:
        raise _port_error(wanted, "")
    await server.start()
    await health_servicer.set("", health_pb2.HealthCheckResponse.SERVING)
    return server, port


def _port_error(address: str, why: str) -> AlreadyRunningError:
    reason = "it is in use" if not why or "in use" in why or "Failed to bind" in why else why
    return AlreadyRunningError(
        f"cannot listen on {address}",
        why=reason,
        fix="stop what listens there, or choose another with --port (0 takes a free one)",
        details={"address": address},
    )


def _credentials(config: SchedulerConfig) -> grpc.ServerCredentials | None:
    if config.tls_cert is None or config.tls_key is None:
        return None
    try:
        pair = (config.tls_key.read_bytes(), config.tls_cert.read_bytes())
    except OSError as error:
        raise UserError(f"the TLS file {error.filename} cannot be read", why=str(error.strerror)) from error
    return grpc.ssl_server_credentials([pair])


async def _watch(parts: _Parts) -> None:
    """Notice stalls of our own, and end the sessions of agents that fell silent."""
    silence_s = max(SILENT_HEARTBEATS * parts.config.heartbeat_interval_s, parts.config.node_grace_s / 2)
    while True:
        stalled_s = parts.awake.beat()
        if stalled_s:
            _log.warning("this process did not run for %.1f s; no agent is blamed for it", stalled_s)
        for session in parts.sessions.silent(silence_s):
            session.close(f"silent for {silence_s:g} s")
        await asyncio.sleep(WATCH_INTERVAL_S)


def _write_address(path: Path | None, address: str) -> None:
    if path is not None:
        aside = path.with_name(f".{path.name}.{os.getpid()}")
        aside.write_text(address + "\n")
        aside.replace(path)


def collect_garbage_rarely() -> None:
    """Have Python look for cycles less often: a state of many jobs holds none, and each look walks through it all.

    It took about a seventh of the CPU time of a submit (2 cores of a shared x86 host, 2026-11-30, test_submit_rate).
    """
    gc.set_threshold(GARBAGE_THRESHOLD, GARBAGE_GENERATIONS, GARBAGE_GENERATIONS)


def serve(config: SchedulerConfig) -> int:
    """Run a scheduler until SIGTERM or SIGINT; jobs go on running. Returns the exit code."""
    collect_garbage_rarely()
    return asyncio.run(_serve(config))


async def _serve(config: SchedulerConfig) -> int:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    running = await start(config)
    fault = asyncio.create_task(running.wait_for_fault())
    stop = asyncio.create_task(stopping.wait())
    await asyncio.wait([fault, stop], return_when=asyncio.FIRST_COMPLETED)
    stop.cancel()
    await running.stop()
    with contextlib.suppress(asyncio.CancelledError):
        if not stopping.is_set():
            await fault
    fault.cancel()
    return 0
