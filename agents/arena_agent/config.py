"""How an agent is to run, as a frozen value."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from arena.errors import UserError
from arena.units import MIB

_NODE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentConfig:
    """Settings of one agent.

    Args:
        node_id: Name of this node in the cluster.
        scheduler: ``host:port`` of the scheduler.
        state_dir: The agent's directory: journal, attempts, logs. One agent a directory.
        virtual_gpus: How many CPU workers to offer as GPUs; None means the real GPUs of this host.
        gpu_type: Catalog name of the GPUs; None takes the driver's word (``cpu`` for virtual ones).
        address: Where other nodes reach this one's ranks; None takes the address that the scheduler is reached from.
        port_low, port_high: Range from which rendezvous ports are leased.
        checkpoint_places: Directories in which jobs may keep checkpoints.
        token: Who we are, for a scheduler that demands it.
        tls_ca: Certificate authority of the scheduler's certificate; None speaks plain text.
        log_cap_bytes: Most that is kept of one rank's output.
        logs_kept_max: Ended attempts whose files are kept.
        warm_launcher: Keep a process with torch imported, from which ranks are forked.
        notice_file: Says, while it is there, that the node will be taken away (``arena_agent.notice``); None: the file
            ``notice`` in the state directory.
        supervisor_margin_s: How long a supervisor may take beyond the grace to clear up and say its last word.
        environ: Environment of the agent's user, which its jobs inherit.
    """

    node_id: str
    scheduler: str
    state_dir: Path
    virtual_gpus: int | None = None
    gpu_type: str | None = None
    zone: str = "default"
    region: str = "default"
    labels: Mapping[str, str] = field(default_factory=dict)
    address: str | None = None
    port_low: int = 20_000
    port_high: int = 29_999
    checkpoint_places: tuple[Path, ...] = ()
    token: str | None = field(default=None, repr=False)
    tls_ca: Path | None = None
    log_cap_bytes: int = 100 * MIB
    logs_kept_max: int = 200
    warm_launcher: bool = True
    notice_file: Path | None = None
    supervisor_margin_s: float = 15.0
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ), repr=False)

    def __post_init__(self) -> None:
        if not _NODE_ID.fullmatch(self.node_id):
            raise UserError(
                f"node id {self.node_id!r} cannot be used",
                fix="use up to 63 letters, digits, '.', '_' and '-', starting with a letter or digit",
            )
        if self.virtual_gpus is not None and self.virtual_gpus < 1:
            raise UserError(f"a node cannot offer {self.virtual_gpus} virtual GPUs", fix="give at least 1")
        if not 1024 <= self.port_low <= self.port_high <= 65_535:
            raise UserError(
                f"port range {self.port_low}-{self.port_high} cannot be used", fix="give a range within 1024-65535"
            )
        host, _, port = self.scheduler.rpartition(":")
        if not host or not port.isdigit():
            raise UserError(f"scheduler address {self.scheduler!r} is not host:port")

    @property
    def scheduler_host(self) -> str:
        """Host part of the scheduler's address."""
        return self.scheduler.rpartition(":")[0].strip("[]")

    @property
    def scheduler_port(self) -> int:
        """Port part of the scheduler's address."""
        return int(self.scheduler.rpartition(":")[2])
