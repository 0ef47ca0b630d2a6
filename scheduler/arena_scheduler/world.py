"""The live world: commands go to agents' sessions and to the planner, whose answers come back as events."""

from __future__ import annotations

import asyncio
import logging

from arena.domain.commands import (
    AcknowledgeEnd,
    AnswerRegistration,
    BuildGrid,
    Command,
    DismissNotice,
    LaunchAttempt,
    StopAttempt,
)
from arena.domain.events import GridFailed
from arena.errors import ArenaError
from arena.rpc import codec
from arena.rpc.v1 import agent_service_pb2 as pb
from arena_scheduler.grids import Built, GridCache
from arena_scheduler.inbox import Inbox
from arena_scheduler.sessions import Sessions

_log = logging.getLogger(__name__)


class LiveWorld:
    """Carries out commands.

    Args:
        heartbeat_interval_s, node_grace_s: Told to each agent with its verdict.
    """

    def __init__(
        self,
        *,
        sessions: Sessions,
        grids: GridCache,
        inbox: Inbox,
        heartbeat_interval_s: float,
        node_grace_s: float,
    ) -> None:
        self._sessions = sessions
        self._grids = grids
        self._inbox = inbox
        self._heartbeat_interval_s = heartbeat_interval_s
        self._node_grace_s = node_grace_s
        self._builds: set[asyncio.Task[None]] = set()

    def send(self, command: Command) -> None:
        """Start carrying out a command; one to an absent node is dropped, since its registration asks anew."""
        match command:
            case BuildGrid():
                task = asyncio.get_running_loop().create_task(self._build(command))
                self._builds.add(task)
                task.add_done_callback(self._builds.discard)
            case LaunchAttempt():
                message = pb.OpenSessionResponse(launch=codec.launch_to_proto(command.launch))
                self._sessions.send(command.node_id, message)
            case StopAttempt():
                message = pb.OpenSessionResponse(stop_attempt=codec.stop_attempt_to_proto(command))
                self._sessions.send(command.node_id, message)
            case AcknowledgeEnd():
                message = pb.OpenSessionResponse(acknowledge_end=codec.acknowledge_end_to_proto(command))
                self._sessions.send(command.node_id, message)
            case DismissNotice(notice_id=notice_id):
                message = pb.OpenSessionResponse(dismiss_notice=pb.DismissNotice(notice_id=notice_id))
                self._sessions.send(command.node_id, message)
            case AnswerRegistration():
                verdict = codec.verdict_to_proto(
                    command, heartbeat_interval_s=self._heartbeat_interval_s, node_grace_s=self._node_grace_s
                )
                self._sessions.answer(command.node_id, pb.OpenSessionResponse(verdict=verdict))

    async def _build(self, command: BuildGrid) -> None:
        try:
            built = await self._grids.get(command.spec, command.shape)
        except ArenaError as error:
            self._inbox.post(GridFailed(job_id=command.job_id, error=error.message))
        except Exception as error:  # noqa: BLE001 - the outermost frame of one build; the job gets the word
            _log.exception("the grid of job %s failed", command.job_id)
            self._inbox.post(GridFailed(job_id=command.job_id, error=repr(error)))
        else:
            self._tell(command, built)
            await self._widen(command)

    async def _widen(self, command: BuildGrid) -> None:
        """Tell of cells over several GPU types once they are found; without them the job has its grid all the same."""
        if not self._grids.may_widen(command.spec, command.shape):
            return
        try:
            built = await self._grids.widened(command.spec, command.shape)
        except Exception:  # noqa: BLE001 - the outermost frame of one search; the job goes on without
            _log.exception("no cells over several GPU types for job %s", command.job_id)
            return
        if built.grid.mixed:
            self._tell(command, built)

    def _tell(self, command: BuildGrid, built: Built) -> None:
        self._inbox.post(built.told(command.job_id, command.shape))

    def close(self) -> None:
        """Forget the builds under way."""
        for task in self._builds:
            task.cancel()
