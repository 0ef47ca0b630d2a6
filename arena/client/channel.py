"""The connection to a scheduler: channel, credentials, and calls that are repeated while nobody answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import grpc
import tenacity

from arena.client.settings import ClientSettings
from arena.errors import UserError
from arena.rpc.status import error_from_rpc
from arena.rpc.v1 import admin_service_pb2_grpc, job_service_pb2_grpc

Response = TypeVar("Response")

# A dead peer is noticed within a minute and a half; servers refuse more frequent pings as abuse.
_OPTIONS: Final = (
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.keepalive_permit_without_calls", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.enable_retries", 0),
    ("grpc.enable_http_proxy", 0),
)
USER_METADATA_KEY: Final = "x-arena-user"


class Connection:
    """One channel to one scheduler; connects when it is first used."""

    def __init__(self, settings: ClientSettings) -> None:
        self.settings = settings
        self._channel = _channel(settings)
        # The generated stubs carry no types; the codec gives every answer its type right after the call.
        self.jobs: Any = job_service_pb2_grpc.JobServiceStub(self._channel)  # type: ignore[no-untyped-call]
        self.admin: Any = admin_service_pb2_grpc.AdminServiceStub(self._channel)  # type: ignore[no-untyped-call]
        self.metadata = _metadata(settings)

    def close(self) -> None:
        """Close the channel; open streams end."""
        self._channel.close()

    def call(self, method: Any, request: Any) -> Any:
        """Make a unary call under the deadline, repeated while no scheduler answers.

        Reads change nothing, and what changes something carries a request id, by which a scheduler that has done it
        already only answers. One that was started since the first call knows submissions by it, from its database; any
        other change it does again.

        Raises:
            ArenaError: As the scheduler raised it, or because nobody answered.
        """
        settings = self.settings
        repeated = retrying(settings.retry_s)
        try:
            return repeated(method, request, timeout=settings.timeout_s, metadata=self.metadata)
        except grpc.RpcError as failure:
            raise error_from_rpc(failure, settings.address) from failure


def retrying(retry_s: float) -> Callable[..., Any]:
    """Return a caller that repeats while the status is UNAVAILABLE, with growing pauses, for a bounded time."""
    return tenacity.Retrying(
        retry=tenacity.retry_if_exception(is_unavailable),
        wait=tenacity.wait_exponential(multiplier=0.1, max=1.0) + tenacity.wait_random(0, 0.1),
        stop=tenacity.stop_before_delay(retry_s),
        reraise=True,
    )


def is_unavailable(failure: BaseException) -> bool:
    """Tell whether a call failed because nobody was there to answer it."""
    return isinstance(failure, grpc.RpcError) and failure.code() is grpc.StatusCode.UNAVAILABLE


def _channel(settings: ClientSettings) -> grpc.Channel:
    if settings.tls_ca is None:
        return grpc.insecure_channel(settings.address, options=_OPTIONS)
    try:
        roots = settings.tls_ca.read_bytes()
    except OSError as error:
        raise UserError(f"cannot read {settings.tls_ca}", why=str(error.strerror), fix="see --ca") from error
    return grpc.secure_channel(settings.address, grpc.ssl_channel_credentials(roots), options=_OPTIONS)


def _metadata(settings: ClientSettings) -> tuple[tuple[str, str], ...]:
    metadata: list[tuple[str, str]] = []
    if settings.user:
        metadata.append((USER_METADATA_KEY, settings.user.encode("ascii", "backslashreplace").decode()))
    if settings.token:
        metadata.append(("authorization", f"Bearer {settings.token}"))
    return tuple(metadata)
