"""While a decision takes long, questions are answered, agents are listened to, and it is said what takes so long."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from threading import Event

import pytest

from arena.domain.launch import NodeId
from arena.policies.base import Decision, Snapshot
from arena.policies.fcfs import FirstComeFirstServed
from arena.rpc.v1 import agent_service_pb2 as pb
from arena.rpc.v1 import common_pb2
from arena_scheduler import cluster_view, loop
from tests.builders import command_spec, node_info
from tests.fakes.running_scheduler import cluster_of, eventually, quick_config

STEP = '{"kind":"progress","points":[{"step":1,"loss":1.0,"step_time_s":1.0,"tokens_per_s":1.0}]}'


class Held:
    """Decisions that go on until they are let go."""

    def __init__(self) -> None:
        self.has_begun, self.may_end = Event(), Event()


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    held, decide = Held(), FirstComeFirstServed.decide

    def long(policy: FirstComeFirstServed, snapshot: Snapshot) -> Decision:
        if snapshot.waiting:
            held.has_begun.set()
            held.may_end.wait(60.0)
        return decide(policy, snapshot)

    monkeypatch.setattr(FirstComeFirstServed, "decide", long)
    monkeypatch.setattr(loop, "LONG_S", 0.1)
    monkeypatch.setattr(cluster_view, "LONG_S", 0.1)
    yield held
    held.may_end.set()


async def test_it_holds_up_nobody_who_asks_and_blames_no_agent(
    tmp_path: Path, held: Held, caplog: pytest.LogCaptureFixture
) -> None:
    config = quick_config(tmp_path)
    async with cluster_of(config) as cluster:
        client = cluster.client()
        agent = await cluster.agent(node_info("n1"))
        await agent.next_of("verdict")
        submission = asyncio.create_task(client.submit(command_spec("a", count=1), request_id="a"))
        await eventually(held.has_begun.is_set, "the decision is under way")
        await asyncio.sleep(config.node_grace_s + 2 * config.heartbeat_interval_s)  # silence would be noticed by now

        status = await client.call("GetStatus")
        assert any("a decision of the policy fcfs has taken" in one for one in status.warnings)
        assert "the engine has been at work for" in caplog.text
        assert (await client.call("ListJobs")).total_count <= 1

        held.may_end.set()
        job_id = await submission
        await agent.next_of("launch")
        (node,) = (await client.call("ListNodes")).nodes
        assert node.state == common_pb2.NODE_STATE_READY
        assert not [one for one in await client.entries() if "no word" in one.message]
        assert (await client.job(job_id)).state == common_pb2.JOB_STATE_STARTING
        assert not any("has taken" in one for one in (await client.call("GetStatus")).warnings)


async def test_an_agent_that_registers_meanwhile_has_its_verdict_after_it(tmp_path: Path, held: Held) -> None:
    """It has nothing to say before that, however long it takes."""
    config = quick_config(tmp_path)
    async with cluster_of(config) as cluster:
        client = cluster.client()
        await (await cluster.agent(node_info("n1"))).next_of("verdict")
        submission = asyncio.create_task(client.submit(command_spec("a", count=1), request_id="a"))
        await eventually(held.has_begun.is_set, "the decision is under way")
        late = await cluster.agent(node_info("n2"), heartbeat_s=None)
        await asyncio.sleep(config.node_grace_s + 2 * config.heartbeat_interval_s)
        held.may_end.set()
        await late.next_of("verdict")
        await late.heartbeats(0.1)
        await submission
        assert {node.node_id for node in (await client.call("ListNodes")).nodes} == {"n1", "n2"}


async def test_what_was_said_meanwhile_is_heard_before_any_deadline_is_looked_at(tmp_path: Path, held: Held) -> None:
    """A node that was away for a moment is not lost because its word waits behind many others."""
    config = quick_config(tmp_path)
    async with cluster_of(config) as cluster:
        client = cluster.client()
        talker, away = [await cluster.agent(node_info(name)) for name in ("n1", "n2")]
        for agent in (talker, away):
            await agent.next_of("verdict")
        await away.close()
        nodes = cluster.running.driver
        await eventually(lambda: nodes.durable_state.nodes[NodeId("n2")].disconnected_at_s, "it is out of reach")
        submission = asyncio.create_task(client.submit(command_spec("a", count=1), request_id="a"))
        await eventually(held.has_begun.is_set, "the decision is under way")
        for _ in range(3 * loop.ITEMS_PER_BATCH_MAX):
            report = pb.WorkerReport(attempt_id="none.1", report_json=STEP)
            await talker.send(pb.OpenSessionRequest(worker_report=report))
        back = await cluster.agent(node_info("n2", incarnation="n2-2"), heartbeat_s=0.1)
        await asyncio.sleep(config.node_grace_s + 2 * config.heartbeat_interval_s)
        held.may_end.set()
        await submission
        await back.next_of("verdict")
        assert not [one.message for one in await client.entries() if "lost" in one.message]
