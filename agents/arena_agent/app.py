"""Composition of the agent: the one place that builds its parts. It never imports torch."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from arena.domain.cluster import NodeInfo
from arena.domain.launch import NodeId
from arena.errors import AlreadyRunningError, UserError
from arena.rpc.version import software_version
from arena_agent.agent import Agent
from arena_agent.clock import boot_id, boot_s, wall_s
from arena_agent.config import AgentConfig
from arena_agent.devices import DeviceSource, Inventory, VirtualDevices
from arena_agent.files import StateFiles
from arena_agent.journal import AgentStarted, Journal, Record
from arena_agent.launching import Starter, job_environ
from arena_agent.link import Link
from arena_agent.lock import directory_lock
from arena_agent.machine import AgentState, after_reboot, replay
from arena_agent.memory import memory_limit_bytes
from arena_agent.network import own_address
from arena_agent.notice import NoticeFile
from arena_agent.nvml import NvmlDevices
from arena_agent.places import visible_places
from arena_agent.processes import marked_attempts
from arena_agent.shares import ShareKeeper
from arena_agent.shim.launcher import ATTEMPT_ID_PLACEHOLDER
from arena_agent.warm import WarmLauncher

_CANCEL_INTERVAL_S = 1.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentReport:
    """What an agent would register, for ``arena agent --check``."""

    inventory: Inventory
    gpu_type: str
    address: str
    memory_bytes: int
    visible_places: Mapping[str, str]

    @property
    def is_healthy(self) -> bool:
        """Whether the node would be ready for work."""
        clean = all(device.dirty is None for device in self.inventory.devices)
        return self.inventory.problem is None and bool(self.inventory.devices) and clean


def check_agent(config: AgentConfig) -> AgentReport:
    """Return what an agent would register, without registering.

    Raises:
        UserError: The settings cannot work on this host.
    """
    files = _state_files(config)
    devices = device_source(config, files)
    return AgentReport(
        inventory=devices.inventory(frozenset()),
        gpu_type=devices.gpu_type,
        address=config.address or own_address(config.scheduler_host, config.scheduler_port),
        memory_bytes=memory_limit_bytes(),
        visible_places=visible_places(config.checkpoint_places),
    )


def run_agent(config: AgentConfig) -> int:
    """Run an agent until it is told to end (TERM, INT) or the scheduler refuses it for good.

    Its jobs run on when it ends; the next agent on the same directory takes them up.

    Returns:
        0 when it was told to end.

    Raises:
        ArenaError: It cannot start, or the scheduler refuses it.
    """
    # Processes are started by exec or by the launcher, never forked from here.
    os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"
    files = _state_files(config)
    if os.geteuid() == 0 and config.token is None:
        _log.warning(
            "this agent is root and has no token: users are whoever they say, and all jobs run as root. "
            "Give it a token, or run it under another account"
        )
    with directory_lock(files.lock):
        return asyncio.run(_run(config, files))


def device_source(config: AgentConfig, files: StateFiles) -> DeviceSource:
    """Return where the devices of a configuration come from."""
    if config.virtual_gpus is not None:
        return VirtualDevices(NodeId(config.node_id), config.virtual_gpus, config.gpu_type or "cpu", files)
    return NvmlDevices(config.environ.get("CUDA_VISIBLE_DEVICES"), config.gpu_type)


def _state_files(config: AgentConfig) -> StateFiles:
    files = StateFiles(directory=config.state_dir.resolve())
    try:
        files.attempts.mkdir(mode=0o711, parents=True, exist_ok=True)
        files.device_locks.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"the state directory {config.state_dir} cannot be used", why=str(error), fix="give another --state-dir"
        ) from error
    return files


async def _run(config: AgentConfig, files: StateFiles) -> int:
    address = config.address or own_address(config.scheduler_host, config.scheduler_port)
    devices = device_source(config, files)
    incarnation = uuid.uuid4().hex
    with _open_journal(config, files, incarnation) as (journal, state):
        warm = _warm_launcher(config, files)
        agent = Agent(
            info=_node_info(config, devices, address, incarnation),
            state=state,
            files=files,
            journal=journal,
            devices=devices,
            starter=Starter(config=config, files=files, devices=devices, address=address, warm=warm),
            keeper=ShareKeeper(NodeId(config.node_id), files, config.supervisor_margin_s),
            logs_kept_max=config.logs_kept_max,
            notice=NoticeFile(config.notice_file or files.notice, files.notice_dismissed, boot_s=boot_s, wall_s=wall_s),
        )
        return await _live(agent, Link(config, agent), warm, _strays(files, state))


async def _live(agent: Agent, link: Link, warm: WarmLauncher | None, strays: tuple[str, ...]) -> int:
    """Run all parts until told to end or until one fails."""
    told_to_end = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told_to_end.set)
    agent.mark_strays(strays)
    agent.recover()
    watches = [agent.watch_devices(), agent.watch_notice()]
    parts = [agent.clean(strays), *watches, link.run(), *([warm.run()] if warm else [])]
    tasks = [asyncio.create_task(part) for part in parts]
    end = asyncio.create_task(told_to_end.wait())
    try:
        pending: set[asyncio.Task[object]] = {*tasks, end}
        while not end.done():
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
    finally:
        await end_all({*tasks, end})
        await agent.close()
    return 0


async def end_all(tasks: set[asyncio.Task[object]]) -> None:
    """Cancel tasks until they have ended.

    A cancellation can get lost: a task group whose stream breaks in that moment raises what broke, and the loop around
    it would connect anew for ever.
    """
    while tasks:
        for task in tasks:
            task.cancel()
        _, tasks = await asyncio.wait(tasks, timeout=_CANCEL_INTERVAL_S)


@contextlib.contextmanager
def _open_journal(config: AgentConfig, files: StateFiles, incarnation: str) -> Iterator[tuple[Journal, AgentState]]:
    journal = Journal(files.journal, wall_s=wall_s, boot_s=boot_s)
    try:
        records = [entry.record for entry in journal.open()]
        _check_owner(config, files, [record for record in records if isinstance(record, AgentStarted)])
        state = replay(NodeId(config.node_id), records)
        if _last_boot_id(records) != boot_id():
            state = after_reboot(state)
        started = AgentStarted(
            node_id=NodeId(config.node_id), incarnation=incarnation, boot_id=boot_id(), pid=os.getpid()
        )
        journal.append(started)
        yield journal, state
    finally:
        journal.close()


def _check_owner(config: AgentConfig, files: StateFiles, starts: list[AgentStarted]) -> None:
    """Refuse a directory that holds another node's history."""
    if starts and starts[-1].node_id != config.node_id:
        raise AlreadyRunningError(
            f"the state directory {files.directory} belongs to node {starts[-1].node_id}",
            fix=f"give node {config.node_id} a directory of its own with --state-dir",
        )


def _last_boot_id(records: Sequence[Record]) -> str | None:
    boot_ids = [record.boot_id for record in records if isinstance(record, AgentStarted)]
    return boot_ids[-1] if boot_ids else None


def _strays(files: StateFiles, state: AgentState) -> tuple[str, ...]:
    """Return the attempts that have processes here but no place in the journal."""
    live = {share.attempt_id for share in state.live}
    marked = marked_attempts(str(files.directory))
    return tuple(name for name in marked if name not in live and name != ATTEMPT_ID_PLACEHOLDER)


def _warm_launcher(config: AgentConfig, files: StateFiles) -> WarmLauncher | None:
    if not config.warm_launcher:
        return None
    argv = (sys.executable, "-m", "arena_agent.worker.launcher")
    return WarmLauncher(argv, job_environ(config, files), files.launcher_log)


def _node_info(config: AgentConfig, devices: DeviceSource, address: str, incarnation: str) -> NodeInfo:
    return NodeInfo(
        node_id=NodeId(config.node_id),
        incarnation=incarnation,
        gpu_type=devices.gpu_type,
        devices=(),
        address=address,
        port_low=config.port_low,
        port_high=config.port_high,
        zone=config.zone,
        region=config.region,
        labels=dict(config.labels),
        memory_bytes=memory_limit_bytes(),
        agent_version=software_version(),
        visible_places=visible_places(config.checkpoint_places),
    )
