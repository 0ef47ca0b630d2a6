"""Metrics of a scheduler that runs: over HTTP, while it decides, off loopback, and until it stops."""

from __future__ import annotations

import asyncio
import hashlib
import re
import signal
import socket
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Event

import grpc
import pytest
import trustme
import yaml
from prometheus_client.parser import text_string_to_metric_families

from arena.domain.launch import NodeId
from arena.engine.ports import Step
from arena.errors import AlreadyRunningError, PermissionDeniedError, ResourceExhaustedError, UserError
from arena.policies.base import Decision, Snapshot
from arena.policies.fcfs import FirstComeFirstServed
from arena.rpc import codec
from arena.rpc.v1 import agent_service_pb2 as pb
from arena.rpc.v1 import common_pb2
from arena.rpc.version import software_version
from arena_scheduler import loop, metrics_server
from arena_scheduler.app import start
from arena_scheduler.reading import Dropped, DroppedBatch
from tests.builders import command_spec, node_info
from tests.fakes.agent_session import AgentSession
from tests.fakes.memory_store import MemoryStore
from tests.fakes.running_scheduler import Cluster, cluster_of, eventually, quick_config
from tests.fakes.scheduler_client import SchedulerClient

Samples = dict[tuple[str, ...], float]


def fetch(url: str, *, tls: ssl.SSLContext | None = None, token: str = "") -> tuple[int, str]:
    """The status and the text of a page."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=60.0, context=tls) as page:
            return page.status, page.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


async def scraped(url: str | None) -> Samples:
    """Every sample, by its name and the values of its labels in the order of the labels' names."""
    assert url is not None
    status, text = await asyncio.to_thread(fetch, url)
    assert status == 200
    return {
        (one.name, *(value for _, value in sorted(one.labels.items()))): one.value
        for family in text_string_to_metric_families(text)
        for one in family.samples
    }


def gpus(samples: Samples) -> dict[str, float]:
    """The GPUs of the only pool, by what they do; those that there are."""
    return {key[2]: value for key, value in samples.items() if key[0] == "arena_gpus" and value}


def is_open(url: str) -> bool:
    _, _, address = url.partition("//")
    host, _, port = address.partition("/")[0].partition(":")
    try:
        socket.create_connection((host, int(port)), timeout=10.0).close()
    except ConnectionRefusedError:
        return False
    return True


async def test_a_scrape_shows_the_jobs_the_gpus_and_what_happened(tmp_path: Path) -> None:
    async with cluster_of(quick_config(tmp_path, metrics_port=0)) as cluster:
        url, client = cluster.running.metrics_url, cluster.client()
        agent = await cluster.agent(node_info("n1", gpus=3))
        await agent.next_of("verdict")
        await eventually(lambda: cluster.running.driver.durable_state.shape.gpu_count == 3, "the shape has settled")
        await client.submit(command_spec("a", count=2))
        await client.submit(command_spec("b", count=2))
        launch = await agent.next_of("launch")
        await eventually(lambda: cluster.running.driver.durable_state.queue, "the other one can be decided about")
        samples = await scraped(url)
        assert gpus(samples) == {"used": 2, "free": 1}
        assert samples["arena_jobs", "starting"] == samples["arena_jobs", "queued"] == 1
        assert samples["arena_jobs_submitted_total",] == 2
        assert samples["arena_nodes", "ready"] == samples["arena_agent_sessions",] == samples["arena_queued_jobs",] == 1
        assert samples["arena_scheduler_build_info", "fcfs", FirstComeFirstServed().version, software_version()] == 1
        assert samples["arena_database_size_bytes", "database"] > 0
        assert samples["arena_decisions_total",] >= 1

        await agent.send(pb.OpenSessionRequest(attempt_started=pb.AttemptStarted(attempt_id=launch.attempt_id)))
        await client.call("CancelJobs", job_ids=[launch.attempt_id.rpartition(".")[0]], request_id="c")
        await agent.next_of("stop_attempt")
        end = common_pb2.NodeEnd(node_id="n1", kind=common_pb2.END_KIND_KILLED)
        ended = pb.AttemptEnded(attempt_id=launch.attempt_id, end=end)
        await agent.send(pb.OpenSessionRequest(attempt_ended=ended))
        await agent.next_of("launch")
        samples = await scraped(url)
        assert samples["arena_jobs_ended_total", "cancelled"] == samples["arena_ended_jobs", "cancelled"] == 1
        assert samples["arena_gpu_seconds_total",] > 0

        await agent.close()
        await eventually(lambda: _is_lost(cluster), "the node is lost")
        samples = await scraped(url)
        assert gpus(samples) == {"down": 3}
        assert (samples["arena_nodes_lost_total",], samples["arena_agent_sessions",]) == (1, 0)


def _is_lost(cluster: Cluster) -> bool:
    return cluster.running.driver.durable_state.nodes[NodeId("n1")].state.value == "lost"


async def test_after_a_restart_what_happened_is_counted_anew_and_what_is_known_is_not(tmp_path: Path) -> None:
    """A counter that began anew with a part of what it had would read as many new events."""
    config = quick_config(tmp_path, metrics_port=0)
    async with cluster_of(config) as cluster:
        client = cluster.client()
        await (await cluster.agent(node_info("n1"))).next_of("verdict")
        await client.call(
            "CancelJobs", job_ids=[await client.submit(command_spec("a", count=64), allow_infeasible=True)]
        )
        before = await scraped(cluster.running.metrics_url)
        assert before["arena_jobs_ended_total", "cancelled"] == 1
    async with cluster_of(config) as cluster:
        after = await scraped(cluster.running.metrics_url)
    assert after["arena_ended_jobs", "cancelled"] == 1
    assert after["arena_jobs_ended_total", "cancelled"] == after["arena_jobs_submitted_total",] == 0
    assert after["arena_decisions_total",] <= 1


async def test_jobs_that_were_dropped_are_counted_since_the_start_as_all_else_is(tmp_path: Path) -> None:
    store = MemoryStore()
    store._dropped = Dropped(identity=store.identity, job_count=5)
    async with cluster_of(quick_config(tmp_path, metrics_port=0), store=store) as cluster:
        url, driver = cluster.running.metrics_url, cluster.running.driver
        assert (await scraped(url))["arena_history_dropped_jobs_total",] == 0
        driver.dropped = replace(driver.dropped, job_count=7)
        assert (await scraped(url))["arena_history_dropped_jobs_total",] == 2


async def test_a_job_that_is_parked_for_other_nodes_makes_the_queue_no_older(tmp_path: Path) -> None:
    async with cluster_of(quick_config(tmp_path, metrics_port=0)) as cluster:
        await (await cluster.agent(node_info("n1"))).next_of("verdict")
        await eventually(lambda: cluster.running.driver.durable_state.shape.gpu_count, "the shape has settled")
        await cluster.client().submit(command_spec("a", count=64), allow_infeasible=True)
        await eventually(lambda: cluster.running.driver.durable_state.queue, "it can be decided about")
        samples = await scraped(cluster.running.metrics_url)
        assert (samples["arena_queued_jobs",], samples["arena_infeasible_jobs",]) == (1, 1)
        assert samples["arena_queue_age_seconds",] == 0


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Event, Event]]:
    """A decision that goes on until it is let go: what says that it has begun, and what lets it go."""
    has_begun, may_end, decide = Event(), Event(), FirstComeFirstServed.decide

    def long(policy: FirstComeFirstServed, snapshot: Snapshot) -> Decision:
        if snapshot.waiting:
            has_begun.set()
            may_end.wait(60.0)
        return decide(policy, snapshot)

    monkeypatch.setattr(FirstComeFirstServed, "decide", long)
    yield has_begun, may_end
    may_end.set()


async def test_while_a_decision_takes_long_a_scrape_says_so(tmp_path: Path, held: tuple[Event, Event]) -> None:
    has_begun, may_end = held
    async with cluster_of(quick_config(tmp_path, metrics_port=0)) as cluster:
        url, client = cluster.running.metrics_url, cluster.client()
        await (await cluster.agent(node_info("n1"))).next_of("verdict")
        submission = asyncio.create_task(client.submit(command_spec("a")))
        await eventually(has_begun.is_set, "the decision is under way")
        first = (await scraped(url))["arena_engine_work_seconds",]
        assert 0 < first < (await scraped(url))["arena_engine_work_seconds",]
        may_end.set()
        await submission

        async def is_idle() -> bool:
            return (await scraped(url))["arena_engine_work_seconds",] == 0

        await eventually(is_idle, "the decision is over")


class HangingStore(MemoryStore):
    """Has one of its writes go on until it is let go, from when it is told to."""

    def __init__(self, write: str) -> None:
        super().__init__()
        self.write, self.is_to_hang, self.has_begun, self.may_end = write, False, Event(), Event()

    def _at(self, write: str) -> None:
        if write == self.write and self.is_to_hang:
            self.has_begun.set()
            self.may_end.wait(60.0)

    def commit(self, steps: Sequence[Step]) -> None:
        """Take all steps, late."""
        self._at("commit")
        super().commit(steps)

    def keep_room(self) -> None:
        """Do nothing for long."""
        self._at("keep_room")

    def drop_before(self, before_s: float) -> DroppedBatch:
        """Drop, late."""
        self._at("drop_before")
        return super().drop_before(before_s)


async def _page(cluster: Cluster, name: str) -> tuple[int, str]:
    url = cluster.running.metrics_url
    assert url is not None
    return await asyncio.to_thread(fetch, url.replace("/metrics", f"/-/{name}"))


async def _answers(cluster: Cluster, name: str, status: int, pattern: str = "") -> bool:
    found, text = await _page(cluster, name)
    return found == status and re.search(pattern, text) is not None


async def _hangs_and_says_so(cluster: Cluster, metric: str, part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever it is: first it is not ready, much later not healthy, and both say what hangs and for how long."""
    samples = await scraped(cluster.running.metrics_url)
    assert 0 < samples[metric,] <= samples["arena_loop_turn_seconds",]
    assert (await scraped(cluster.running.metrics_url))["arena_loop_turn_seconds",] > samples[
        "arena_loop_turn_seconds",
    ]
    assert {key[0] for key, value in samples.items() if "work_seconds" in key[0] and value} == {metric}
    said = rf"^busy for \d+ s, with {part} for \d+ s$"
    await eventually(lambda: _answers(cluster, "ready", 503, said), "it is not ready")
    assert await _page(cluster, "healthy") == (200, "healthy\n"), "it may well take its time"
    monkeypatch.setattr(metrics_server, "HEALTHY_TURN_S_MAX", 0.1, raising=False)
    await eventually(lambda: _answers(cluster, "healthy", 503, said), "it is to be started anew")


async def _goes_on(cluster: Cluster) -> None:
    for name in ("ready", "healthy"):
        await eventually(partial(_answers, cluster, name, 200), "it goes on")

    async def is_idle() -> bool:
        return not (await scraped(cluster.running.metrics_url))["arena_loop_turn_seconds",]

    await eventually(is_idle, "nothing is in hand")


@pytest.mark.parametrize("write", ["commit", "keep_room", "drop_before"])
async def test_while_a_write_hangs_it_is_not_ready_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: str
) -> None:
    monkeypatch.setattr(metrics_server, "READY_TURN_S_MAX", 0.1, raising=False)
    monkeypatch.setattr(loop, "ROOM_INTERVAL_S", 0.01)
    monkeypatch.setattr(loop, "DROP_INTERVAL_S", 0.01)
    store = HangingStore(write)
    config = quick_config(tmp_path, metrics_port=0, keep_history_s=3600.0)
    async with cluster_of(config, store=store) as cluster:
        await eventually(lambda: _answers(cluster, "ready", 200), "it is ready")
        store.is_to_hang = True
        submission = asyncio.create_task(cluster.client().submit(command_spec("a"), allow_infeasible=True))
        try:
            await eventually(store.has_begun.is_set, "it writes")
            await _hangs_and_says_so(cluster, "arena_store_work_seconds", "writing", monkeypatch)
        finally:
            store.may_end.set()
        await submission
        await _goes_on(cluster)


async def test_while_a_decision_hangs_it_is_not_ready_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: tuple[Event, Event]
) -> None:
    monkeypatch.setattr(metrics_server, "READY_TURN_S_MAX", 0.1, raising=False)
    has_begun, may_end = held
    async with cluster_of(quick_config(tmp_path, metrics_port=0)) as cluster:
        await (await cluster.agent(node_info("n1"))).next_of("verdict")
        submission = asyncio.create_task(cluster.client().submit(command_spec("a")))
        await eventually(has_begun.is_set, "the decision is under way")
        await _hangs_and_says_so(cluster, "arena_engine_work_seconds", "a decision", monkeypatch)
        may_end.set()
        await submission
        await _goes_on(cluster)


async def test_a_write_that_takes_long_is_told_of_in_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(loop, "LONG_S", 0.1)
    store = HangingStore("commit")
    async with cluster_of(quick_config(tmp_path), store=store) as cluster:
        store.is_to_hang = True
        submission = asyncio.create_task(cluster.client().submit(command_spec("a"), allow_infeasible=True))
        try:
            await eventually(lambda: "writing has taken" in caplog.text, "it is told of")
        finally:
            store.may_end.set()
        await submission


async def test_a_full_disk_is_told_and_it_is_not_ready_then(tmp_path: Path) -> None:
    store = MemoryStore()
    async with cluster_of(quick_config(tmp_path, metrics_port=0), store=store) as cluster:
        url = cluster.running.metrics_url
        assert url is not None
        ready, healthy = (url.replace("/metrics", f"/-/{name}") for name in ("ready", "healthy"))
        assert await asyncio.to_thread(fetch, ready) == (200, "ready\n")
        store.fail_next(*[ResourceExhaustedError("the disk is full")] * 1000)
        with suppress(Exception):
            await cluster.client().submit(command_spec("a"))
        assert (await scraped(url))["arena_read_only",] == 1
        assert (await asyncio.to_thread(fetch, ready))[0] == 503
        assert (await asyncio.to_thread(fetch, healthy))[0] == 200


async def test_each_page_is_answered_in_full_whatever_was_asked_before(tmp_path: Path) -> None:
    pages = {
        "healthy": (200, "healthy\n"),
        "ready": (200, "ready\n"),
        "x": (404, "here are /metrics, /-/healthy and /-/ready\n"),
    }
    async with cluster_of(quick_config(tmp_path, metrics_port=0)) as cluster:
        url = cluster.running.metrics_url
        assert url is not None
        for name in ("ready", "x", "healthy", "x", "ready"):
            page = url.replace("/metrics", f"/-/{name}")
            assert await asyncio.to_thread(fetch, page) == pages[name]
            assert (await scraped(url))["arena_read_only",] == 0


async def test_it_serves_no_metrics_unless_asked_and_closes_the_port_with_the_scheduler(tmp_path: Path) -> None:
    async with cluster_of(quick_config(tmp_path)) as cluster:
        assert cluster.running.metrics_url is None
    async with cluster_of(quick_config(tmp_path, metrics_port=0, metrics_host="localhost")) as cluster:
        url = cluster.running.metrics_url
        assert url is not None
        assert is_open(url)
    assert not is_open(url)


@pytest.mark.parametrize("host", ["::1", "[::1]"])
async def test_an_address_of_ipv6_is_taken_with_and_without_brackets(tmp_path: Path, host: str) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    async with cluster_of(quick_config(tmp_path, metrics_port=0, metrics_host=host)) as cluster:
        assert (await scraped(cluster.running.metrics_url))["arena_read_only",] == 0


async def test_a_busy_port_is_named_with_the_option_that_changes_it_and_nothing_is_left_open(tmp_path: Path) -> None:
    async with cluster_of(quick_config(tmp_path, metrics_port=0)) as cluster:
        url = cluster.running.metrics_url
        assert url is not None
        port = int(url.split(":")[2].partition("/")[0])
        other = quick_config(tmp_path, db=tmp_path / "other.db", metrics_port=port)
        with pytest.raises(AlreadyRunningError, match=rf"metrics on 127.0.0.1:{port}: it is in use.*--metrics-port"):
            await start(other)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            free = probe.getsockname()[1]
        with pytest.raises(AlreadyRunningError, match="--port"):
            await start(quick_config(tmp_path, db=other.db, port=cluster.running.port, metrics_port=free))
        assert not is_open(f"http://127.0.0.1:{free}/metrics"), "a scheduler that did not start has no port"
    async with cluster_of(other):
        pass


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"metrics_host": "0.0.0.0"}, "metrics may not be served on 0.0.0.0 like this"),
        ({"port": 5, "metrics_port": 5}, "port 5 is the scheduler's own"),
        ({"metrics_host": "127.8.8.8.8"}, "may not be served"),
    ],
)
def test_where_metrics_may_not_be_served_is_told_at_once(tmp_path: Path, fields: dict[str, object], said: str) -> None:
    with pytest.raises(UserError, match=said):
        quick_config(tmp_path, **{"metrics_port": 0, **fields})


async def test_clients_that_say_nothing_hold_up_nobody(tmp_path: Path) -> None:
    async with cluster_of(quick_config(tmp_path, metrics_port=0)) as cluster:
        url = cluster.running.metrics_url
        assert url is not None
        host, _, port = url.removeprefix("http://").removesuffix("/metrics").partition(":")
        silent = [socket.create_connection((host, int(port))) for _ in range(5)]
        assert (await scraped(url))["arena_read_only",] == 0
    for one in silent:
        one.close()


async def test_off_loopback_it_demands_a_token_under_tls(tmp_path: Path) -> None:
    authority = trustme.CA()
    pair = authority.issue_cert("127.0.0.1")
    cert, key, tokens = tmp_path / "cert.pem", tmp_path / "key.pem", tmp_path / "tokens.yaml"
    pair.cert_chain_pems[0].write_to_path(cert)
    pair.private_key_pem.write_to_path(key)
    tokens.write_text(yaml.safe_dump({hashlib.sha256(b"prom").hexdigest(): {"user": "prometheus", "role": "metrics"}}))
    config = quick_config(tmp_path, tokens=tokens, tls_cert=cert, tls_key=key, metrics_host="0.0.0.0", metrics_port=0)
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    async with cluster_of(config) as cluster:
        url = cluster.running.metrics_url
        assert url is not None
        assert url.startswith("https://")
        at = url.replace("0.0.0.0", "127.0.0.1")
        silent = socket.create_connection(("127.0.0.1", int(at.split(":")[2].partition("/")[0])))
        status, text = await asyncio.to_thread(fetch, at, tls=trusting, token="prom")
        assert (status, "arena_read_only 0.0" in text) == (200, True)
        for token in ("", "another"):
            status, text = await asyncio.to_thread(fetch, at, tls=trusting, token=token)
            assert (status, text) == (401, "a token of the scheduler is needed\n")
        healthy = at.replace("/metrics", "/-/healthy")
        assert (await asyncio.to_thread(fetch, healthy, tls=trusting))[0] == 200, "who restarts services has no token"
        with pytest.raises(OSError):  # noqa: PT011 - whichever way the connection ends
            await asyncio.to_thread(fetch, at.replace("https", "http"))
        assert (await asyncio.to_thread(fetch, healthy, tls=trusting))[0] == 200
        silent.close()
        credentials = grpc.ssl_channel_credentials(authority.cert_pem.bytes())
        client = cluster.client(token="prom", credentials=credentials)
        refusals = [await client.failure(name) for name in ("GetStatus", "ListJobs", "ListNodes")]
        spec = codec.spec_to_proto(command_spec("a"))
        refusals.append(await client.failure("SubmitJob", spec=spec, request_id="r"))
        assert {(type(one), one.what) for one in refusals} == {
            (PermissionDeniedError, "this token is for metrics alone")
        }, "who watches may run nothing"


async def test_a_certificate_that_is_none_is_refused_in_words(tmp_path: Path) -> None:
    (tmp_path / "x.pem").write_text("x")
    (tmp_path / "tokens.yaml").write_text("{}")
    files = {"tokens": tmp_path / "tokens.yaml", "tls_cert": tmp_path / "x.pem", "tls_key": tmp_path / "x.pem"}
    with pytest.raises(UserError, match="metrics cannot be served with the certificate"):
        await start(quick_config(tmp_path, **files, metrics_host="0.0.0.0", metrics_port=0))


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
async def test_a_scheduler_as_a_process_serves_them_until_it_ends(tmp_path: Path, number: signal.Signals) -> None:
    log, address_file = tmp_path / "log", tmp_path / "address"
    arguments = ["--db", str(tmp_path / "arena.db"), "--port", "0", "--address-file", str(address_file)]
    with log.open("wb") as file:
        child = subprocess.Popen(
            [str(Path(sys.executable).with_name("arena")), "scheduler", *arguments, "--metrics-port", "0"], stderr=file
        )
    try:
        await eventually(lambda: address_file.exists() or child.poll() is not None, "it serves")
        (url,) = re.findall(r"metrics at (http://127\.0\.0\.1:\d+/metrics)$", log.read_text(), re.MULTILINE)
        address = address_file.read_text().strip()
        client, agent = SchedulerClient(address), AgentSession(address, node_info("n1"))
        await agent.register()
        await agent.heartbeats(0.2)
        await agent.next_of("verdict")
        await client.submit(command_spec("a"))
        await agent.next_of("launch")
        samples = await scraped(url)
        assert (samples["arena_jobs", "starting"], gpus(samples)) == (1, {"used": 1, "free": 1})
        assert samples["process_resident_memory_bytes",] > 0
        await agent.close()
        await client.close()
        child.send_signal(number)
        assert child.wait(30) == (0 if number is signal.SIGTERM else -number)
        assert not is_open(url)
    finally:
        child.kill()
        child.wait(30)
