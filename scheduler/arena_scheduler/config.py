"""How a scheduler is set up."""

from __future__ import annotations

import ipaddress
import math
from dataclasses import dataclass
from pathlib import Path

from arena.errors import UserError

DEFAULT_PORT = 50061
KEEP_HISTORY_S_MIN = 3_600.0
"""Who follows a job must be able to see how it ended."""
CLOCK_LEAP_S = 7 * 86_400.0
"""From the last commit to the next start: where it is longer, or longer than is kept, the clock may have leapt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """Settings of a scheduler process.

    Args:
        host, port: Where it listens; port 0 takes a free one.
        db: The database file.
        policy: Registry name of the policy.
        policy_options: Options of the policy.
        tokens: YAML file of issued tokens (see ``arena_scheduler.access``); None means trial mode, loopback only.
        tenants: YAML file of guaranteed shares (see ``arena.planner.tenantfile``), read once, at the start.
        tls_cert, tls_key: PEM files; both or neither.
        checkpoint_root: Place under which jobs that name none keep their checkpoints.
        output_root: Place under which jobs that name none leave their results.
        heartbeat_interval_s: How often agents say that they live.
        node_grace_s: Silence after which an agent is out of reach, and absence after which its node is lost.
        restart_s: What saving, stopping and resuming a job is taken to cost until some have been measured.
        launch_deadline_s: From launch until all processes of an attempt are up.
        decide_after_s: How long what happens is gathered before it is decided about all of it at once; None decides
            at every event.
        keep_history_s: So long after its end a job is known, with its history and attempts, and so far back reach the
            engine's log and the history of nodes; nodes lost for longer are forgotten. None keeps everything.
        metrics_host, metrics_port: Where metrics are served; port 0 takes a free one, None serves none.
        address_file: File to which the bound address is written once the scheduler serves.
    """

    db: Path
    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    policy: str = "arena"
    policy_options: tuple[tuple[str, float], ...] = ()
    tokens: Path | None = None
    tenants: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    checkpoint_root: str = ""
    output_root: str = ""
    heartbeat_interval_s: float = 1.0
    node_grace_s: float = 15.0
    restart_s: float = 10.0
    launch_deadline_s: float = 60.0
    decide_after_s: float | None = None
    keep_history_s: float | None = None
    metrics_host: str = "127.0.0.1"
    metrics_port: int | None = None
    address_file: Path | None = None

    def __post_init__(self) -> None:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise UserError("TLS needs both files", fix="give --tls-cert and --tls-key together")
        if self.node_grace_s <= 2 * self.heartbeat_interval_s:
            raise UserError(
                "the node grace is too short",
                why=f"grace {self.node_grace_s:g} s, a heartbeat every {self.heartbeat_interval_s:g} s",
                fix="give a grace of more than two heartbeats",
            )
        if not self.restart_s >= 0:
            raise UserError("a restart cannot cost less than nothing", why=f"got {self.restart_s:g} s")
        if self.decide_after_s is not None and not 0 <= self.decide_after_s < math.inf:
            raise UserError("decisions cannot wait that long", why=f"got {self.decide_after_s:g} s")
        if self.keep_history_s is not None and not KEEP_HISTORY_S_MIN <= self.keep_history_s < math.inf:
            raise UserError(
                "history cannot be kept for so short a time",
                why=f"got {self.keep_history_s:g} s",
                fix=f"keep {KEEP_HISTORY_S_MIN / 3600:.0f} h or more, or everything by leaving --keep-history out",
            )
        if self.metrics_port and self.metrics_port == self.port:
            raise UserError(f"port {self.port} is the scheduler's own", fix="give another with --metrics-port")
        if not is_loopback(self.host):
            self._refuse_open_door(
                f"the scheduler may not listen on {self.host} like this",
                "submitting a job is running code, so off loopback it demands a token and TLS",
                self.host,
            )
        if self.metrics_port is not None and not is_loopback(self.metrics_host):
            self._refuse_open_door(
                f"metrics may not be served on {self.metrics_host} like this",
                "they name projects and zones, so off loopback they demand a token and TLS",
                self.metrics_host,
            )

    def _refuse_open_door(self, what: str, why: str, host: str) -> None:
        missing = [
            option
            for option, value in (("--tokens", self.tokens), ("--tls-cert and --tls-key", self.tls_cert))
            if value is None
        ]
        if missing:
            fix = f"give {' and '.join(missing)}, or listen on 127.0.0.1"
            raise UserError(what, why=why, fix=fix, details={"host": host})


def is_loopback(host: str) -> bool:
    """Tell whether only this machine can reach an address; a name other than localhost is taken as reachable."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
