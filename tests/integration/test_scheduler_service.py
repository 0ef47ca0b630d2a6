"""The services as people use them: submit once, roles, limits, pages, refusals, a disk that is full."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import grpc
import pytest
import trustme
import yaml

from arena.domain.cluster import ClusterShape
from arena.domain.events import Tick
from arena.domain.grid import Grid
from arena.domain.job import JobId, JobSpec
from arena.domain.records import EntryKind, HistoryEntry, Wish
from arena.engine.ports import Step
from arena.errors import (
    AlreadyRunningError,
    ArenaError,
    AuthenticationError,
    IllegalTransitionError,
    InfeasibleError,
    InternalError,
    NotFoundError,
    PermissionDeniedError,
    ProtocolVersionError,
    ResourceExhaustedError,
    SpecError,
    UserError,
)
from arena.rpc import codec
from arena.rpc.v1 import agent_service_pb2 as pb
from arena.rpc.v1 import common_pb2
from arena.rpc.version import PROTOCOL_VERSION
from arena_scheduler.app import start
from arena_scheduler.config import SchedulerConfig
from tests.builders import command_spec, node_info, train_spec
from tests.fakes.memory_store import MemoryStore
from tests.fakes.running_scheduler import Cluster, cluster_of, eventually, quick_config


async def test_a_repeated_request_makes_one_job_also_at_once_and_after_a_restart(tmp_path: Path) -> None:
    spec = codec.spec_to_proto(train_spec("x"))
    async with cluster_of(quick_config(tmp_path)) as cluster:
        client = cluster.client()
        calls = [client.call("SubmitJob", spec=spec, request_id="r") for _ in range(5)]
        answers = await asyncio.gather(*calls)
        assert len({answer.job_id for answer in answers}) == 1
        assert sorted(answer.is_new for answer in answers) == [False] * 4 + [True]
    async with cluster_of(quick_config(tmp_path)) as cluster:
        again = await cluster.client().call("SubmitJob", spec=spec, request_id="r")
        assert (again.job_id, again.is_new) == (answers[0].job_id, False)
        assert (await cluster.client().call("ListJobs")).total_count == 1


async def test_a_restart_keeps_jobs_history_and_counts(tmp_path: Path) -> None:
    async with cluster_of(quick_config(tmp_path)) as cluster:
        client = cluster.client()
        first, second = [await client.submit(train_spec(name)) for name in "ab"]
        await client.call("CancelJobs", job_ids=[first], request_id="c")
        before = await client.entries()
    async with cluster_of(quick_config(tmp_path)) as cluster:
        client = cluster.client()
        status = await client.call("GetStatus")
        assert {item.state: item.count for item in status.jobs} == {
            common_pb2.JOB_STATE_QUEUED: 1,
            common_pb2.JOB_STATE_CANCELLED: 1,
        }
        assert [job.job_id for job in status.waiting_jobs] == [second]
        assert (await client.entries())[: len(before)] == before
        third = await client.submit(train_spec("c"))
        assert third not in {first, second}


async def test_a_job_is_asked_for_its_grid_again_after_a_restart(tmp_path: Path) -> None:
    class Never:
        version = "never"

        def grid(self, spec: JobSpec, shape: ClusterShape) -> Grid:
            raise InternalError("no grid today")

    async with cluster_of(quick_config(tmp_path), source=Never()) as cluster:
        client = cluster.client()
        agent = await cluster.agent(node_info("n1"))
        await agent.next_of("verdict")
        await client.submit(train_spec("x"), allow_infeasible=True)
    async with cluster_of(quick_config(tmp_path)) as cluster:
        agent = await cluster.agent(node_info("n1"))
        await agent.next_of("launch")


async def test_a_job_that_no_group_can_hold_is_refused_with_the_largest_that_could(tmp_path: Path) -> None:
    async with cluster_of(quick_config(tmp_path)) as cluster:
        client = cluster.client()
        for name in ("n1", "n2"):
            await (await cluster.agent(node_info(name, gpus=2))).next_of("verdict")
        await _settled(cluster, 4)
        for spec in (command_spec(count=16), train_spec("x", kind="rigid", gpus={"count": 16})):
            refusal = await client.failure("SubmitJob", spec=codec.spec_to_proto(spec), request_id=spec.name)
            assert isinstance(refusal, InfeasibleError)
            assert refusal.exit_code == 4
            assert refusal.message.count("largest feasible now: 4") == 1
            assert refusal.details["largest_feasible"] == "4"
        job_id = await client.submit(command_spec(count=16), allow_infeasible=True)
        assert (await client.job(job_id)).state == common_pb2.JOB_STATE_QUEUED
        assert (await client.call("ListJobs")).total_count == 1


async def _settled(cluster: Cluster, gpu_count: int) -> None:
    await eventually(lambda: cluster.running.driver.durable_state.shape.gpu_count == gpu_count, "the shape has settled")


async def test_a_specification_that_is_too_large_is_refused_with_both_sizes(tmp_path: Path) -> None:
    async with cluster_of(quick_config(tmp_path)) as cluster:
        spec = codec.spec_to_proto(command_spec())
        spec.command.env["DATA"] = "x" * 10_000_000
        refusal = await cluster.client().failure("SubmitJob", spec=spec, request_id="r")
        assert isinstance(refusal, SpecError)
        assert "spec 9.5 MiB > 976.6 KiB" in refusal.message
        await cluster.client().submit(train_spec("x"))


async def test_wrong_requests_are_the_users_errors_and_harm_nobody(tmp_path: Path) -> None:
    async with cluster_of(quick_config(tmp_path)) as cluster:
        client = cluster.client()
        spec = codec.spec_to_proto(train_spec("x"))
        spec.train.global_batch = 0
        expected: list[tuple[str, dict[str, object], type[ArenaError]]] = [
            ("SubmitJob", {"spec": spec, "request_id": "r"}, SpecError),
            ("SubmitJob", {"spec": codec.spec_to_proto(train_spec("x"))}, UserError),
            ("SubmitJob", {"request_id": "r"}, UserError),
            ("GetJob", {"job_id": "nobody-1"}, NotFoundError),
            ("CancelJobs", {"job_ids": ["nobody-1"], "request_id": "c"}, NotFoundError),
            ("CancelJobs", {"request_id": "c"}, UserError),
            ("HoldJob", {"job_id": "nobody-1", "request_id": "h"}, NotFoundError),
            ("ListJobs", {"page_token": "!"}, UserError),
            ("ListJobs", {"states": [0]}, UserError),
            ("DrainNode", {"node_id": "n1", "request_id": "d"}, UserError),
        ]
        for name, fields, kind in expected:
            assert isinstance(await client.failure(name, **fields), kind), name
        with pytest.raises(UserError, match="no_such_kind"):
            await client.entries(kinds=["no_such_kind"])
        await client.submit(train_spec("x"))


async def test_hold_release_cancel(tmp_path: Path) -> None:
    async with cluster_of(quick_config(tmp_path)) as cluster:
        client = cluster.client(user="ann")
        job_id = await client.submit(train_spec("x"))
        held = await client.call("HoldJob", job_id=job_id, request_id="h")
        assert held.job.state == common_pb2.JOB_STATE_HELD
        released = await client.call("ReleaseJob", job_id=job_id, request_id="r")
        assert released.job.state == common_pb2.JOB_STATE_QUEUED
        answer = await client.call("CancelJobs", job_ids=[job_id], request_id="c")
        assert list(answer.cancelled_job_ids) == [job_id]
        answer = await client.call("CancelJobs", job_ids=[job_id], request_id="c2")
        assert list(answer.ended_job_ids) == [job_id]
        refusal = await client.failure("HoldJob", job_id=job_id, request_id="h2")
        assert isinstance(refusal, IllegalTransitionError)
        assert "cancelled" in refusal.message


class CountingStore(MemoryStore):
    """Keeps what each of its transactions was made of."""

    def __init__(self) -> None:
        super().__init__()
        self.transactions: list[tuple[Step, ...]] = []

    def commit(self, steps: Sequence[Step]) -> None:
        super().commit(steps)
        self.transactions.append(tuple(steps))


async def test_a_thousand_jobs_are_cancelled_in_one_transaction(tmp_path: Path) -> None:
    store = CountingStore()
    async with cluster_of(quick_config(tmp_path), store=store) as cluster:
        client = cluster.client(user="ann")
        other = await cluster.client(user="bob").submit(train_spec("x"))
        for _ in range(10):
            await asyncio.gather(*(client.submit(train_spec("x")) for _ in range(100)))
        before = len(store.transactions)
        answer = await client.call("CancelJobs", all_mine=True, request_id="c")
        assert len(answer.cancelled_job_ids) == 1000
        assert len(store.transactions) - before <= 2  # its own, and perhaps a tick's
        assert (await client.job(other)).state == common_pb2.JOB_STATE_QUEUED


@pytest.mark.parametrize("policy", ["fcfs", "elastic", "arena"])
async def test_however_many_jobs_are_cancelled_at_once_it_is_decided_once(tmp_path: Path, policy: str) -> None:
    store = CountingStore()
    async with cluster_of(quick_config(tmp_path, policy=policy), store=store) as cluster:
        client = cluster.client(user="ann")
        await (await cluster.agent(node_info("n1"))).next_of("verdict")
        every_id = [await client.submit(command_spec(f"x{index}")) for index in range(44)]
        job_ids = every_id[:40]  # others wait, so that there is something to decide
        await eventually(lambda: len(cluster.running.driver.durable_state.grids) == len(every_id), "all are planned")
        before = len(store.transactions)
        answer = await client.call("CancelJobs", job_ids=job_ids, request_id="c")
        assert list(answer.cancelled_job_ids) == job_ids
        steps = [step for some in store.transactions[before:] for step in some]
        cancelled = [job.job_id for step in steps for job in step.jobs if job.wish is Wish.CANCEL]
        assert set(cancelled) == set(job_ids)
        assert len([some for some in store.transactions[before:] if _cancels(some)]) == 1
        assert sum(step.decision is not None for step in steps if _cancels((step,))) == 1
        assert {
            job.job_id for job in store.get_jobs([*map(JobId, job_ids)]).values() if job.wish is Wish.CANCEL
        } == set(job_ids)


def _cancels(steps: Iterable[Step]) -> bool:
    return any(job.wish is Wish.CANCEL for step in steps for job in step.jobs)


async def test_events_are_numbered_filtered_and_followed(tmp_path: Path) -> None:
    async with cluster_of(quick_config(tmp_path)) as cluster:
        client = cluster.client()
        await client.submit(train_spec("a"))
        after = (await client.entries())[-1].index
        following = client.start_stream(
            "StreamEvents", follow=True, kinds=["job_submitted"], after_index=after, count_max=1
        )
        second = await cluster.client().submit(train_spec("b"))
        seen = [entry for message in await following for entry in message.entries]
        assert [entry.job_id for entry in seen][-1] == second
        entries = await client.entries()
        assert [entry.index for entry in entries] == list(range(1, len(entries) + 1))
        assert {entry.job_id for entry in await client.entries(job_id=second)} == {second}
        assert json.loads(seen[-1].data_json)["name"] == "b"


async def test_a_client_gets_only_the_kinds_of_events_it_understands(tmp_path: Path) -> None:
    store = MemoryStore()
    evaluated = HistoryEntry(index=1, at_s=0.0, kind=EntryKind.JOB_EVALUATED, message="")
    progress = HistoryEntry(index=2, at_s=0.0, kind=EntryKind.JOB_PROGRESS, message="")
    store.commit([Step(event=Tick(), at_s=0.0, history=(evaluated, progress))])
    async with cluster_of(quick_config(tmp_path), store=store) as cluster:
        client = cluster.client()

        async def indexes(**fields: object) -> set[int]:
            return {entry.index for entry in await client.entries(**fields)} & {1, 2}

        assert await indexes() == {2}  # a client older than evaluations could not read them
        assert await indexes(kinds_understood=[kind.value for kind in EntryKind]) == {1, 2}
        assert await indexes(kinds_understood=["job_evaluated", "of_a_later_version"]) == {1}
        assert await indexes(kinds_understood=["of_a_later_version"]) == {2}
        assert await indexes(kinds=["job_evaluated"]) == {1}


async def test_lists_are_paged_and_complete(tmp_path: Path) -> None:
    async with cluster_of(quick_config(tmp_path), store=MemoryStore()) as cluster:
        client = cluster.client(user="ann")
        made = [await client.submit(train_spec("x")) for _ in range(25)]
        token, listed = "", []
        while True:
            page = await client.call("ListJobs", page_size=10, page_token=token)
            listed += [job.job_id for job in page.jobs]
            token = page.next_page_token
            if not token:
                break
        assert listed == made[::-1]
        assert (await client.call("ListJobs", user="bob")).total_count == 0


def tokens_file(directory: Path) -> Path:
    grants = {"ann-token": ("ann", "user"), "bob-token": ("bob", "user"), "root-token": ("root", "admin")}
    path = directory / "tokens.yaml"
    path.write_text(
        yaml.safe_dump(
            {
                hashlib.sha256(token.encode()).hexdigest(): {"user": user, "role": role}
                for token, (user, role) in {**grants, "agent-token": ("nodes", "agent")}.items()
            }
        )
    )
    return path


async def test_users_see_states_of_all_and_specifications_of_their_own(tmp_path: Path) -> None:
    async with cluster_of(quick_config(tmp_path, tokens=tokens_file(tmp_path))) as cluster:
        ann, bob, root = (cluster.client(token=f"{name}-token") for name in ("ann", "bob", "root"))
        job_id = await ann.submit(command_spec("secret"))
        for client, sees in ((ann, True), (bob, False), (root, True)):
            job = await client.job(job_id)
            assert (job.user, job.state) == ("ann", common_pb2.JOB_STATE_QUEUED)
            assert job.HasField("spec") is sees
        assert [job.user for job in (await bob.call("GetStatus")).waiting_jobs] == ["ann"]
        for name in ("CancelJobs", "HoldJob", "ReleaseJob"):
            fields = {"job_ids": [job_id]} if name == "CancelJobs" else {"job_id": job_id}
            assert isinstance(await bob.failure(name, request_id="x", **fields), PermissionDeniedError)
        with pytest.raises(PermissionDeniedError):
            await bob.stream("StreamLogs", job_id=job_id)
        assert isinstance(await bob.failure("DrainNode", node_id="n1", why="x", request_id="d"), PermissionDeniedError)
        spec = codec.spec_to_proto(train_spec("x", user="ann"))
        assert isinstance(await bob.failure("SubmitJob", spec=spec, request_id="s"), PermissionDeniedError)
        for_ann = await root.call("SubmitJob", spec=spec, request_id="s")
        assert (await ann.job(for_ann.job_id)).user == "ann"


async def test_callers_without_a_known_token_are_refused(tmp_path: Path) -> None:
    async with cluster_of(quick_config(tmp_path, tokens=tokens_file(tmp_path))) as cluster:
        for client in (cluster.client(), cluster.client(token="wrong"), cluster.client(user="root")):
            assert isinstance(await client.failure("GetStatus"), AuthenticationError)
        as_user = cluster.session(node_info("n1"), metadata=(("authorization", "Bearer ann-token"),))
        # The server may have closed the stream before the whole registration is written.
        with suppress(grpc.aio.AioRpcError):
            await as_user.register()
        assert (await as_user.ended()).code() is grpc.StatusCode.PERMISSION_DENIED
        as_agent = cluster.session(node_info("n1"), metadata=(("authorization", "Bearer agent-token"),))
        await as_agent.register()
        await as_agent.next_of("verdict")


@pytest.mark.parametrize("version", [0, PROTOCOL_VERSION + 1])
async def test_a_client_of_another_protocol_version_is_told_who_is_older(tmp_path: Path, version: int) -> None:
    async with cluster_of(quick_config(tmp_path)) as cluster:
        refusal = await cluster.client(protocol=version).failure("GetStatus")
        assert isinstance(refusal, ProtocolVersionError)
        assert refusal.exit_code == 7
        assert "\n" not in refusal.message
        assert f"version {version}" in refusal.message


def test_off_loopback_it_demands_tokens_and_tls(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--tokens and --tls-cert"):
        SchedulerConfig(db=tmp_path / "arena.db", host="0.0.0.0")
    with pytest.raises(UserError, match="--tls-cert"):
        SchedulerConfig(db=tmp_path / "arena.db", host="10.0.0.1", tokens=tmp_path / "tokens.yaml")
    SchedulerConfig(db=tmp_path / "arena.db", host="::1")


async def test_with_tls_it_serves_those_who_trust_its_authority(tmp_path: Path) -> None:
    authority = trustme.CA()
    pair = authority.issue_cert("127.0.0.1", "localhost")
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    pair.cert_chain_pems[0].write_to_path(cert)
    pair.private_key_pem.write_to_path(key)
    config = quick_config(tmp_path, tokens=tokens_file(tmp_path), tls_cert=cert, tls_key=key)
    async with cluster_of(config) as cluster:
        credentials = grpc.ssl_channel_credentials(authority.cert_pem.bytes())
        client = cluster.client(token="ann-token", credentials=credentials)
        await client.submit(train_spec("x"))


async def test_a_busy_port_is_named_with_the_option_that_changes_it(tmp_path: Path) -> None:
    async with cluster_of(quick_config(tmp_path)) as cluster:
        other = quick_config(tmp_path, db=tmp_path / "other.db", port=cluster.running.port)
        with pytest.raises(AlreadyRunningError) as caught:
            await start(other)
        assert cluster.running.address in caught.value.message
        assert "--port" in caught.value.message
        with pytest.raises(AlreadyRunningError, match="pid"):
            await start(quick_config(tmp_path))


async def test_a_full_disk_refuses_submits_shows_and_recovers_by_itself(tmp_path: Path) -> None:
    store = MemoryStore()
    async with cluster_of(quick_config(tmp_path), store=store) as cluster:
        client = cluster.client()
        store.fail_next(*[ResourceExhaustedError("the disk is full")] * 3)
        spec = codec.spec_to_proto(train_spec("x"))
        assert isinstance(await client.failure("SubmitJob", spec=spec, request_id="r"), ResourceExhaustedError)
        status = await client.call("GetStatus")
        assert "full" in status.read_only_cause
        assert not status.waiting_jobs

        async def writable() -> bool:
            return not (await client.call("GetStatus")).HasField("read_only_cause")

        await eventually(writable, "it recovers")
        await client.submit(train_spec("x"))


async def test_a_report_that_could_not_be_stored_is_heard_again(tmp_path: Path) -> None:
    store = MemoryStore()
    async with cluster_of(quick_config(tmp_path), store=store) as cluster:
        agent = await cluster.agent(node_info("n1"))
        await agent.next_of("verdict")
        store.fail_next(ResourceExhaustedError("the disk is full"))
        await agent.send(pb.OpenSessionRequest(attempt_started=pb.AttemptStarted(attempt_id="a-1.1")))
        await agent.ended()
        again = await cluster.agent(agent.info)
        await again.next_of("verdict")


async def test_one_bad_record_fails_alone(tmp_path: Path) -> None:
    store = MemoryStore()
    async with cluster_of(quick_config(tmp_path), store=store) as cluster:
        client = cluster.client()
        await client.submit(train_spec("x"), request_id="taken")
        store.fail_next(InternalError("the store refused a record"))
        names = await asyncio.gather(*(client.submit(train_spec("x")) for _ in range(5)), return_exceptions=True)
        assert sum(isinstance(name, str) for name in names) >= 4
