"""How a client reaches its scheduler."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from pathlib import Path

from arena.errors import UserError

DEFAULT_ADDRESS = "127.0.0.1:50061"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """Where the scheduler is and who calls.

    Args:
        address: ``host:port``.
        token: Sent as ``authorization: Bearer TOKEN``; never in plain text off this machine.
        tls_ca: PEM file of the authority that signed the scheduler's certificate; turns TLS on.
        user: Who calls, for a scheduler without tokens (``arena up``).
        timeout_s: Deadline of every unary call.
        retry_s: How long calls are repeated while no scheduler answers.
    """

    address: str = DEFAULT_ADDRESS
    token: str | None = field(default=None, repr=False)
    tls_ca: Path | None = None
    user: str | None = None
    timeout_s: float = 10.0
    retry_s: float = 3.0

    def __post_init__(self) -> None:
        host, _, port = self.address.rpartition(":")
        if not host or not port.isdigit() or not 0 < int(port) < 65536:
            raise UserError(
                f"scheduler address {self.address!r} is not host:port", fix=f"write it like {DEFAULT_ADDRESS}"
            )
        if self.token and self.tls_ca is None and not _is_loopback(host):
            raise UserError(
                f"the token would travel to {host} in plain text",
                why="off this machine a token needs TLS",
                fix="give the scheduler's certificate authority with --ca FILE",
            )


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
