"""The agent's shell: it carries out what the state machine says, with journal, processes, devices and the link."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Coroutine, Iterable, Sequence
from dataclasses import replace

from arena.domain.cluster import Device, NodeInfo
from arena.domain.events import NodeRegistered
from arena.domain.launch import LAUNCH_JSON, AttemptId, DeviceId, Launch
from arena.domain.records import EndKind, NodeEnd
from arena.errors import ArenaError, ResourceExhaustedError, UserError
from arena.rpc.codec import Verdict, launch_from_proto, stop_attempt_from_proto
from arena.rpc.v1 import agent_service_pb2 as pb
from arena_agent.clock import boot_s
from arena_agent.devices import DeviceSource, Inventory
from arena_agent.files import StateFiles
from arena_agent.journal import Journal
from arena_agent.launching import LaunchRefusedError, Starter
from arena_agent.leaving import ends_anyway, leaves_by_itself_boot_s
from arena_agent.link import News, Session
from arena_agent.logs import LogSender, prune
from arena_agent.machine import (
    AgentEvent,
    AgentState,
    EndAcknowledged,
    HeldShare,
    LaunchAsked,
    LaunchUnreadable,
    RanksUp,
    StartSupervisor,
    StopAsked,
    StopMode,
    StopShare,
    SupervisorUp,
    TellEnded,
    TellStarted,
    VerifiedGone,
    Write,
    handle,
)
from arena_agent.news import Newsroom
from arena_agent.notice import NoticeFile
from arena_agent.procfs import ProcessIdentity, is_alive
from arena_agent.reports import all_reports
from arena_agent.shares import ShareKeeper

_DEVICE_CHECK_S = 2.0
_RETRY_S = 1.0
_NOTICE_CHECK_S = 0.5

_log = logging.getLogger(__name__)


class Agent:
    """One node of the cluster.

    Args:
        info: What the node is, but for its devices' states.
        state: What the journal says it holds.
        files: Its files.
        journal: Opened for appending.
        devices: Its devices.
        starter: Starts supervisors.
        keeper: Watches, stops and clears away shares.
        logs_kept_max: Ended attempts whose files are kept.
        notice: Says when the node will be taken away.
    """

    def __init__(
        self,
        *,
        info: NodeInfo,
        state: AgentState,
        files: StateFiles,
        journal: Journal,
        devices: DeviceSource,
        starter: Starter,
        keeper: ShareKeeper,
        logs_kept_max: int,
        notice: NoticeFile,
    ) -> None:
        self._info = info
        self._state = state
        self._files = files
        self._journal = journal
        self._devices = devices
        self._starter = starter
        self._keeper = keeper
        self._logs_kept_max = logs_kept_max
        self._notice = notice
        self._news = Newsroom(files, boot_s)
        self._logs = LogSender(files)
        self._may_have_news = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._leftovers: dict[DeviceId, tuple[ProcessIdentity, ...]] = {}
        self._cleaning: str | None = None
        self._disk_problem: str | None = None
        self._inventory = Inventory(devices=())
        self._alone_since_boot_s: float | None = boot_s()

    @property
    def state(self) -> AgentState:
        """What it holds."""
        return self._state

    # What happens, in the machine's words

    def take(self, event: AgentEvent) -> None:
        """Handle an event: the journal first, then the deeds.

        Raises:
            ResourceExhaustedError: The journal cannot be written; nothing has changed.
        """
        state, effects = handle(self._state, event)
        self._journal.append(*(effect.record for effect in effects if isinstance(effect, Write)))
        self._state = state
        for effect in effects:
            match effect:
                case StartSupervisor(launch=launch):
                    self._spawn(self._accompany(launch.attempt_id, self._run_share(launch)))
                case StopShare(attempt_id=attempt_id, mode=mode, grace_s=grace_s):
                    self._spawn(self._stop(self._state.shares[attempt_id], mode, grace_s))
                case TellStarted() | TellEnded() | Write():
                    self._may_have_news.set()

    async def _take_surely(self, event: AgentEvent) -> None:
        """Handle an event that is a fact: as long as the journal cannot be written, the node has a problem."""
        while True:
            try:
                self.take(event)
            except ResourceExhaustedError as error:
                self._disk_problem = error.message
                self._check_devices()
                await asyncio.sleep(_RETRY_S)
            else:
                self._disk_problem = None
                return

    def recover(self) -> None:
        """Take up the shares that the journal says live."""
        for share in self._state.live:
            self._spawn(self._accompany(share.attempt_id, self._readopt(share)))

    def mark_strays(self, strays: Sequence[str]) -> None:
        """Have the node show that it is not clean, before it registers."""
        if strays:
            self._cleaning = f"cleaning: processes of unknown attempts {', '.join(strays)}"

    async def clean(self, strays: Iterable[str]) -> None:
        """Kill processes of ours whose attempt is unknown; the node has a problem until they are gone."""
        for name in strays:
            while not await self._is_cleared(name):
                await asyncio.sleep(_RETRY_S)
        self._cleaning = None
        self._look_at_devices()

    async def _is_cleared(self, name: str) -> bool:
        """Clear a stray away; return whether nothing of it is left."""
        try:
            left = await self._keeper.clear_stray(name)
        except Exception:  # noqa: BLE001 - the outermost frame of one try: the next may do better
            _log.exception("processes of unknown attempt %s could not be cleared away", name)
            return False
        if left:
            pids = ", ".join(str(identity.pid) for identity in left)
            self._cleaning = f"cleaning: processes {pids} of unknown attempt {name} do not die"
            self._look_at_devices()
        return not left

    async def watch_devices(self) -> None:
        """Look at the devices again and again."""
        while True:
            self._look_at_devices()
            await asyncio.sleep(_DEVICE_CHECK_S)

    def _look_at_devices(self) -> None:
        try:
            self._check_devices()
        except Exception:  # noqa: BLE001 - the outermost frame of one look: the next may do better
            _log.exception("the devices could not be looked at")

    async def watch_notice(self) -> None:
        """Have shares save and stop in time where the node goes and no scheduler asks for it."""
        while True:
            try:
                self._leave_by_itself()
            except Exception:  # noqa: BLE001 - the outermost frame of one look: the next may do better
                _log.exception("what runs here could not be made to leave")
            await asyncio.sleep(_NOTICE_CHECK_S)

    def _leave_by_itself(self) -> None:
        notice = self._notice.in_force()
        if notice is None:
            return
        for share in self._state.live:
            launch = self._stored_launch(share.attempt_id) if share.stop_mode is None else None
            if launch is None or boot_s() < leaves_by_itself_boot_s(launch.spec, notice, self._alone_since_boot_s):
                continue
            if ends_anyway(all_reports(self._files.attempt(share.attempt_id))):
                continue
            _log.warning("no scheduler asks attempt %s to leave: this agent does", share.attempt_id)
            # Nobody else waits for its devices: should the node stay longer than was said, so may the save.
            grace_s = max(notice.gone_boot_s - boot_s(), launch.spec.grace_s)
            self.take(StopAsked(attempt_id=share.attempt_id, mode="save", grace_s=grace_s, left_for=notice.why))

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task: asyncio.Task[None] = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accompany(self, attempt_id: AttemptId, life: Coroutine[None, None, None]) -> None:
        """See a share to its end, whatever goes wrong on the way: a share nobody looks after holds its devices."""
        while True:
            try:
                await life
            except Exception:  # noqa: BLE001 - the outermost frame of a share's life
                _log.exception("looking after attempt %s failed and is taken up again", attempt_id)
            share = self._state.shares.get(attempt_id)
            if share is None or not share.is_live:
                return
            await asyncio.sleep(_RETRY_S)
            life = self._readopt(share)

    async def _stop(self, share: HeldShare, mode: StopMode, grace_s: float) -> None:
        """Stop a share, whatever goes wrong on the way: nobody asks again for a kill that is on record."""
        while True:
            try:
                await self._keeper.stop(share, mode, grace_s)
            except Exception:  # noqa: BLE001 - the outermost frame of a stop
                _log.exception("stopping attempt %s failed and is tried again", share.attempt_id)
            else:
                return
            await asyncio.sleep(_RETRY_S)

    async def _run_share(self, launch: Launch) -> None:
        try:
            supervisor = await self._starter.start(launch)
        except LaunchRefusedError as error:
            end = NodeEnd(
                node_id=self._info.node_id,
                kind=EndKind.LAUNCH_FAILED,
                error_code=error.error_code,
                message=error.message,
            )
            await self._take_surely(VerifiedGone(attempt_id=launch.attempt_id, end=end, gone_boot_s=boot_s()))
            return
        await self._take_surely(SupervisorUp(attempt_id=launch.attempt_id, supervisor=supervisor))
        await self._watch_share(launch.attempt_id, launch)

    async def _readopt(self, share: HeldShare) -> None:
        launch = self._stored_launch(share.attempt_id)
        if share.supervisor is None:
            supervisor = self._keeper.claim_or_adopt(share.attempt_id)
            if supervisor is not None:
                await self._take_surely(SupervisorUp(attempt_id=share.attempt_id, supervisor=supervisor))
        await self._watch_share(share.attempt_id, launch)

    def _stored_launch(self, attempt_id: AttemptId) -> Launch | None:
        try:
            return LAUNCH_JSON.validate_json(self._files.attempt(attempt_id).launch.read_bytes())
        except (OSError, ValueError):
            return None

    async def _watch_share(self, attempt_id: AttemptId, launch: Launch | None) -> None:
        """Stay with a share until nothing of it is left."""
        share = self._state.shares[attempt_id]
        if share.stop_mode is not None:  # asked for before there was anybody to tell
            self._spawn(self._stop(share, share.stop_mode, share.stop_grace_s))
        if await self._keeper.wait_started(share):
            await self._take_surely(RanksUp(attempt_id=attempt_id))
        await self._keeper.wait_gone(share)
        share = self._state.shares[attempt_id]
        gone = await self._keeper.clear(share, launch)
        self._leftovers.update(dict.fromkeys(gone.end.dirty, gone.leftovers))
        await self._take_surely(VerifiedGone(attempt_id=attempt_id, end=gone.end, gone_boot_s=gone.gone_boot_s))
        self._check_devices()

    def _check_devices(self) -> None:
        held = frozenset(device for share in self._state.live for device in share.devices)
        inventory = self._devices.inventory(held)
        self._leftovers = {
            device: living
            for device, identities in self._leftovers.items()
            if (living := tuple(identity for identity in identities if is_alive(identity)))
        }
        devices = tuple(self._with_leftovers(device) for device in inventory.devices)
        inventory = Inventory(devices=devices, problem=self._cleaning or self._disk_problem or inventory.problem)
        if inventory != self._inventory:
            self._inventory = inventory
            self._may_have_news.set()

    def _with_leftovers(self, device: Device) -> Device:
        identities = self._leftovers.get(device.device_id, ())
        if not identities:
            return device
        pids = ", ".join(str(identity.pid) for identity in identities)
        return replace(device, dirty=f"leftover processes {pids} do not die")

    async def close(self) -> None:
        """Let go of everything; the shares live on."""
        self._logs.cancel_all()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # What the link asks

    def registration(self) -> NodeRegistered:
        """Return the full inventory."""
        self._check_devices()
        notice = self._notice.read()
        held, ended = self._news.begin(self._state, self._inventory, notice)
        info = replace(self._info, devices=self._inventory.devices, problem=self._inventory.problem)
        word = notice.left(boot_s()) if notice is not None else None
        return NodeRegistered(info=info, held=held, ended=ended, notice=word)

    def news(self) -> Iterable[News]:
        """Return what was not yet said."""
        return tuple(self._news.collect(self._state, self._inventory, self._notice.read()))

    async def wait_for_news(self, limit_s: float) -> None:
        """Return when there may be news, or after the limit."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await self._may_have_news.wait()
        self._may_have_news.clear()

    def take_verdict(self, verdict: Verdict) -> None:
        """Kill what the scheduler does not want."""
        self._alone_since_boot_s = None
        for attempt_id in verdict.kill:
            if attempt_id in self._state.shares:
                self.take(StopAsked(attempt_id=attempt_id, mode="kill", grace_s=0.0))

    def session_ended(self) -> None:
        """Stop sending logs into a stream that is gone."""
        if self._alone_since_boot_s is None:
            self._alone_since_boot_s = boot_s()
        self._logs.cancel_all()

    def take_message(self, message: pb.OpenSessionResponse, session: Session) -> None:
        """Act on a command; one that cannot be read is logged, the stream goes on."""
        try:
            self._take_message(message, session)
        except ArenaError as error:
            _log.error("a command of the scheduler cannot be carried out: %s", error.message)
        except Exception:  # noqa: BLE001 - the outermost frame of a command
            _log.exception("a command of the scheduler failed here")

    def _take_message(self, message: pb.OpenSessionResponse, session: Session) -> None:
        node_id = self._info.node_id
        match message.WhichOneof("message"):
            case "launch":
                self._take_launch(message.launch)
            case "stop_attempt":
                stop = stop_attempt_from_proto(message.stop_attempt, node_id)
                self.take(StopAsked(attempt_id=stop.attempt_id, mode=stop.mode, grace_s=stop.grace_s))
            case "acknowledge_end":
                self._acknowledge(AttemptId(message.acknowledge_end.attempt_id))
            case "read_log":
                self._logs.start(message.read_log, session)
            case "dismiss_notice":
                self._notice.dismiss(message.dismiss_notice.notice_id)
            case "cancel_read":
                self._logs.cancel(message.cancel_read.read_id)
            case other:
                _log.warning("a message of kind %s is not known here", other)

    def _take_launch(self, message: pb.Launch) -> None:
        try:
            launch = launch_from_proto(message)
        except UserError as error:
            self.take(LaunchUnreadable(attempt_id=AttemptId(message.attempt_id), why=error.message))
            return
        self.take(LaunchAsked(launch=launch, unfit=self._unfit(launch)))

    def _acknowledge(self, attempt_id: AttemptId) -> None:
        self.take(EndAcknowledged(attempt_id=attempt_id))
        self._news.forget(attempt_id)
        prune(self._files, self._logs_kept_max, frozenset(self._state.shares))

    def _unfit(self, launch: Launch) -> str | None:
        """Return why this node's devices do not suit a launch."""
        self._check_devices()
        devices = {device.device_id: device for device in self._inventory.devices}
        for device_id in launch.device_ids:
            if device_id not in devices:
                return f"device {device_id} is not on this node"
            if devices[device_id].dirty is not None:
                return f"device {device_id} is dirty: {devices[device_id].dirty}"
        return None
