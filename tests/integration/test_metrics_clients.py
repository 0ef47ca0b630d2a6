"""Who asks for metrics can hold up neither others nor the scheduler: clients are few at once, and each has so long."""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import trustme

from arena.engine.state import ClusterState
from arena_scheduler import metrics_server
from arena_scheduler.metrics_server import MetricsServer, application
from arena_scheduler.turn import Turn
from tests.fakes.observed_cluster import seen
from tests.fakes.running_scheduler import eventually

LONG_S = 60.0
"""Longer than anything here takes on any machine; nothing waits so long unless it is broken."""
ASKED = b"GET /-/healthy HTTP/1.0\r\n\r\n"


def answer(**fields: Any) -> Any:
    parts = {"observe": lambda: seen(ClusterState()), "silent_s": lambda: 0.0, "turn": Turn}
    return application(**{**parts, "read_only_cause": lambda: None, "access": None, **fields})


@contextmanager
def served(tls: ssl.SSLContext | None = None, **fields: Any) -> Iterator[Callable[[], socket.socket]]:
    """A server; what connects to it."""
    server = MetricsServer("127.0.0.1", 0, answer(**fields), tls)
    server.start()
    port = int(server.url.split(":")[2].partition("/")[0])
    with ExitStack() as stack:
        stack.callback(server.close)
        yield lambda: stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=LONG_S))


def said(client: socket.socket, asked: bytes = ASKED) -> bytes:
    """What a client is told until its connection is closed, nothing where it is closed at once."""
    text = b""
    try:
        client.sendall(asked)
        while got := client.recv(4096):
            text += got
    except (ConnectionResetError, BrokenPipeError):
        pass
    return text


def test_no_more_than_so_many_are_served_at_once_and_the_others_are_closed_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(metrics_server._Handler, "timeout", 2 * LONG_S)
    before = threading.active_count()
    with served() as connect:
        silent = [connect() for _ in range(metrics_server.CLIENTS_MAX)]
        late = [connect() for _ in range(2 * metrics_server.CLIENTS_MAX)]
        assert {said(one) for one in late} == {b""}
        assert threading.active_count() <= before + 1 + metrics_server.CLIENTS_MAX
        assert b"healthy" in said(silent.pop()), "who was there first is served"
        for one in silent:
            one.close()


async def test_there_is_room_again_when_somebody_has_gone() -> None:
    with served() as connect:
        for _ in range(3):
            clients = [connect() for _ in range(metrics_server.CLIENTS_MAX)]
            for one in clients:
                one.close()

            async def is_served() -> bool:
                return b"healthy" in await asyncio.to_thread(lambda: said(connect()))

            await eventually(is_served, "there is room")


@pytest.mark.parametrize("is_tls", [False, True])
async def test_who_says_a_little_now_and_then_is_closed_after_so_long(
    monkeypatch: pytest.MonkeyPatch, is_tls: bool, tmp_path: Path
) -> None:
    monkeypatch.setattr(metrics_server, "REQUEST_S_MAX", 0.3)
    monkeypatch.setattr(metrics_server._Handler, "timeout", 2 * LONG_S)
    tls = None
    if is_tls:
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        trustme.CA().issue_cert("127.0.0.1").configure_cert(tls)
    with served(tls) as connect:
        client = connect()
        client.setblocking(False)
        drips = iter((b"\x16\x03\x01\x40\x00" if is_tls else b"GET /") + b"x" * 10_000)

        def is_closed() -> bool:
            try:
                client.send(bytes([next(drips)]))
                return client.recv(1) == b""
            except BlockingIOError:
                return False
            except (ConnectionResetError, BrokenPipeError):
                return True

        await eventually(is_closed, "it is closed")


async def test_who_takes_its_answer_too_slowly_is_closed_after_so_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_server, "REQUEST_S_MAX", 0.3)
    monkeypatch.setattr(metrics_server._Handler, "timeout", 2 * LONG_S)
    before, is_long = threading.active_count(), threading.Event()

    def long(environ: Any, start_response: Any) -> list[bytes]:
        start_response("200 OK", [])
        is_long.set()
        return [b"x" * 100_000_000]  # more than any buffer takes

    server = MetricsServer("127.0.0.1", 0, long)
    server.start()
    try:
        port = int(server.url.split(":")[2].partition("/")[0])
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(ASKED)
            await eventually(is_long.is_set, "it is answered")
            await eventually(lambda: threading.active_count() <= before + 1, "its thread has ended")
    finally:
        server.close()


async def test_without_a_file_descriptor_for_a_client_nothing_spins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_server, "NO_ROOM_PAUSE_S", 2 * LONG_S, raising=False)
    tries = 0

    def refused(server: Any) -> Any:
        nonlocal tries
        tries += 1
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(metrics_server.TCPServer, "get_request", refused)
    with served() as connect:
        connect()
        await eventually(lambda: tries, "it is tried")
        await asyncio.sleep(0.3)  # it would be tried a thousand times
        assert tries == 1


def test_a_scrape_that_does_not_end_holds_up_no_others_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_server, "SCRAPE_WAIT_S_MAX", 0.1, raising=False)
    has_begun, may_end = threading.Event(), threading.Event()

    def observe() -> Any:
        has_begun.set()
        may_end.wait(LONG_S)
        return seen(ClusterState())

    def ask(told: list[str]) -> None:
        environ = {"PATH_INFO": "/metrics", "REQUEST_METHOD": "GET", "QUERY_STRING": ""}
        list(answering(environ, lambda status, headers: told.append(status)))

    answering = answer(observe=observe)
    statuses: list[list[str]] = [[], []]
    threads = [threading.Thread(target=ask, args=(told,), daemon=True) for told in statuses]
    threads[0].start()
    assert has_begun.wait(LONG_S)
    threads[1].start()
    threads[1].join(LONG_S / 3)
    assert statuses == [[], ["503 Service Unavailable"]]
    may_end.set()
    threads[0].join(LONG_S)
    assert statuses[0] == ["200 OK"]
    again: list[str] = []
    ask(again)
    assert again == ["200 OK"]
