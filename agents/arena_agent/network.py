"""Addresses, interfaces and ports of this host; addresses are used verbatim, no name is looked up for them."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Mapping

import psutil

from arena.errors import UserError

GLOO_INTERFACE_VARIABLE = "GLOO_SOCKET_IFNAME"


def own_address(scheduler_host: str, scheduler_port: int) -> str:
    """Return the address of this host from which the scheduler is reached.

    Raises:
        UserError: There is no route to it.
    """
    try:
        family, kind, _, _, target = socket.getaddrinfo(scheduler_host, scheduler_port, type=socket.SOCK_DGRAM)[0]
        # Connecting a datagram socket sends nothing; it makes the kernel choose the route.
        with socket.socket(family, kind) as probe:
            probe.connect(target)
            return str(probe.getsockname()[0])
    except OSError as error:
        raise UserError(
            f"no address of this node is known from which {scheduler_host} is reached",
            why=str(error),
            fix="give one with --address",
        ) from error


def interfaces() -> Mapping[str, tuple[str, ...]]:
    """Return the addresses of each interface that is up."""
    up = psutil.net_if_stats()
    return {
        name: tuple(item.address.partition("%")[0] for item in items)
        for name, items in sorted(psutil.net_if_addrs().items())
        if name in up and up[name].isup
    }


def interface_of(address: str, known: Mapping[str, tuple[str, ...]]) -> str | None:
    """Return the interface that holds an address."""
    try:
        wanted = ipaddress.ip_address(address)
    except ValueError:
        return None
    if wanted.is_loopback:  # 127.0.0.2 is served by the interface that lists 127.0.0.1
        return next((name for name, items in known.items() if "127.0.0.1" in items), None)
    return next((name for name, items in known.items() if str(wanted) in items), None)


def interface_environment(
    address: str, user: Mapping[str, str], known: Mapping[str, tuple[str, ...]]
) -> Mapping[str, str]:
    """Return what tells gloo which interface to use: the user's word, else the one that holds the address.

    Raises:
        UserError: The user names an interface that does not exist here.
    """
    named = user.get(GLOO_INTERFACE_VARIABLE)
    if named:
        unknown = [name for name in named.split(",") if name not in known]
        if unknown:
            raise UserError(
                f"{GLOO_INTERFACE_VARIABLE} names {unknown[0]!r}, which this node does not have",
                why=f"it has {', '.join(known)}",
            )
        return {}
    found = interface_of(address, known)
    return {GLOO_INTERFACE_VARIABLE: found} if found else {}


def port_problem(address: str, port: int) -> str | None:
    """Return why a rank cannot listen on a port of this host, None when it can."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
            probe.listen(1)
        except OSError as error:
            return f"port {port} of {address}: {error.strerror}"
    return None
