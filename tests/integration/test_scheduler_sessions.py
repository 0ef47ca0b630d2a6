"""Agents' sessions: registration with verdicts, takeover, silence, protocol versions, stalls, logs."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from arena.domain.events import EndedAttempt, HeldAttempt
from arena.domain.launch import AttemptId
from arena.domain.records import EndKind, NodeEnd
from arena.engine.engine import Engine, replay
from arena.errors import AlreadyRunningError, ArenaError, NotFoundError, ProtocolVersionError, UnavailableError
from arena.policies.registry import make_policy
from arena.rpc import codec
from arena.rpc.status import error_from_rpc
from arena.rpc.v1 import agent_service_pb2 as pb
from arena.rpc.v1 import common_pb2
from arena.rpc.version import PROTOCOL_VERSION
from arena_scheduler.app import engine_config
from arena_scheduler.clock import AwakeClock
from arena_scheduler.reading import HistoryQuery
from arena_scheduler.sessions import Sessions
from arena_scheduler.store.writes import SqliteStore
from tests.builders import command_spec, node_info, train_spec
from tests.fakes.agent_session import AgentSession
from tests.fakes.running_scheduler import Cluster, cluster_of, eventually, quick_config
from tests.fakes.scheduler_client import SchedulerClient


async def refusal_of(session: AgentSession) -> ArenaError:
    return error_from_rpc(await session.ended(), "here")


async def node_named(client: SchedulerClient, name: str) -> Any:
    nodes = (await client.call("ListNodes")).nodes
    return next(node for node in nodes if node.node_id == name)


async def started_job(cluster: Cluster, client: SchedulerClient, agent: AgentSession) -> tuple[str, Any]:
    """Submit a job and have the agent say that it is up; return its id and launch."""
    job_id = await client.submit(train_spec("x", gpus={"max": 2}))
    launch = await agent.next_of("launch")
    await agent.send(pb.OpenSessionRequest(attempt_started=pb.AttemptStarted(attempt_id=launch.attempt_id)))
    return job_id, launch


async def test_a_submitted_job_is_launched_on_an_agent_and_finished(tmp_path: Path) -> None:
    async with cluster_of(quick_config(tmp_path)) as cluster:
        client = cluster.client()
        agent = await cluster.agent(node_info("n1"))
        await agent.next_of("verdict")
        job_id, launch = await started_job(cluster, client, agent)
        assert launch.job_id == job_id
        assert list(launch.device_ids) == ["n1/vgpu-0", "n1/vgpu-1"]
        report = '{"kind":"finished","step":5,"loss":1.0,"output":"/out"}'
        ready = '{"kind":"ready","resumed_step":0,"checkpoint":null,"rendezvous_s":0.1,"load_s":0.1}'
        for text in (ready, report):
            message = pb.WorkerReport(attempt_id=launch.attempt_id, report_json=text)
            await agent.send(pb.OpenSessionRequest(worker_report=message))
        end = NodeEnd(node_id=agent.info.node_id, kind=EndKind.FINISHED, exit_codes={0: 0, 1: 0})
        ended = codec.attempt_ended_to_proto(AttemptId(launch.attempt_id), end)
        await agent.send(pb.OpenSessionRequest(attempt_ended=ended))
        assert (await agent.next_of("acknowledge_end")).attempt_id == launch.attempt_id
        job = await client.job(job_id)
        assert job.state == common_pb2.JOB_STATE_SUCCEEDED
        status = await client.call("GetStatus")
        assert (status.gpus[0].total, status.gpus[0].free) == (2, 2)
        assert [(item.state, item.count) for item in status.jobs] == [(common_pb2.JOB_STATE_SUCCEEDED, 1)]


async def test_a_reconnect_with_three_attempts_gets_kill_kill_keep(tmp_path: Path) -> None:
    async with cluster_of(quick_config(tmp_path)) as cluster:
        client = cluster.client()
        agent = await cluster.agent(node_info("n1", gpus=4))
        cancelled_id = await client.submit(train_spec("c", gpus={"max": 2}, parallel={"plan": "dp2 tp1 pp1 mb1"}))
        cancelled = await agent.next_of("launch")
        _, kept = await started_job(cluster, client, agent)
        await client.call("CancelJobs", job_ids=[cancelled_id], request_id="c")
        end = NodeEnd(node_id=agent.info.node_id, kind=EndKind.KILLED)
        message = codec.attempt_ended_to_proto(AttemptId(cancelled.attempt_id), end)
        await agent.send(pb.OpenSessionRequest(attempt_ended=message))
        await agent.next_of("acknowledge_end")
        await agent.close()
        held = tuple(
            HeldAttempt(attempt_id=AttemptId(name), started=True)
            for name in (kept.attempt_id, cancelled.attempt_id, "unknown-1.1")
        )
        again = await cluster.agent(agent.info, held=held)
        verdict = await again.next_of("verdict")
        assert list(verdict.keep_attempt_ids) == [kept.attempt_id]
        assert sorted(verdict.kill_attempt_ids) == sorted([cancelled.attempt_id, "unknown-1.1"])
        assert (verdict.heartbeat_interval_s, verdict.node_grace_s) == (0.2, 2.0)


async def test_an_end_that_is_repeated_is_acknowledged_again(tmp_path: Path) -> None:
    async with cluster_of(quick_config(tmp_path)) as cluster:
        end = NodeEnd(node_id=node_info("n1").node_id, kind=EndKind.FAILED)
        ended = (EndedAttempt(attempt_id=AttemptId("gone-1.1"), end=end),)
        agent = await cluster.agent(node_info("n1"), ended=ended)
        assert (await agent.next_of("acknowledge_end")).attempt_id == "gone-1.1"
        assert agent.kinds == ["verdict", "acknowledge_end"]


async def test_a_session_carries_nothing_before_the_verdict() -> None:
    sessions = Sessions(AwakeClock(), silence_s_max=1.0)
    session = await sessions.open(node_info("n1").node_id, "n1-1", "here")
    assert not sessions.send(session.node_id, pb.OpenSessionResponse(stop_attempt=pb.StopAttempt(attempt_id="a.1")))
    assert sessions.answer(session.node_id, pb.OpenSessionResponse(verdict=pb.Verdict()))
    assert sessions.send(session.node_id, pb.OpenSessionResponse(stop_attempt=pb.StopAttempt(attempt_id="a.1")))
    queued = [session.outgoing.get_nowait(), session.outgoing.get_nowait()]
    assert [message.WhichOneof("message") for message in queued if message] == ["verdict", "stop_attempt"]


async def test_a_second_agent_of_a_live_node_is_refused_with_the_firsts_address(tmp_path: Path) -> None:
    async with cluster_of(quick_config(tmp_path)) as cluster:
        first = await cluster.agent(node_info("n1"))
        await first.next_of("verdict")
        second = await cluster.agent(node_info("n1", incarnation="other"), heartbeat_s=None)
        refusal = await refusal_of(second)
        assert isinstance(refusal, AlreadyRunningError)
        assert "127.0.0.1" in refusal.details["address"]
        assert first.failure is None


async def test_a_reconnect_of_the_same_agent_replaces_its_old_stream(tmp_path: Path) -> None:
    async with cluster_of(quick_config(tmp_path)) as cluster:
        first = await cluster.agent(node_info("n1"))
        await first.next_of("verdict")
        second = await cluster.agent(node_info("n1"))
        await second.next_of("verdict")
        assert isinstance(await refusal_of(first), UnavailableError)
        assert (await node_named(cluster.client(), "n1")).connected


async def test_a_new_agent_takes_over_from_a_silent_one(tmp_path: Path) -> None:
    async with cluster_of(quick_config(tmp_path, node_grace_s=10.0)) as cluster:
        silent = await cluster.agent(node_info("n1"), heartbeat_s=None)
        await silent.next_of("verdict")
        second = await cluster.agent(node_info("n1", incarnation="other"))
        await second.next_of("verdict")


async def test_a_lost_stream_is_not_a_lost_node_until_the_grace_is_over(tmp_path: Path) -> None:
    async with cluster_of(quick_config(tmp_path)) as cluster:
        client = cluster.client()
        agent = await cluster.agent(node_info("n1"))
        job_id, launch = await started_job(cluster, client, agent)
        await agent.close()
        node = await eventually(lambda: _disconnected(client), "the node is noticed to be away")
        assert node.state == common_pb2.NODE_STATE_READY
        held = (HeldAttempt(attempt_id=AttemptId(launch.attempt_id), started=True),)
        again = await cluster.agent(agent.info, held=held)
        assert list((await again.next_of("verdict")).keep_attempt_ids) == [launch.attempt_id]
        assert (await client.job(job_id)).epoch == 1


async def _disconnected(client: SchedulerClient) -> Any:
    node = await node_named(client, "n1")
    return node if not node.connected else None


async def test_a_silent_agent_is_lost_after_the_grace_and_its_job_queued_again(tmp_path: Path) -> None:
    async with cluster_of(quick_config(tmp_path, node_grace_s=0.6)) as cluster:
        client = cluster.client()
        agent = await cluster.agent(node_info("n1"))
        job_id, _ = await started_job(cluster, client, agent)
        agent.fall_silent()

        async def lost() -> bool:
            status = await client.call("GetStatus")
            return status.gpus[0].down == 2 and status.gpus[0].total == 0

        await eventually(lost, "the node is lost")
        job = await client.job(job_id)
        assert job.state == common_pb2.JOB_STATE_QUEUED
        entries = await client.entries(node_id="n1")
        assert any("lost" in entry.message for entry in entries)


@pytest.mark.parametrize("version", [0, PROTOCOL_VERSION + 1])
async def test_an_agent_of_another_protocol_version_is_refused_with_both_versions(tmp_path: Path, version: int) -> None:
    async with cluster_of(quick_config(tmp_path)) as cluster:
        agent = await cluster.agent(node_info("n1"), heartbeat_s=None, protocol=version)
        refusal = await refusal_of(agent)
        assert isinstance(refusal, ProtocolVersionError)
        assert (refusal.details["theirs"], refusal.details["ours"]) == (str(version), str(PROTOCOL_VERSION))
        assert not (await cluster.client().call("ListNodes")).nodes


async def test_a_first_message_that_is_no_registration_is_refused(tmp_path: Path) -> None:
    async with cluster_of(quick_config(tmp_path)) as cluster:
        session = cluster.session(node_info("n1"))
        await session.send(pb.OpenSessionRequest(heartbeat=pb.Heartbeat()))
        session.listen()
        assert "registration" in (await refusal_of(session)).message


async def test_what_cannot_be_read_is_dropped_and_the_session_goes_on(tmp_path: Path) -> None:
    async with cluster_of(quick_config(tmp_path)) as cluster:
        client = cluster.client()
        agent = await cluster.agent(node_info("n1"))
        await agent.send(pb.OpenSessionRequest(worker_report=pb.WorkerReport(attempt_id="a.1", report_json="{")))
        await agent.send(pb.OpenSessionRequest())
        await started_job(cluster, client, agent)


async def test_a_clock_that_is_off_is_warned_of_and_used_for_nothing(tmp_path: Path) -> None:
    async with cluster_of(quick_config(tmp_path)) as cluster:
        client = cluster.client()
        agent = await cluster.agent(node_info("n1"))  # this agent's clock says 0
        job_id, _ = await started_job(cluster, client, agent)
        status = await client.call("GetStatus")
        assert any("clock_skew" in warning and "n1" in warning for warning in status.warnings)
        assert (await client.job(job_id)).run_time_s >= 0


async def test_an_address_that_only_its_own_host_reaches_is_warned_of(tmp_path: Path) -> None:
    async with cluster_of(quick_config(tmp_path)) as cluster:
        client = cluster.client()

        async def warnings_at(node_count: int) -> list[str]:
            state = cluster.running.driver
            await eventually(lambda: len(state.durable_state.nodes) == node_count, "all have registered")
            return [one for one in (await client.call("GetStatus")).warnings if "clock_skew" not in one]

        for name, address in (("n1", "127.0.0.1"), ("n2", "localhost")):
            await cluster.agent(node_info(name, address=address))
        assert await warnings_at(2) == []  # all on one host
        await cluster.agent(node_info("n3", address="192.0.2.7"))
        (told,) = await warnings_at(3)
        assert "loopback address of n1, n2" in told
        assert "--address" in told


async def send_log(agent: AgentSession, request: Any, text: bytes, first: int = 0) -> None:
    """Send a whole log (or from an offset on) as an agent does, whether the reader keeps up or not."""
    for offset in range(first, len(text), 60_000):
        chunk = pb.LogChunk(
            read_id=request.read_id,
            attempt_id=request.attempt_id,
            offset_bytes=offset,
            data=text[offset : offset + 60_000],
        )
        await agent.send(pb.OpenSessionRequest(log_chunk=chunk))
    await agent.send(pb.OpenSessionRequest(log_end=pb.LogEnd(read_id=request.read_id)))


async def test_logs_are_relayed_in_chunks_and_end_with_the_agents_end(tmp_path: Path) -> None:
    async with cluster_of(quick_config(tmp_path)) as cluster:
        client = cluster.client()
        agent = await cluster.agent(node_info("n1"))
        job_id, launch = await started_job(cluster, client, agent)
        reading = client.start_stream("StreamLogs", job_id=job_id, rank=0)
        request = await agent.next_of("read_log")
        assert (request.attempt_id, request.rank, request.follow) == (launch.attempt_id, 0, False)
        text = bytes(range(256)) * 20_000  # one line of 5 MB
        await send_log(agent, request, text)
        while not reading.done():  # a reader that falls behind makes the scheduler ask again
            again = asyncio.create_task(agent.next_of("read_log"))
            await asyncio.wait([reading, again], return_when=asyncio.FIRST_COMPLETED)
            if again.done():
                await send_log(agent, again.result(), text)
            again.cancel()
        chunks = await reading
        assert b"".join(chunk.data for chunk in chunks) == text
        assert max(chunk.ByteSize() for chunk in chunks) < 64 * 1024


async def test_a_reader_that_falls_behind_is_not_sent_again_what_it_has(tmp_path: Path) -> None:
    async with cluster_of(quick_config(tmp_path)) as cluster:
        client = cluster.client()
        agent = await cluster.agent(node_info("n1"))
        job_id, _ = await started_job(cluster, client, agent)
        reading = client.start_stream("StreamLogs", job_id=job_id, rank=0)
        text, begins = bytes(range(256)) * 40_000, []
        while not reading.done():
            asked = asyncio.create_task(agent.next_of("read_log"))
            await asyncio.wait([reading, asked], return_when=asyncio.FIRST_COMPLETED)
            if asked.done():
                begins.append(asked.result().offset_bytes_by_rank.get(0, 0))
                await send_log(agent, asked.result(), text, begins[-1])
            asked.cancel()
        assert b"".join(chunk.data for chunk in await reading) == text
        assert len(begins) > 1, "it fell behind"
        assert begins == sorted(set(begins))


async def test_the_log_of_a_rank_comes_from_the_node_it_ran_on_also_with_one_process_a_node(tmp_path: Path) -> None:
    async with cluster_of(quick_config(tmp_path)) as cluster:
        client = cluster.client()
        agents = [await cluster.agent(node_info(name)) for name in ("n1", "n2")]
        for agent in agents:
            await agent.next_of("verdict")
        spec = command_spec("x", count=4)
        assert spec.command is not None
        command = spec.command.model_copy(update={"processes_per_gpu": 0})
        job_id = await client.submit(spec.model_copy(update={"command": command}))
        launches = [await agent.next_of("launch") for agent in agents]
        (rank,) = launches[1].node_ranks
        reading = client.start_stream("StreamLogs", job_id=job_id, rank=rank)
        await send_log(agents[1], await agents[1].next_of("read_log"), b"here")
        assert [chunk.data for chunk in await reading] == [b"here"]
        with pytest.raises(NotFoundError, match="has no rank 2"):
            await client.stream("StreamLogs", job_id=job_id, rank=2)


async def test_logs_of_a_job_that_never_ran_are_not_found(tmp_path: Path) -> None:
    async with cluster_of(quick_config(tmp_path)) as cluster:
        client = cluster.client()
        job_id = await client.submit(train_spec("x"))
        with pytest.raises(NotFoundError, match="never started"):
            await client.stream("StreamLogs", job_id=job_id)


async def test_logs_of_a_node_out_of_reach_say_so(tmp_path: Path) -> None:
    async with cluster_of(quick_config(tmp_path)) as cluster:
        client = cluster.client()
        agent = await cluster.agent(node_info("n1"))
        job_id, _ = await started_job(cluster, client, agent)
        await agent.close()
        await eventually(lambda: _disconnected(client), "the node is noticed to be away")
        with pytest.raises(UnavailableError, match="out of reach"):
            await client.stream("StreamLogs", job_id=job_id)


async def test_a_drained_node_shows_who_and_why(tmp_path: Path) -> None:
    async with cluster_of(quick_config(tmp_path)) as cluster:
        client = cluster.client(user="root")
        agent = await cluster.agent(node_info("n1"))
        await started_job(cluster, client, agent)
        node = (await client.call("DrainNode", node_id="n1", why="disk", request_id="d")).node
        assert (node.drain_by, node.drain_why, len(node.attempt_ids)) == ("root", "disk", 1)
        counts = (await client.call("GetStatus")).gpus[0]
        assert (counts.draining, counts.free, counts.total) == (2, 0, 2)
        node = (await client.call("UndrainNode", node_id="n1", request_id="u")).node
        assert not node.HasField("drain_why")
        assert isinstance(await client.failure("DrainNode", node_id="n9", why="x", request_id="x"), NotFoundError)


async def test_another_incarnation_after_a_clean_end_is_welcome(tmp_path: Path) -> None:
    async with cluster_of(quick_config(tmp_path)) as cluster:
        client = cluster.client()
        agent = await cluster.agent(node_info("n1"))
        await agent.next_of("verdict")
        await agent.close()
        await eventually(lambda: _disconnected(client), "the node is noticed to be away")
        second = await cluster.agent(replace(agent.info, incarnation="second"))
        await second.next_of("verdict")


async def test_the_logged_inputs_replay_to_the_same_history(tmp_path: Path) -> None:
    config = quick_config(tmp_path)
    async with cluster_of(config) as cluster:
        client = cluster.client()
        agent = await cluster.agent(node_info("n1", gpus=4))
        job_id, launch = await started_job(cluster, client, agent)
        await client.submit(train_spec("y"))
        end = NodeEnd(node_id=agent.info.node_id, kind=EndKind.FAILED, message="rank 0 exited with 1")
        message = codec.attempt_ended_to_proto(AttemptId(launch.attempt_id), end)
        await agent.send(pb.OpenSessionRequest(attempt_ended=message))
        await agent.next_of("acknowledge_end")
        await client.call("CancelJobs", job_ids=[job_id], request_id="c")
    store = SqliteStore.open(config.db)
    inputs = [(at_s, event) for _, at_s, event in store.reader.inputs(0, 10_000)]
    recorded = store.reader.history(0, HistoryQuery(), 10_000)
    store.close()
    engine = Engine(make_policy(config.policy), engine_config(config))
    assert tuple(entry for step in replay(engine, inputs) for entry in step.history) == recorded


async def test_two_hundred_followers_starve_neither_status_nor_heartbeats(tmp_path: Path) -> None:
    async with cluster_of(quick_config(tmp_path, node_grace_s=15.0)) as cluster:
        agents = [await cluster.agent(node_info(f"n{index}")) for index in range(3)]
        clients = [cluster.client() for _ in range(20)]
        followers = [
            client.start_stream("StreamEvents", follow=True, count_max=1_000) for client in clients for _ in range(10)
        ]
        for _ in range(20):
            await clients[0].submit(train_spec("x"))
            await clients[0].call("GetStatus")
        assert not any(follower.done() for follower in followers)
        assert all(agent.failure is None for agent in agents)
        for follower in followers:
            follower.cancel()
        await asyncio.gather(*followers, return_exceptions=True)
