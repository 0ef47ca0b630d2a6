"""Writes that fail: what could not be stored is said again, unless it is no longer true, and the loop goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from arena.domain.events import HeldAttempt, JobSubmitted, NodeDisconnected
from arena.domain.launch import AttemptId
from arena.engine.ports import Step
from arena.errors import ArenaError, InternalError, ResourceExhaustedError
from arena.rpc.v1 import agent_service_pb2 as pb
from arena.rpc.v1 import common_pb2
from arena_scheduler import loop
from arena_scheduler.loop import PROBE_INTERVAL_S
from tests.builders import node_info, train_spec
from tests.fakes.memory_store import MemoryStore
from tests.fakes.running_scheduler import cluster_of, eventually, quick_config


class FailingStore(MemoryStore):
    """Refuses batches in which one kind of event occurs, as often as it is told to."""

    def __init__(self, kind: type, error: Exception, times: int) -> None:
        super().__init__()
        self.kind, self.error, self.times_left = kind, error, times

    def commit(self, steps: Sequence[Step]) -> None:
        """Refuse, or take all steps."""
        if self.times_left and any(isinstance(step.event, self.kind) for step in steps):
            self.times_left -= 1
            raise self.error
        super().commit(steps)


async def test_a_late_word_about_an_old_stream_does_not_take_a_node_that_is_back(tmp_path: Path) -> None:
    store = FailingStore(NodeDisconnected, ResourceExhaustedError("the disk is full"), times=1)
    async with cluster_of(quick_config(tmp_path, node_grace_s=15.0), store=store) as cluster:
        client = cluster.client()
        agent = await cluster.agent(node_info("n1"))
        job_id = await client.submit(train_spec("x", gpus={"max": 2}))
        launch = await agent.next_of("launch")
        await agent.send(pb.OpenSessionRequest(attempt_started=pb.AttemptStarted(attempt_id=launch.attempt_id)))
        await agent.close()
        await eventually(lambda: store.times_left == 0, "the word that it is gone is lost")
        held = (HeldAttempt(attempt_id=AttemptId(launch.attempt_id), started=True),)
        again = await cluster.agent(agent.info, held=held)
        await again.next_of("verdict")
        before, began_at_s = len(store.inputs_logged), (await client.call("GetStatus")).now_s

        async def is_past() -> bool:
            return bool((await client.call("GetStatus")).now_s > began_at_s + PROBE_INTERVAL_S + 0.2)

        await eventually(is_past, "the word would have been said again")
        await client.submit(train_spec("y"))  # and would have been taken in before this
        assert not [event for _, event in store.inputs_logged[before:] if isinstance(event, NodeDisconnected)]
        job = await client.job(job_id)
        assert (job.state, job.epoch) == (common_pb2.JOB_STATE_STARTING, 1)


class Roomy(MemoryStore):
    """Counts how often it was asked to see to its room."""

    kept_count = 0

    def keep_room(self) -> None:
        """Count."""
        self.kept_count += 1


async def test_the_store_sees_to_its_room_now_and_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "ROOM_INTERVAL_S", 0.05)
    store = Roomy()
    async with cluster_of(quick_config(tmp_path), store=store):
        await eventually(lambda: store.kept_count >= 3, "it was asked again and again")


async def test_a_store_that_fails_in_no_way_it_should_fails_the_record_and_nothing_else(tmp_path: Path) -> None:
    store = FailingStore(JobSubmitted, ValueError("surrogates not allowed"), times=2)
    async with cluster_of(quick_config(tmp_path), store=store) as cluster:
        client = cluster.client()
        outcomes = await asyncio.gather(
            client.submit(train_spec("x")), client.submit(train_spec("y")), return_exceptions=True
        )
        assert any(isinstance(outcome, InternalError) for outcome in outcomes)
        assert all(isinstance(outcome, str | ArenaError) for outcome in outcomes)
        store.times_left = 0
        await client.submit(train_spec("z"))
