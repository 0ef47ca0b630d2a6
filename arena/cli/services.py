"""``arena scheduler`` and ``arena agent``: flags (or ARENA_* variables) become the configuration of a service."""

from __future__ import annotations

import logging
import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from arena.cli.app import App, command
from arena.cli.numbers import Duration
from arena.cli.output import Output
from arena.cli.policy_choice import number_option, policy_flags
from arena.cli.quoting import escaped, quoted
from arena.cli.settings import client_settings
from arena.errors import UserError
from arena.units import format_bytes, format_count

if TYPE_CHECKING:
    from arena_agent.app import AgentReport
    from arena_agent.config import AgentConfig
    from arena_scheduler.config import SchedulerConfig

NOT_HEALTHY = 1
_FILE = click.Path(path_type=Path, dir_okay=False)
_DIRECTORY = click.Path(path_type=Path, file_okay=False)


def state_home() -> Path:
    """Return the directory for state of this user's services."""
    base = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(base) / "arena"


def start_logging(verbose: bool) -> None:
    """Send the log of a service to standard error, one line an entry."""
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.DEBUG if verbose else logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    logging.getLogger("alembic").setLevel(logging.WARNING)


@command(
    asks_scheduler=False,
    short_help="Run the scheduler.",
    context_settings={"auto_envvar_prefix": "ARENA_SCHEDULER"},
)
@click.option("--host", default="127.0.0.1", show_default=True, show_envvar=True, help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), help="Port; 0 takes a free one.  [default: 50061]")
@click.option("--db", type=_FILE, help="Database file.  [default: scheduler.db in the state directory]")
@policy_flags
@click.option("--tokens", type=_FILE, help="YAML file of issued tokens; demanded off loopback.")
@click.option("--tenants", type=_FILE, help="YAML file of GPUs that projects are guaranteed.")
@click.option("--tls-cert", type=_FILE, help="PEM certificate; demanded off loopback.")
@click.option("--tls-key", type=_FILE, help="PEM key of the certificate.")
@click.option("--checkpoint-root", type=_DIRECTORY, help="Where jobs that name no place keep checkpoints.")
@click.option("--output-root", type=_DIRECTORY, help="Where jobs that name no place leave results.")
@click.option("--heartbeat-interval", "heartbeat_interval_s", type=float, metavar="SECONDS", help="Of agents.")
@click.option("--node-grace", "node_grace_s", type=float, metavar="SECONDS", help="Silence after which a node is lost.")
@click.option("--restart", "restart_s", type=float, metavar="SECONDS", help="Its cost until some were measured.")
@click.option(
    "--decide-after", "decide_after_s", type=float, metavar="SECONDS", help="Gather events for so long first."
)
@click.option("--launch-deadline", "launch_deadline_s", type=float, metavar="SECONDS", help="For a gang to be up.")
@click.option(
    "--keep-history",
    "keep_history_s",
    type=Duration(),
    help="Forget what ended, or was lost, longer ago: 30d.  [default: nothing]",
)
@click.option("--metrics-host", default="127.0.0.1", show_default=True, help="Address to serve metrics on.")
@click.option(
    "--metrics-port",
    type=click.IntRange(0, 65535),
    help="Serve metrics for Prometheus there; 0 takes a free port.  [default: none]",
)
@click.option("--address-file", type=_FILE, help="File that gets the address once it serves.")
def scheduler(app: App, **options: Any) -> int:
    """Run the scheduler until TERM or Ctrl-C; jobs go on running.

    Every option is also a variable: --node-grace is ARENA_SCHEDULER_NODE_GRACE_S.
    """
    from arena_scheduler.app import serve

    start_logging(app.flags.verbose)
    return serve(_scheduler_config(options))


def _scheduler_config(options: dict[str, Any]) -> SchedulerConfig:
    from arena_scheduler.config import SchedulerConfig

    home = state_home()
    db = options.pop("db") or home / "scheduler.db"
    db.parent.mkdir(parents=True, exist_ok=True)
    given = {key: value for key, value in options.items() if value is not None}
    given["policy_options"] = tuple(number_option(item) for item in given["policy_options"])
    for root in ("checkpoint_root", "output_root"):
        place = given.get(root) or db.absolute().parent / root.removesuffix("_root")
        given[root] = str(Path(place).absolute())
    return SchedulerConfig(db=db, **given)


@command(short_help="Run the agent of this node.", context_settings={"auto_envvar_prefix": "ARENA_AGENT"})
@click.option("--node-id", help="Name of this node.  [default: the host's name]")
@click.option("--state-dir", type=_DIRECTORY, help="Its directory.  [default: agent-NODE in the state directory]")
@click.option("--virtual-gpus", type=click.IntRange(1), help="Offer so many CPU workers as GPUs.")
@click.option("--gpu-type", help="Catalog name of the GPUs.  [default: what the driver says]")
@click.option("--zone", default="default", show_default=True, help="Where the node stands.")
@click.option("--region", default="default", show_default=True, help="Which zones are near each other.")
@click.option(
    "--label",
    "labels",
    metavar="NAME=VALUE",
    multiple=True,
    help="A label, which `arena nodes --json` shows; jobs cannot ask for one. May be repeated.",
)
@click.option("--address", help="Where other nodes reach this one.  [default: towards the scheduler]")
@click.option("--ports", metavar="LOW-HIGH", default="20000-29999", show_default=True, help="Rendezvous ports.")
@click.option("--place", "places", type=_DIRECTORY, multiple=True, help="Checkpoint place; may be repeated.")
@click.option("--log-cap", "log_cap_bytes", type=click.IntRange(4096), metavar="BYTES", help="Kept of a rank's output.")
@click.option(
    "--notice-file", type=_FILE, help="Says that the node will be taken away.  [default: notice in its directory]"
)
@click.option("--cold", is_flag=True, help="Start every rank anew instead of from a process that has torch loaded.")
@click.option("--check", is_flag=True, help="Show what would be registered, and exit.")
def agent(app: App, **options: Any) -> int:
    """Run the agent of this node until TERM or Ctrl-C; its jobs go on running.

    Every option is also a variable: --virtual-gpus is ARENA_AGENT_VIRTUAL_GPUS.
    """
    from arena_agent.app import check_agent, run_agent

    check = options.pop("check")
    config = _agent_config(app, options)
    if check:
        return _tell_check(app.out, check_agent(config))
    start_logging(app.flags.verbose)
    return run_agent(config)


def _agent_config(app: App, options: dict[str, Any]) -> AgentConfig:
    from arena_agent.config import AgentConfig

    settings = client_settings(app.flags, os.environ)
    node_id = options["node_id"] or socket.gethostname()
    low, high = _port_range(options["ports"])
    given = {"log_cap_bytes": options["log_cap_bytes"]} if options["log_cap_bytes"] is not None else {}
    return AgentConfig(
        node_id=node_id,
        scheduler=settings.address,
        state_dir=options["state_dir"] or state_home() / f"agent-{node_id}",
        virtual_gpus=options["virtual_gpus"],
        gpu_type=options["gpu_type"],
        zone=options["zone"],
        region=options["region"],
        labels=dict(_label(item) for item in options["labels"]),
        address=options["address"],
        port_low=low,
        port_high=high,
        checkpoint_places=tuple(place.absolute() for place in options["places"]),
        token=settings.token,
        tls_ca=settings.tls_ca,
        warm_launcher=not options["cold"],
        notice_file=options["notice_file"],
        environ=_job_environ(),
        **given,
    )


def _job_environ() -> dict[str, str]:
    """Return what the agent's jobs inherit: its environment without our own settings, the token among them."""
    return {key: value for key, value in os.environ.items() if not key.startswith("ARENA_")}


def _port_range(text: str) -> tuple[int, int]:
    low, _, high = text.partition("-")
    if not (low.isdigit() and high.isdigit()):
        raise UserError(f"--ports {text} is no range", fix="write it like 20000-29999")
    return int(low), int(high)


def _label(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not sign or not name:
        raise UserError(f"--label {text} has no value", fix="write it like --label rack=7")
    return name, value


def _tell_check(out: Output, report: AgentReport) -> int:
    if out.json_mode:
        out.document(agent=report, healthy=report.is_healthy)
        return 0 if report.is_healthy else NOT_HEALTHY
    gpus = format_count(len(report.inventory.devices), f"{escaped(report.gpu_type)} GPU")
    out.line(f"{gpus} at {escaped(report.address)}")
    out.line(f"{format_bytes(report.memory_bytes)} memory")
    for device in report.inventory.devices:
        out.line(f"  {device.index}: {quoted(device.device_id)} {escaped(device.dirty or 'clean')}")
    for place in sorted(report.visible_places):
        out.line(f"checkpoint place {quoted(place)}")
    for problem in _problems(report):
        out.line(f"PROBLEM  {problem}", style="bold red")
    return 0 if report.is_healthy else NOT_HEALTHY


def _problems(report: AgentReport) -> Sequence[str]:
    problems = [escaped(report.inventory.problem)] if report.inventory.problem else []
    return problems if report.inventory.devices else [*problems, "there is no GPU; see --virtual-gpus"]
