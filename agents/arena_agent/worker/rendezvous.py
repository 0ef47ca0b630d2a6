"""How the ranks of an attempt meet: rank 0 listens on the leased port, on the given address and no other."""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
from datetime import timedelta

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore

from arena.errors import UserError
from arena_agent.worker.agreement import Ranks

_RENDEZVOUS_TIMEOUT_S = 120.0
COLLECTIVE_TIMEOUT_S = 1800.0
"""How long ranks wait for each other in a step."""
_AGREEMENT_TIMEOUT_S = 86_400.0
"""How long ranks wait while one of them acts for all: it may write a model of terabytes."""
_GLOO_INTERFACE_VARIABLE = "GLOO_SOCKET_IFNAME"


class PortTakenError(UserError):
    """The leased port is in use."""

    code = "port"


def meet(*, rank: int, world_size: int, address: str, port: int, device: torch.device) -> Ranks:
    """Wait for all ranks and build their process group: NCCL on GPUs, gloo otherwise and for objects.

    Raises:
        PortTakenError: Somebody else listens on the port.
    """
    if _is_loopback(address):
        # Left to itself gloo resolves the host's name, which may be an outside address or none.
        os.environ.setdefault(_GLOO_INTERFACE_VARIABLE, "lo")
    store = TCPStore(
        address,
        port,
        world_size,
        is_master=rank == 0,
        timeout=timedelta(seconds=_RENDEZVOUS_TIMEOUT_S),
        master_listen_fd=_listen(address, port) if rank == 0 else None,
    )
    timeout = timedelta(seconds=COLLECTIVE_TIMEOUT_S)
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=world_size, timeout=timeout)
    group = dist.new_group(backend="gloo", timeout=timedelta(seconds=_AGREEMENT_TIMEOUT_S))
    return Ranks(rank=rank, world_size=world_size, group=group)


def _listen(address: str, port: int) -> int:
    """Return the descriptor of a socket listening on one address; torch by itself would listen on all."""
    family = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0][0]
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((address, port))
        listener.listen(socket.SOMAXCONN)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise PortTakenError(f"port {port} on {address} is taken") from error
        raise
    return listener.detach()


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"
