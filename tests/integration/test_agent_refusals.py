"""Which of a scheduler's refusals end an agent: those that say who it is or what it speaks, and no other."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import grpc
import pytest

from arena.domain.events import NodeRegistered
from arena.errors import (
    AlreadyRunningError,
    ArenaError,
    AuthenticationError,
    PermissionDeniedError,
    ProtocolVersionError,
    UnavailableError,
)
from arena.rpc.status import CODE_BY_ERROR, error_from_rpc
from arena.rpc.v1 import agent_service_pb2 as pb
from arena_agent.config import AgentConfig
from arena_agent.link import Link, News, Session
from arena_scheduler.services import agents
from tests.builders import node_info
from tests.fakes.running_scheduler import cluster_of, quick_config
from tests.fakes.scheduler import FakeScheduler, serving

FINAL = {AuthenticationError, PermissionDeniedError, ProtocolVersionError, AlreadyRunningError}
FOREIGN = (
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.INTERNAL,
)


class Owner:
    """An agent that has nothing to do and nothing to say."""

    def registration(self) -> NodeRegistered:
        return NodeRegistered(info=node_info("n1"), held=(), ended=())

    def news(self) -> Iterable[News]:
        return ()

    def take_verdict(self, verdict: Any) -> None:
        pass

    def take_message(self, message: pb.OpenSessionResponse, session: Session) -> None:
        pass

    def session_ended(self) -> None:
        pass

    async def wait_for_news(self, limit_s: float) -> None:
        await asyncio.sleep(limit_s)


class RefusesOnce(FakeScheduler):
    """Refuses the first stream with an error of ours or with a bare status; with one that is final, every stream.

    A refusal may be lost on its way (the transport breaks first): who would end by it asks again, and is refused again.
    """

    def __init__(self, refusal: ArenaError | grpc.StatusCode) -> None:
        super().__init__()
        self.first_refusal: ArenaError | grpc.StatusCode | None = refusal

    async def OpenSession(self, requests: Any, context: Any) -> None:
        refusal, self.refusal = self.first_refusal, None
        if type(refusal) not in FINAL:
            self.first_refusal = None
        if isinstance(refusal, grpc.StatusCode):
            await context.abort(refusal, "said by something on the way")
        self.refusal = refusal
        await super().OpenSession(requests, context)


async def comes_back(directory: Path, scheduler: RefusesOnce) -> bool:
    """Return whether an agent that is refused tries again; if not, it ended with the scheduler's error."""
    async with serving(scheduler) as address:
        link = Link(AgentConfig(node_id="n1", scheduler=address, state_dir=directory), Owner())
        running = asyncio.create_task(link.run())
        connected = asyncio.create_task(scheduler.connected())
        await asyncio.wait([running, connected], return_when=asyncio.FIRST_COMPLETED)
        is_back = connected.done()
        connected.cancel()
        if running.done():
            with pytest.raises(ArenaError, match="said by the scheduler"):
                running.result()
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError, ArenaError):
            await running
        return is_back


@pytest.mark.parametrize("kind", CODE_BY_ERROR, ids=lambda kind: kind.__name__)
async def test_only_who_it_is_and_what_it_speaks_end_an_agent(tmp_path: Path, kind: type[ArenaError]) -> None:
    assert await comes_back(tmp_path, RefusesOnce(kind("said by the scheduler"))) is (kind not in FINAL)


@pytest.mark.parametrize("code", FOREIGN, ids=lambda code: code.name)
async def test_no_word_of_a_proxy_ends_an_agent(tmp_path: Path, code: grpc.StatusCode) -> None:
    assert await comes_back(tmp_path, RefusesOnce(code))


async def test_a_registration_that_is_not_read_in_time_may_be_sent_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a stall of the scheduler its limit is over before it has looked: the agent has done nothing wrong."""
    monkeypatch.setattr(agents, "REGISTER_DEADLINE_S", 0.0)
    async with cluster_of(quick_config(tmp_path)) as cluster:
        session = cluster.session(node_info("n1"))
        with contextlib.suppress(grpc.aio.AioRpcError):  # it may be over before it is written
            await session.register()
        error = error_from_rpc(await session.ended(), "here")
        assert type(error) is UnavailableError
        assert "no registration was read in time" in error.message
