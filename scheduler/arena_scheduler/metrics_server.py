"""Serves the metrics over HTTP, in threads of its own: what they are made of are values, so nobody waits for a scrape.

``/metrics`` is for Prometheus, ``/-/healthy`` and ``/-/ready`` are for whoever restarts services. A scheduler whose
event loop stands still is neither healthy nor ready. One whose present turn (a decision, and its writing) has taken
more than ``READY_TURN_S_MAX`` is not ready, nor is one that cannot write; only after ``HEALTHY_TURN_S_MAX`` is it
unhealthy, too: about a huge cluster it may decide for long, and who starts it anew has it begin again. On loopback it
is plain HTTP; elsewhere ``/metrics`` demands a token under TLS, as the scheduler's own port does.
"""

from __future__ import annotations

import errno
import logging
import socket
import ssl
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from socketserver import TCPServer, ThreadingMixIn
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, ProcessCollector, make_wsgi_app
from prometheus_client.metrics_core import Metric

from arena.errors import AlreadyRunningError, UserError
from arena_scheduler.access import Access
from arena_scheduler.clock import LiveClock
from arena_scheduler.metrics import Observed, metrics_of
from arena_scheduler.turn import Turn

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

_log = logging.getLogger(__name__)

SILENT_CLIENT_S_MAX = 10.0
"""So long a client may neither say anything nor take what it is told; a thread waits for it."""
REQUEST_S_MAX = 30.0
"""So long a request may take in all, from the connection to the last byte of the answer."""
SCRAPE_WAIT_S_MAX = 10.0
"""So long a scrape waits for the one before it."""
CLIENTS_MAX = 16
"""So many are served at once, a thread and a file descriptor each, which the scheduler needs itself."""
NO_ROOM_PAUSE_S = 1.0
"""After a connection that could not be taken, as the process has too many files open: it waits, and would be ready."""
SILENT_S_MAX = 10.0
"""The event loop notes four times a second that it runs; after so long without, it is stuck."""
READY_TURN_S_MAX = 30.0
"""So long one turn of the scheduler may take, a decision and its writing, before it is not ready for more."""
HEALTHY_TURN_S_MAX = 600.0
"""After so long in one turn it is to be started anew: far more than any decision took, as nothing limits those."""
_POLL_S = 0.1
_NO_ROOM = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_TEXT = ("Content-Type", "text/plain; charset=utf-8")


class SchedulerCollector:
    """Looks at a scheduler whenever Prometheus asks; nothing is kept between."""

    def __init__(self, observe: Callable[[], Observed]) -> None:
        self._observe = observe

    def collect(self) -> Iterator[Metric]:
        """Return the metrics of this moment."""
        return metrics_of(self._observe())


def sizes_of(database: Path) -> dict[str, int]:
    """Return the sizes of a database's files, as far as they are there."""
    found = {}
    for name, path in (("database", database), ("log", database.with_name(f"{database.name}-wal"))):
        try:
            found[name] = path.stat().st_size
        except OSError:
            continue
    return found


def application(
    *,
    observe: Callable[[], Observed],
    silent_s: Callable[[], float],
    turn: Callable[[], Turn],
    read_only_cause: Callable[[], str | None],
    access: Access | None,
) -> WSGIApplication:
    """Return what answers.

    Args:
        silent_s: For how long the event loop has not noted that it runs.
        turn: What the scheduler is at, and for how long.
        read_only_cause: Why nothing can be written, None where it can.
        access: Who may see metrics; None: everybody.
    """
    registry = CollectorRegistry()
    registry.register(SchedulerCollector(observe))
    ProcessCollector(registry=registry)
    metrics: WSGIApplication = make_wsgi_app(registry)
    one_at_a_time = threading.Lock()  # however many ask, the event loop shares its processor with one of them

    def answer(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        if path == "/metrics":
            if access is not None and not access.may_see_metrics(environ.get("HTTP_AUTHORIZATION", "")):
                wanted = ("WWW-Authenticate", "Bearer")
                return _say(start_response, "401 Unauthorized", "a token of the scheduler is needed", wanted)
            if not one_at_a_time.acquire(timeout=SCRAPE_WAIT_S_MAX):
                return _say(start_response, "503 Service Unavailable", "another scrape has not ended")
            try:
                return metrics(environ, start_response)
            finally:
                one_at_a_time.release()
        if path not in {"/-/healthy", "/-/ready"}:
            return _say(start_response, "404 Not Found", "here are /metrics, /-/healthy and /-/ready")
        cause = _stuck_cause(silent_s(), turn(), READY_TURN_S_MAX if path == "/-/ready" else HEALTHY_TURN_S_MAX)
        if cause is None and path == "/-/ready" and (why := read_only_cause()) is not None:
            cause = f"read-only: {why}"
        if cause is not None:
            return _say(start_response, "503 Service Unavailable", cause)
        return _say(start_response, "200 OK", path.removeprefix("/-/"))

    return answer


def _stuck_cause(silent_s: float, turn: Turn, turn_s_max: float) -> str | None:
    """Return what hangs and for how long, None where nothing does."""
    if silent_s > SILENT_S_MAX:
        return f"the event loop has not run for {silent_s:.0f} s"
    if turn.took_s <= turn_s_max:
        return None
    busy = f"busy for {turn.took_s:.0f} s"
    return busy if turn.part is None else f"{busy}, with {turn.part.value} for {turn.part_s:.0f} s"


def _say(start_response: StartResponse, status: str, text: str, *headers: tuple[str, str]) -> list[bytes]:
    start_response(status, [_TEXT, *headers])  # a list of its own: its length is added to it
    return [f"{text}\n".encode()]


def tls_context(cert: Path | None, key: Path | None) -> ssl.SSLContext:
    """Return what speaks TLS with the scheduler's own certificate.

    Raises:
        UserError: The files are none.
    """
    assert cert is not None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(cert, key)
    except OSError as error:  # ssl's own errors are such, too
        raise UserError(f"metrics cannot be served with the certificate {cert}", why=str(error)) from error
    return context


class MetricsServer:
    """An HTTP server: its port is taken when it is made, it answers from ``start`` to ``close``.

    Raises:
        AlreadyRunningError: The port is in use.
        UserError: The address cannot be listened on.
    """

    def __init__(self, host: str, port: int, answer: WSGIApplication, tls: ssl.SSLContext | None = None) -> None:
        self._scheme, self._host = "http" if tls is None else "https", host.strip("[]")
        try:
            self._server = _Server(*_address(self._host, port), tls)
        except OSError as error:
            raise _port_error(f"{host}:{port}", error) from error
        self._server.set_app(answer)
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        """Where the metrics are."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{self._scheme}://{host}:{self._server.server_port}/metrics"

    def start(self) -> None:
        """Answer from now on."""
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(_POLL_S,), name="arena-metrics", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Close the port."""
        if self._thread is not None:
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()


def _address(host: str, port: int) -> tuple[socket.AddressFamily, tuple[Any, ...]]:
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    return family, address


def _port_error(address: str, error: OSError) -> AlreadyRunningError | UserError:
    what, details = f"cannot serve metrics on {address}", {"address": address}
    if error.errno == errno.EADDRINUSE:
        fix = "stop what listens there, or choose another with --metrics-port (0 takes a free one)"
        return AlreadyRunningError(what, why="it is in use", fix=fix, details=details)
    fix = "choose another with --metrics-host and --metrics-port"
    return UserError(what, why=error.strerror or str(error), fix=fix, details=details)


class _Handler(WSGIRequestHandler):
    """Answers one request; says nothing of it."""

    timeout = SILENT_CLIENT_S_MAX

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name that the base class gives it
        """Log nothing: it would be most of the log."""


class _Server(ThreadingMixIn, WSGIServer):
    """A thread for each request, as a client that says nothing must hold up no other; a bounded number of them."""

    daemon_threads = True
    allow_reuse_port = False
    request_queue_size = 4 * CLIENTS_MAX  # who does not fit in there tries again a second later

    def __init__(self, family: socket.AddressFamily, address: tuple[Any, ...], tls: ssl.SSLContext | None) -> None:
        self.address_family = family
        self._tls = tls
        self._now_s = LiveClock().now_s
        self._is_closing = threading.Event()
        self._lock = threading.Lock()  # no connection is closed while its deadline is looked at
        self._since_s: dict[socket.socket, float] = {}
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        """Take the port; the base class asks a name server for this host's name, which may take long."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self.setup_environ()

    def get_request(self) -> tuple[Any, Any]:
        """Take a connection; what TLS says first is said in the request's thread, not here, where others wait."""
        try:
            connection, address = super().get_request()
        except OSError as error:
            if error.errno in _NO_ROOM:
                self._is_closing.wait(NO_ROOM_PAUSE_S)
            raise
        if self._tls is not None:
            connection = self._tls.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
        return connection, address

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Tell whether there is a thread left for one more; who is refused is closed at once."""
        with self._lock:
            if len(self._since_s) >= CLIENTS_MAX:
                return False
            self._since_s[request] = self._now_s()
        return True

    def service_actions(self) -> None:
        """End what takes too long; its thread finds that nothing more comes."""
        with self._lock:
            latest_s = self._now_s() - REQUEST_S_MAX
            for request in [one for one, since_s in self._since_s.items() if since_s < latest_s]:
                with suppress(OSError):  # the client has gone already
                    socket.socket.shutdown(request, socket.SHUT_RDWR)  # TLS's own would take the state from its thread

    def close_request(self, request: Any) -> None:
        """Close a connection, which makes room for another."""
        with self._lock:
            self._since_s.pop(request, None)
            super().close_request(request)

    def shutdown(self) -> None:
        """Have ``serve_forever`` return."""
        self._is_closing.set()
        super().shutdown()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Pass over a client that went away or speaks something else."""
        _log.debug("a request for metrics from %s failed", client_address, exc_info=True)
