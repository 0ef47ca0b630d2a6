"""From a launch to a running supervisor: the attempt's directory, its order, warm or cold start."""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from arena.domain.launch import ATTEMPT_ID_VARIABLE, LAUNCH_JSON, LAUNCH_VARIABLE, REPORT_VARIABLE, Launch
from arena.errors import ArenaError, UserError
from arena_agent.accounts import Account, job_account
from arena_agent.config import AgentConfig
from arena_agent.devices import DeviceSource
from arena_agent.files import AttemptFiles, StateFiles, sync_directory, write_durably
from arena_agent.network import interface_environment, interfaces, port_problem
from arena_agent.processes import AGENT_MARK_VARIABLE
from arena_agent.procfs import ProcessIdentity, process_entry
from arena_agent.shim.order import RankOrder, ShimOrder
from arena_agent.warm import WarmLauncher

_WARM_WAIT_S = 20.0

_log = logging.getLogger(__name__)


class LaunchRefusedError(ArenaError):
    """A share cannot be launched on this node."""

    code = "launch_failed"

    def __init__(self, what: str, *, error_code: str = "") -> None:
        super().__init__(what)
        self.error_code = error_code


@dataclass(frozen=True, slots=True, kw_only=True)
class Starter:
    """Starts supervisors.

    Args:
        config: The agent's settings.
        files: The agent's files.
        devices: For the environment and the locks of the devices.
        address: This node's address.
        warm: The warm launcher, None to start every worker cold.
    """

    config: AgentConfig
    files: StateFiles
    devices: DeviceSource
    address: str
    warm: WarmLauncher | None

    @property
    def environ(self) -> Mapping[str, str]:
        """What every process of a job inherits."""
        return job_environ(self.config, self.files)

    async def start(self, launch: Launch) -> ProcessIdentity:
        """Prepare the attempt's directory and start its supervisor.

        Raises:
            LaunchRefusedError: It cannot be started here; the message says why.
        """
        try:
            self._check(launch)
            files = self._prepare(launch)
            if launch.spec.train is not None and self.warm is not None and await self.warm.wait_ready(_WARM_WAIT_S):
                supervisor = await self.warm.fork(files.directory, launch.attempt_id)
                if supervisor is not None:
                    return supervisor
            return self._start_cold(launch, files)
        except OSError as error:
            raise LaunchRefusedError(f"{error.strerror}: {error.filename!r}") from error
        except ValueError as error:
            raise LaunchRefusedError(str(error), error_code="config") from error

    def _check(self, launch: Launch) -> None:
        if launch.spec.train is not None and importlib.util.find_spec("torch") is None:
            raise LaunchRefusedError("torch is not installed in the agent's Python environment", error_code="config")
        if 0 in launch.node_ranks:
            problem = port_problem(launch.master_addr, launch.master_port)
            if problem is not None:
                raise LaunchRefusedError(f"the ranks cannot meet: {problem}", error_code="port")

    def _prepare(self, launch: Launch) -> AttemptFiles:
        account = self._account(launch)
        files = self.files.attempt(launch.attempt_id)
        files.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_durably(files.launch, LAUNCH_JSON.dump_json(launch).decode())
        files.report.touch(mode=0o600)
        if account is not None:
            files.directory.chmod(0o711)
            account.own(files.launch, files.report)
        write_durably(files.order, self._order(launch, files, account).to_json())
        sync_directory(files.directory.parent)
        return files

    def _account(self, launch: Launch) -> Account | None:
        known = self.config.token is not None
        try:
            return job_account(launch.spec.user, is_root=os.geteuid() == 0, users_are_known=known)
        except UserError as error:
            raise LaunchRefusedError(error.message, error_code="config") from error

    def _order(self, launch: Launch, files: AttemptFiles, account: Account | None) -> ShimOrder:
        command = launch.spec.command
        home = str(account.home) if account else str(files.directory)
        return ShimOrder(
            attempt_id=launch.attempt_id,
            argv=command.argv if command else (sys.executable, "-m", "arena_agent.worker"),
            cwd=command.cwd if command and command.cwd else home,
            env={**(account.environment if account else {}), **self._shared_environment(launch, files)},
            ranks=tuple(rank_order(launch, local_rank) for local_rank in range(len(launch.node_ranks))),
            user=account.user if account else None,
            lock_paths=tuple(str(path) for path in self.devices.lock_paths(launch.device_ids)),
            log_cap_bytes=self.config.log_cap_bytes,
            grace_s=launch.spec.grace_s,
        )

    def _shared_environment(self, launch: Launch, files: AttemptFiles) -> dict[str, str]:
        command_env = launch.spec.command.env if launch.spec.command else {}
        user = {**self.config.environ, **command_env}
        try:
            interface = interface_environment(self.address, user, interfaces())
        except UserError as error:
            raise LaunchRefusedError(error.message, error_code="config") from error
        return {
            "PYTHONUNBUFFERED": user.get("PYTHONUNBUFFERED", "1"),
            "OMP_NUM_THREADS": user.get("OMP_NUM_THREADS", "1"),
            **interface,
            **command_env,
            **self.devices.rank_environment(launch.device_ids),
            ATTEMPT_ID_VARIABLE: launch.attempt_id,
            AGENT_MARK_VARIABLE: str(self.files.directory),
            LAUNCH_VARIABLE: str(files.launch),
            REPORT_VARIABLE: str(files.report),
        }

    def _start_cold(self, launch: Launch, files: AttemptFiles) -> ProcessIdentity:
        with files.supervisor_log.open("ab") as log:
            process = subprocess.Popen(
                (sys.executable, "-m", "arena_agent.shim", str(files.directory)),
                env={**self.environ, ATTEMPT_ID_VARIABLE: launch.attempt_id},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        entry = process_entry(process.pid)
        process.returncode = 0  # reaped after its end is verified: until then the zombie keeps its pid from new use
        if entry is None:
            raise LaunchRefusedError("the supervisor died at once")
        return entry.identity


def rank_order(launch: Launch, local_rank: int) -> RankOrder:
    """Return one rank in the torchrun environment contract."""
    rank = launch.node_ranks[local_rank]
    return RankOrder(
        rank=rank,
        env={
            "RANK": str(rank),
            "LOCAL_RANK": str(local_rank),
            "WORLD_SIZE": str(launch.world_size),
            "LOCAL_WORLD_SIZE": str(len(launch.node_ranks)),
            "GROUP_RANK": str(launch.node_index),
            "GROUP_WORLD_SIZE": str(launch.node_count),
            "MASTER_ADDR": launch.master_addr,
            "MASTER_PORT": str(launch.master_port),
        },
    )


def job_environ(config: AgentConfig, files: StateFiles) -> Mapping[str, str]:
    """Return the agent user's environment with this agent's mark."""
    return {**config.environ, AGENT_MARK_VARIABLE: str(files.directory)}


def write_stop(files: AttemptFiles, mode: str, grace_s: float) -> None:
    """Leave word for the supervisor how it is to stop; it reads it when it gets TERM."""
    write_durably(files.stop, json.dumps({"mode": mode, "grace_s": grace_s}))
