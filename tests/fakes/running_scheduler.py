"""A scheduler in this process with everything that talks to it, closed at the end of the test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from arena.domain.cluster import NodeInfo
from arena.domain.grid import GridSource
from arena_scheduler.app import RunningScheduler, start
from arena_scheduler.config import SchedulerConfig
from arena_scheduler.reading import LiveStore
from tests.fakes.agent_session import AgentSession
from tests.fakes.scheduler_client import SchedulerClient

DEADLINE_S = 20.0


class Cluster:
    """A scheduler, its clients and its agents."""

    def __init__(self, running: RunningScheduler) -> None:
        self.running = running
        self.closing: list[Any] = []

    def client(self, **fields: Any) -> SchedulerClient:
        """Return a new client."""
        client = SchedulerClient(self.running.address, **fields)
        self.closing.append(client)
        return client

    async def agent(self, info: NodeInfo, *, heartbeat_s: float | None = 0.1, **fields: Any) -> AgentSession:
        """Return an agent that is registered (unless the scheduler refuses it) and sends heartbeats."""
        session = self.session(info)
        await session.register(**fields)
        if heartbeat_s is not None:
            await session.heartbeats(heartbeat_s)
        return session

    def session(self, info: NodeInfo, **fields: Any) -> AgentSession:
        """Return an agent's stream on which nothing was said yet."""
        session = AgentSession(self.running.address, info, **fields)
        self.closing.append(session)
        return session


def quick_config(directory: Path, **fields: Any) -> SchedulerConfig:
    """Settings with short times."""
    defaults: dict[str, Any] = {
        "db": directory / "arena.db",
        "port": 0,
        "policy": "fcfs",
        "checkpoint_root": str(directory / "checkpoints"),
        "output_root": str(directory / "output"),
        "heartbeat_interval_s": 0.2,
        "node_grace_s": 2.0,
    }
    return SchedulerConfig(**{**defaults, **fields})


@asynccontextmanager
async def cluster_of(
    config: SchedulerConfig, *, source: GridSource | None = None, store: LiveStore | None = None
) -> AsyncIterator[Cluster]:
    """A running scheduler; everything is closed at the end."""
    cluster = Cluster(await start(config, source=source, store=store))
    try:
        yield cluster
    finally:
        for part in reversed(cluster.closing):
            await part.close()
        await cluster.running.stop()


async def eventually(condition: Callable[[], Any], what: str) -> Any:
    """Return the condition's first true value (it may be a coroutine function), polling up to a deadline."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            value = condition()
            if asyncio.iscoroutine(value):
                value = await value
            if value:
                return value
            await asyncio.sleep(0.02)
    raise AssertionError(what)
