"""Requests that are said again, as a client does whose connection broke: each is done once and answered each time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from arena.domain.cluster import ClusterShape
from arena.domain.events import JobsCancelled, JobSubmitted, JobWishChanged, NodeDrainChanged
from arena.domain.grid import Grid
from arena.domain.job import JobSpec
from arena.engine.ports import Step
from arena.errors import ArenaError, ResourceExhaustedError
from arena.rpc import codec
from arena.rpc.v1 import common_pb2
from tests.builders import node_info, scaling_grid, train_spec
from tests.fakes.memory_store import MemoryStore
from tests.fakes.running_scheduler import Cluster, cluster_of, eventually, quick_config
from tests.fakes.scheduler_client import REQUESTS, SchedulerClient


class Held:
    """Something of the scheduler that goes on only once it is let go."""

    def __init__(self) -> None:
        self.is_reached, self.is_let_go = threading.Event(), threading.Event()

    def pass_through(self) -> None:
        self.is_reached.set()
        self.is_let_go.wait()


class HeldPlanner(Held):
    version = "held"

    def grid(self, spec: JobSpec, shape: ClusterShape) -> Grid:
        self.pass_through()
        return scaling_grid("cpu", [(1,)])


class HeldStore(Held, MemoryStore):
    """Holds the transactions with an event of some kind, and has them fail while there is an ``error``."""

    def __init__(self, *kinds: type, error: ArenaError | None = None) -> None:
        Held.__init__(self)
        MemoryStore.__init__(self)
        self.kinds, self.error = kinds, error

    def commit(self, steps: Sequence[Step]) -> None:
        if any(isinstance(step.event, self.kinds) for step in steps):
            self.pass_through()
            if self.error is not None:
                raise self.error
        super().commit(steps)


@asynccontextmanager
async def held_at(place: str, directory: Path) -> AsyncIterator[tuple[Cluster, Held]]:
    """A scheduler with a node that holds a submission at a place."""
    planner, store = HeldPlanner(), HeldStore(JobSubmitted)
    held: Held = planner if place == "planner" else store
    (store if held is planner else planner).is_let_go.set()
    try:
        async with cluster_of(quick_config(directory), source=planner, store=store) as cluster:
            await (await cluster.agent(node_info("n1"))).next_of("verdict")
            yield cluster, held
    finally:
        held.is_let_go.set()


async def gone(call: asyncio.Task[object], cluster: Cluster) -> None:
    """End a call as a broken connection does, and return once the scheduler has heard of it."""
    call.cancel()
    await asyncio.wait([call])
    for _ in range(3):
        await cluster.client().call("GetStatus")


@pytest.mark.parametrize("place", ["planner", "store"])
@pytest.mark.parametrize("fields", [{}, {"deadline_s": 1_000.0}])
async def test_a_submission_said_again_while_the_first_call_breaks_off_is_answered_with_its_one_job(
    tmp_path: Path, place: str, fields: dict[str, Any]
) -> None:
    spec = codec.spec_to_proto(train_spec("x", stop={"steps": 100}, **fields))
    async with held_at(place, tmp_path) as (cluster, held):
        first = asyncio.create_task(cluster.client(user="ann").call("SubmitJob", spec=spec, request_id="r"))
        await asyncio.to_thread(held.is_reached.wait)
        again = asyncio.create_task(cluster.client(user="ann").call("SubmitJob", spec=spec, request_id="r"))
        await cluster.client().call("GetStatus")
        await gone(first, cluster)
        held.is_let_go.set()
        answer = await again
        assert (await cluster.client().call("ListJobs")).total_count == 1
        assert (await cluster.client(user="ann").job(answer.job_id)).name == "x"
        assert answer.HasField("deadline") is ("deadline_s" in fields)


@pytest.mark.parametrize("place", ["planner", "store"])
async def test_a_submission_that_nobody_waits_for_any_more_is_found_by_who_says_it_again(
    tmp_path: Path, place: str
) -> None:
    spec = codec.spec_to_proto(train_spec("x"))
    async with held_at(place, tmp_path) as (cluster, held):
        first = asyncio.create_task(cluster.client(user="ann").call("SubmitJob", spec=spec, request_id="r"))
        await asyncio.to_thread(held.is_reached.wait)
        await gone(first, cluster)
        held.is_let_go.set()
        answer = await cluster.client(user="ann").call("SubmitJob", spec=spec, request_id="r")
        await eventually(lambda: cluster.running.driver.durable_state.jobs, "it is there")
        assert list(cluster.running.driver.durable_state.jobs) == [answer.job_id]
        assert (await cluster.client().call("ListJobs")).total_count == 1


async def test_who_gives_up_before_the_job_is_recorded_has_submitted_nothing(tmp_path: Path) -> None:
    """As by Ctrl-C while the answer to a deadline is worked out."""
    spec = codec.spec_to_proto(train_spec("x", stop={"steps": 100}, deadline_s=1_000.0))
    async with held_at("planner", tmp_path) as (cluster, held):
        call = asyncio.create_task(cluster.client(user="ann").call("SubmitJob", spec=spec, request_id="r"))
        await asyncio.to_thread(held.is_reached.wait)
        await gone(call, cluster)
        held.is_let_go.set()
        await cluster.client(user="ann").submit(train_spec("y"))
        assert [job.name for job in (await cluster.client().call("ListJobs")).jobs] == ["y"]


async def test_a_submission_that_fails_fails_for_all_who_said_it_and_may_be_said_again(tmp_path: Path) -> None:
    store = HeldStore(JobSubmitted, error=ResourceExhaustedError("the disk is full"))
    spec = codec.spec_to_proto(train_spec("x"))
    try:
        async with cluster_of(quick_config(tmp_path), store=store) as cluster:
            clients = [cluster.client(user="ann") for _ in range(2)]
            calls = [asyncio.create_task(client.failure("SubmitJob", spec=spec, request_id="r")) for client in clients]
            await asyncio.to_thread(store.is_reached.wait)
            store.is_let_go.set()
            assert [type(error) for error in await asyncio.gather(*calls)] == [ResourceExhaustedError] * 2
            store.error = None
            assert (await clients[0].call("SubmitJob", spec=spec, request_id="r")).is_new
    finally:
        store.is_let_go.set()


CHANGES = {
    "HoldJob": "ReleaseJob",
    "ReleaseJob": "HoldJob",
    "DrainNode": "UndrainNode",
    "UndrainNode": "DrainNode",
    "CancelJobs": "SubmitJob",
}
"""Every request that changes something, and one that changes it back or otherwise."""


def fields_of(name: str, job_id: str) -> dict[str, Any]:
    """What a request says beside its id."""
    fields: dict[str, dict[str, Any]] = {
        "HoldJob": {"job_id": job_id},
        "ReleaseJob": {"job_id": job_id},
        "DrainNode": {"node_id": "n1", "why": "fans", "within_s": 7200.0},
        "UndrainNode": {"node_id": "n1"},
        "CancelJobs": {"all_mine": True},
        "SubmitJob": {"spec": codec.spec_to_proto(train_spec("later"))},
    }
    return fields[name]


async def as_it_is(client: SchedulerClient) -> list[Any]:
    """What there is of jobs and nodes, as far as people change it."""
    jobs = (await client.call("ListJobs")).jobs
    nodes = (await client.call("ListNodes")).nodes
    return [
        *((job.job_id, job.state) for job in jobs),
        *((node.node_id, node.state, node.drain_at_s, node.drain_until_s) for node in nodes),
    ]


def test_every_request_with_an_id_is_here() -> None:
    with_id = {name for name, kind in REQUESTS.items() if "request_id" in kind.DESCRIPTOR.fields_by_name}
    assert with_id == set(CHANGES) | {"SubmitJob"}


@pytest.mark.parametrize("name", CHANGES)
async def test_a_request_said_again_is_answered_and_not_done_again(tmp_path: Path, name: str) -> None:
    async with cluster_of(quick_config(tmp_path)) as cluster:
        await (await cluster.agent(node_info("n1"))).next_of("verdict")
        client = cluster.client(user="ann")
        job_id = await client.submit(train_spec("x", gpus={"count": 99}), allow_infeasible=True)
        if name in {"ReleaseJob", "UndrainNode"}:
            await client.call(CHANGES[name], **fields_of(CHANGES[name], job_id), request_id="before")
        first = await client.call(name, **fields_of(name, job_id), request_id="r")
        assert await client.call(name, **fields_of(name, job_id), request_id="r") == first
        await client.call(CHANGES[name], **fields_of(CHANGES[name], job_id), request_id="s")
        then = await as_it_is(client)
        assert await client.call(name, **fields_of(name, job_id), request_id="r") == first
        assert await as_it_is(client) == then
        await client.call(name, **fields_of(name, job_id), request_id="another")
        assert await as_it_is(client) != then


@pytest.mark.parametrize("name", ["HoldJob", "DrainNode", "CancelJobs"])
async def test_a_request_said_again_while_the_first_call_breaks_off_is_done_once(tmp_path: Path, name: str) -> None:
    store = HeldStore(JobWishChanged, JobsCancelled, NodeDrainChanged)
    try:
        async with cluster_of(quick_config(tmp_path), store=store) as cluster:
            await (await cluster.agent(node_info("n1"))).next_of("verdict")
            client = cluster.client(user="ann")
            job_id = await client.submit(train_spec("x", gpus={"count": 99}), allow_infeasible=True)
            fields = fields_of(name, job_id)
            calls = [asyncio.create_task(client.call(name, **fields, request_id="r")) for _ in range(2)]
            await asyncio.to_thread(store.is_reached.wait)
            await gone(calls[0], cluster)
            store.is_let_go.set()
            answer = await calls[1]
            assert await client.call(name, **fields, request_id="r") == answer
            assert sum(isinstance(event, store.kinds) for _, event in store.inputs_logged) == 1
    finally:
        store.is_let_go.set()


async def test_a_request_that_failed_is_done_when_it_is_said_again(tmp_path: Path) -> None:
    store = HeldStore(JobWishChanged, error=ResourceExhaustedError("the disk is full"))
    store.is_let_go.set()
    async with cluster_of(quick_config(tmp_path), store=store) as cluster:
        client = cluster.client(user="ann")
        job_id = await client.submit(train_spec("x"))
        refusal = await client.failure("HoldJob", job_id=job_id, request_id="r")
        assert isinstance(refusal, ResourceExhaustedError)
        store.error = None
        held = await client.call("HoldJob", job_id=job_id, request_id="r")
        assert held.job.state == common_pb2.JOB_STATE_HELD


async def test_what_one_user_was_answered_is_not_what_another_is(tmp_path: Path) -> None:
    async with cluster_of(quick_config(tmp_path)) as cluster:
        job_ids = [await cluster.client(user=user).submit(train_spec("x")) for user in ("ann", "bob")]
        answers = [
            await cluster.client(user=user).call("CancelJobs", all_mine=True, request_id="r") for user in ("ann", "bob")
        ]
        assert [list(answer.cancelled_job_ids) for answer in answers] == [[job_id] for job_id in job_ids]


async def test_other_words_under_the_same_id_are_another_request(tmp_path: Path) -> None:
    async with cluster_of(quick_config(tmp_path)) as cluster:
        client = cluster.client(user="ann")
        job_ids = [await client.submit(train_spec("x")) for _ in range(2)]
        for job_id in job_ids:
            held = await client.call("HoldJob", job_id=job_id, request_id="same")
            assert held.job.job_id == job_id
