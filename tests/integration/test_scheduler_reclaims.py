"""What a scheduler makes of an agent's notice and of a drain with a time, over the wire and over its restart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from arena.domain.events import NodeNoticeChanged, ReclaimNotice
from arena.domain.launch import NodeId
from arena.errors import UserError
from arena.rpc import codec
from arena.rpc.v1 import agent_service_pb2 as pb
from arena.rpc.v1 import common_pb2
from tests.builders import node_info, train_spec
from tests.fakes.agent_session import AgentSession
from tests.fakes.running_scheduler import cluster_of, eventually, quick_config
from tests.fakes.scheduler_client import SchedulerClient

READY = '{"kind":"ready","resumed_step":0,"checkpoint":null,"rendezvous_s":0.1,"load_s":0.1}'
STEP = '{"kind":"progress","points":[{"step":1,"loss":1.0,"step_time_s":1.0,"tokens_per_s":1.0}]}'


async def node_of(client: SchedulerClient) -> Any:
    (node,) = (await client.call("ListNodes")).nodes
    return node


async def running(client: SchedulerClient, agent: AgentSession, **fields: object) -> str:
    """Submit a job, have it step, and return its attempt."""
    await client.submit(train_spec("x", gpus={"max": 2}, **fields))
    launch = await agent.next_of("launch")
    await agent.send(pb.OpenSessionRequest(attempt_started=pb.AttemptStarted(attempt_id=launch.attempt_id)))
    for text in (READY, STEP):
        report = pb.WorkerReport(attempt_id=launch.attempt_id, report_json=text)
        await agent.send(pb.OpenSessionRequest(worker_report=report))
    await eventually(lambda: _steps(client), "it steps")
    return str(launch.attempt_id)


async def _steps(client: SchedulerClient) -> bool:
    return [item.state for item in (await client.call("GetStatus")).jobs] == [common_pb2.JOB_STATE_RUNNING]


def said(notice: ReclaimNotice | None) -> pb.OpenSessionRequest:
    event = NodeNoticeChanged(node_id=NodeId("n1"), notice=notice)
    return pb.OpenSessionRequest(notice_changed=codec.notice_changed_to_proto(event))


async def test_a_notice_stops_what_runs_and_is_shown(tmp_path: Path) -> None:
    async with cluster_of(quick_config(tmp_path)) as cluster:
        client = cluster.client()
        agent = await cluster.agent(node_info("n1"))
        attempt_id = await running(client, agent)
        await agent.send(said(ReclaimNotice(within_s=300.0, why="the market")))
        stop = await agent.next_of("stop_attempt")
        assert (stop.attempt_id, stop.mode) == (attempt_id, pb.STOP_MODE_SAVE)
        assert 290.0 < stop.grace_s <= 300.0
        node = await node_of(client)
        assert (node.state, node.drain_by, node.drain_why) == (
            common_pb2.NODE_STATE_DRAINING,
            "its lender",
            "the market",
        )
        assert node.drain_until_s - node.drain_at_s == pytest.approx(300.0)
        warnings = (await client.call("GetStatus")).warnings
        assert [line for line in warnings if line.startswith("node n1 is reclaimed in ")]
        await agent.send(said(None))
        await eventually(lambda: _is_ready(client), "the node is ready again")


async def _is_ready(client: SchedulerClient) -> bool:
    return bool((await node_of(client)).state == common_pb2.NODE_STATE_READY)


async def test_a_notice_of_no_time_at_all_is_refused_and_the_stream_goes_on(tmp_path: Path) -> None:
    async with cluster_of(quick_config(tmp_path)) as cluster:
        client = cluster.client()
        agent = await cluster.agent(node_info("n1"))
        await agent.next_of("verdict")
        for wrong in (float("nan"), float("inf"), -1.0):
            await agent.send(said(ReclaimNotice(within_s=wrong, why="x")))
        await running(client, agent)
        assert await _is_ready(client)


async def test_an_agent_that_comes_back_without_its_notice_is_ready(tmp_path: Path) -> None:
    async with cluster_of(quick_config(tmp_path)) as cluster:
        client = cluster.client()
        agent = await cluster.agent(node_info("n1"))
        await agent.next_of("verdict")
        await agent.send(said(ReclaimNotice(within_s=300.0, why="the market")))
        await eventually(lambda: _is_drained(client), "the node takes no work")
        await agent.close()
        await cluster.agent(node_info("n1", incarnation="another"))
        await eventually(lambda: _is_ready(client), "the node is ready again")


async def _is_drained(client: SchedulerClient) -> bool:
    return bool((await node_of(client)).state == common_pb2.NODE_STATE_DRAINED)


async def test_a_drain_with_a_time_outlives_the_scheduler(tmp_path: Path) -> None:
    config = quick_config(tmp_path)
    async with cluster_of(config) as cluster:
        client = cluster.client(user="root")
        agent = await cluster.agent(node_info("n1"))
        await running(client, agent)
        for wrong in (float("nan"), float("inf"), -1.0):
            failure = await client.failure("DrainNode", node_id="n1", why="x", request_id="d", within_s=wrong)
            assert isinstance(failure, UserError)
        answer = await client.call("DrainNode", node_id="n1", why="fans", request_id="e", within_s=7200.0)
        assert answer.node.drain_until_s - answer.node.drain_at_s == pytest.approx(7200.0)
        assert "stop_attempt" not in agent.kinds, "it is two hours until then"
    async with cluster_of(config) as cluster:
        node = await node_of(cluster.client())
        assert (node.drain_why, node.drain_until_s) == ("fans", answer.node.drain_until_s)
