"""The live driver: takes events in batches, makes each batch durable in one transaction, then acts on it.

The engine works in one thread, the commit is made in another. While a batch is being decided about, what is asked is
answered as of the last durable one, and agents are listened to, however long that takes. While one batch is being
synced the next one collects, so that many submits share one sync without any of them waiting for a timer.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol, TypeVar

from arena.domain.events import Event, GridBuilt, GridFailed, NodeDisconnected, Tick
from arena.domain.launch import NodeId
from arena.domain.records import JobState
from arena.engine.ports import Step, World
from arena.engine.state import ClusterState
from arena.errors import ArenaError, InternalError, ResourceExhaustedError, UnavailableError
from arena_scheduler.clock import AwakeClock, LiveClock
from arena_scheduler.inbox import Inbox, Item
from arena_scheduler.reading import LiveStore
from arena_scheduler.tally import Tally
from arena_scheduler.turn import Part, TurnWatch

_log = logging.getLogger(__name__)

_Result = TypeVar("_Result")

ITEMS_PER_BATCH_MAX = 256
BATCH_S_MAX = 0.05
TICK_INTERVAL_S_MIN = 0.02
IDLE_S_MAX = 0.5
PROBE_INTERVAL_S = 1.0
DROP_INTERVAL_S = 60.0
DROP_AGAIN_S = 0.5
"""While much is to be dropped: most of the time is left to commits."""
ROOM_INTERVAL_S = 60.0


LISTEN_INTERVAL_S = 0.5
"""While the engine or the store is at work: how often it is noted that the process listens."""

LONG_S = 10.0
"""What has taken the engine or the store so long is told of, and again whenever that has doubled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Handled:
    """What the engine made of a batch.

    Args:
        left: Items that there was no time for.
    """

    done: list[tuple[Item, Step]]
    failed: list[tuple[Item, ArenaError]]
    left: Sequence[Item]


class Brain(Protocol):
    """What the driver needs of the engine."""

    state: ClusterState

    @property
    def next_wakeup_s(self) -> float | None:
        """When it wants to be told the time."""
        ...

    def handle(self, event: Event, now_s: float) -> Step:
        """Take one input."""
        ...


class Driver:
    """Feeds the engine and makes its steps durable.

    Args:
        brain: The engine.
        store: Where steps become durable.
        world: Carries out commands.
        drop_node: Ends a node's session when its report could not be stored, so that it registers anew.
        is_connected: Tells whether a node has a session at present.
        keep_history_s: What is over for longer is dropped; None drops nothing.
        leapt_at_s: Since when the clock can be trusted: what was before seems to be long ago, and may not be.
    """

    def __init__(
        self,
        *,
        brain: Brain,
        store: LiveStore,
        world: World,
        inbox: Inbox,
        clock: LiveClock,
        awake: AwakeClock,
        drop_node: Callable[[NodeId, str], None],
        is_connected: Callable[[NodeId], bool],
        keep_history_s: float | None = None,
        leapt_at_s: float = 0.0,
    ) -> None:
        self._brain = brain
        self._store = store
        self._world = world
        self._inbox = inbox
        self._clock = clock
        self._awake = awake
        self._drop_node = drop_node
        self._is_connected = is_connected
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="arena-writer")
        self._thinker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="arena-engine")
        self.turns = TurnWatch(clock.now_s)
        self._is_stopping = False
        self._changed = asyncio.Event()
        self._keep_history_s = keep_history_s
        self._leapt_at_s = leapt_at_s
        self._probe_at_s = 0.0
        self._drop_at_s = 0.0
        self._room_at_s = 0.0
        self.dropped = store.dropped()
        self._tick_not_before_s = 0.0
        self._tick_behind = 0
        self.durable_state = brain.state
        self.read_only_cause: str | None = None
        self.ended_counts: Counter[JobState] = Counter()
        self.decision_time_s = 0.0
        self.tally = Tally()

    async def run(self) -> None:
        """Work until ``stop``; a fault in one event never ends the loop."""
        while not self._is_stopping:
            await self._inbox.wait(self._idle_s())
            self._awake.beat()
            with self.turns.turn():
                await self._take_turn()
        self._inbox.close(UnavailableError("the scheduler is stopping", fix="try again in a moment"))
        self._thinker.shutdown(wait=True)
        self._writer.shutdown(wait=True)

    async def _take_turn(self) -> None:
        """Do all that there is to do at present."""
        items = self._inbox.take(ITEMS_PER_BATCH_MAX)
        if self._inbox.taken_count >= self._tick_behind and self._is_tick_due():
            items.append(Item(event=Tick()))
        if items:
            await self._do(items)
        if self._inbox.taken_count >= self._tick_behind:
            # What was said while the engine was at work is heard before any deadline is looked at.
            self._tick_behind = self._inbox.arrived_count
        await self._probe()
        await self._drop_old()
        await self._keep_room()

    def stop(self) -> None:
        """Have ``run`` return after the batch in hand."""
        self._is_stopping = True
        self._inbox.wake()

    async def changed(self) -> None:
        """Return after the next durable batch."""
        await self._changed.wait()

    def _idle_s(self) -> float:
        wakeup_s = self._brain.next_wakeup_s
        if wakeup_s is None:
            return IDLE_S_MAX
        wait_s = max(wakeup_s, self._tick_not_before_s) - self._clock.now_s()
        return min(IDLE_S_MAX, max(TICK_INTERVAL_S_MIN, wait_s))

    def _is_tick_due(self) -> bool:
        # After a stall of our own, agents get the time to be heard before any deadline is looked at.
        wakeup_s = self._brain.next_wakeup_s
        now_s = self._clock.now_s()
        is_due = wakeup_s is not None and max(wakeup_s, self._tick_not_before_s) <= now_s
        if not is_due or self._awake.is_catching_up():
            return False
        self._tick_not_before_s = now_s + TICK_INTERVAL_S_MIN
        return True

    @property
    def at_work_s(self) -> float:
        """For how long the engine has been at work on the batch in hand, 0 where it is not; safe from any thread."""
        return self.turns.seen().time_at_s(Part.DECISION)

    async def _do(self, items: Sequence[Item]) -> None:
        """Handle a batch, make it durable, act on it; or put the engine back."""
        saved = self._brain.state
        handled = await self._thought_of(items)
        self._inbox.put_back(handled.left)
        for item, error in handled.failed:
            self._fail(item, error)
        if not handled.done:
            return
        lost = await self._commit([step for _, step in handled.done])
        if lost is None:
            self._after_commit(handled.done)
        else:
            self._brain.state = saved
            await self._on_commit_failed([item for item, _ in handled.done], lost)

    async def _thought_of(self, items: Sequence[Item]) -> _Handled:
        """Have the engine handle a batch in its thread."""

        def tell_long(took_s: float) -> None:
            kinds = ", ".join(sorted({item.event.kind for item in items}))
            _log.warning("the engine has been at work for %.0f s on %s", took_s, kinds)

        return await self._waited_for(Part.DECISION, tell_long, self._thinker, partial(self._handle_all, items))

    async def _written(self, write: Callable[[], _Result]) -> _Result:
        """Have the store do something in its thread."""

        def tell_long(took_s: float) -> None:
            _log.warning("writing has taken %.0f s so far: does the disk hang?", took_s)

        return await self._waited_for(Part.WRITING, tell_long, self._writer, write)

    async def _waited_for(
        self,
        part: Part,
        tell_long: Callable[[float], None],
        thread: ThreadPoolExecutor,
        work: Callable[[], _Result],
    ) -> _Result:
        """Have a thread do something, listen meanwhile, and where it takes long, say so."""
        told_s = LONG_S
        with self.turns.part(part):
            done = asyncio.get_running_loop().run_in_executor(thread, work)
            while not (await asyncio.wait({done}, timeout=LISTEN_INTERVAL_S))[0]:
                self._awake.beat()
                took_s = self.turns.seen().part_s
                if took_s >= told_s:
                    tell_long(took_s)
                    told_s *= 2.0
            return done.result()

    async def _commit(self, steps: Sequence[Step]) -> ArenaError | None:
        """Make steps durable; return why they are not."""
        try:
            await self._written(partial(self._store.commit, steps))
        except ArenaError as error:
            return error
        except Exception as error:  # noqa: BLE001 - a record that cannot be written must not end the loop
            _log.exception("a batch of %d steps could not be written", len(steps))
            return InternalError("the store failed on a record", why=repr(error))
        return None

    def _handle_all(self, items: Sequence[Item]) -> _Handled:
        """Handle items for a bounded time, in the engine's thread; nothing else may be touched here."""
        until_s = self._clock.now_s() + BATCH_S_MAX
        handled = _Handled(done=[], failed=[], left=())
        for index, item in enumerate(items):
            found = self._handle(item.event)
            if isinstance(found, ArenaError):
                handled.failed.append((item, found))
            else:
                handled.done.append((item, found))
            if self._clock.now_s() > until_s:
                left = [item for item in items[index + 1 :] if not isinstance(item.event, Tick)]
                return replace(handled, left=left)
        return handled

    def _handle(self, event: Event) -> Step | ArenaError:
        saved = self._brain.state
        try:
            return self._handle_event(event)
        except ArenaError as error:
            self._brain.state = saved
            return error
        except Exception as error:  # noqa: BLE001 - the outermost frame of one event
            _log.exception("event %s failed", event)
            self._brain.state = saved
            return InternalError(f"handling {event.kind} failed", why=repr(error))

    def _handle_event(self, event: Event) -> Step:
        now_s = self._clock.now_s()
        step = self._brain.handle(event, now_s)
        if step.decision is not None:
            self.decision_time_s = self._clock.now_s() - now_s
        return step

    def _fail(self, item: Item, error: ArenaError) -> None:
        if isinstance(item.event, Tick):
            self._tick_not_before_s = self._clock.now_s() + PROBE_INTERVAL_S  # it is due again at once
        if item.answer is None:
            _log.error("%s was dropped: %s", item.event.kind, error)
        elif not item.answer.done():
            item.answer.set_exception(error)

    async def _on_commit_failed(self, items: Sequence[Item], error: ArenaError) -> None:
        if isinstance(error, InternalError) and len(items) > 1:
            # One record broke a rule; alone it fails alone.
            for item in items:
                await self._do([item])
            return
        if isinstance(error, ResourceExhaustedError):
            if self.read_only_cause is None:
                _log.error("READ-ONLY: %s", error)
            self.read_only_cause = error.message
        for item in items:
            self._after_lost(item, error)

    def _after_lost(self, item: Item, error: ArenaError) -> None:
        """Arrange that what could not be stored is said again."""
        if item.answer is not None:
            self._fail(item, error)
            return
        event = item.event
        if isinstance(event, Tick):
            self._tick_not_before_s = self._clock.now_s() + PROBE_INTERVAL_S
        elif isinstance(event, GridBuilt | GridFailed | NodeDisconnected):
            asyncio.get_running_loop().call_later(PROBE_INTERVAL_S, self._repeat, event)
        elif hasattr(event, "node_id"):
            self._drop_node(event.node_id, error.message)

    def _repeat(self, event: GridBuilt | GridFailed | NodeDisconnected) -> None:
        """Say again what could not be stored, unless the node it speaks of has come back meanwhile."""
        if not isinstance(event, NodeDisconnected) or not self._is_connected(event.node_id):
            self._inbox.post(event)

    def _after_commit(self, handled: Sequence[tuple[Item, Step]]) -> None:
        steps = [step for _, step in handled]
        self.tally = self.tally.after(self.durable_state, steps)
        self.durable_state = self._brain.state
        for step in steps:
            self.ended_counts.update(job.state for job in step.jobs if job.state.is_terminal)
        for item, step in handled:
            if item.answer is not None and not item.answer.done():
                item.answer.set_result(step)
        for step in steps:
            for command in step.commands:
                self._world.send(command)
        if any(step.history for step in steps):
            self._changed.set()
            self._changed = asyncio.Event()

    async def _drop_old(self) -> None:
        """Drop some of what is over for long enough, if it is time to."""
        now_s = self._clock.now_s()
        if self._keep_history_s is None or now_s < self._drop_at_s or self.read_only_cause is not None:
            return
        self._drop_at_s = now_s + DROP_INTERVAL_S
        before_s = now_s - self._keep_history_s
        if before_s < self._leapt_at_s:
            return
        try:
            batch = await self._written(partial(self._store.drop_before, before_s))
        except ArenaError as error:
            _log.warning("old history could not be dropped: %s", error)
            return
        self.dropped = batch.total
        self.ended_counts.subtract(batch.job_count_by_state)
        if batch.is_more:
            self._drop_at_s = now_s + DROP_AGAIN_S

    async def _keep_room(self) -> None:
        """Have the store see to its room, if it is time to; while nothing can be written, probing does that."""
        now_s = self._clock.now_s()
        if now_s < self._room_at_s or self.read_only_cause is not None:
            return
        self._room_at_s = now_s + ROOM_INTERVAL_S
        await self._written(self._store.keep_room)

    async def _probe(self) -> None:
        """While nothing can be written, try now and then, so that free space is noticed without a restart."""
        if self.read_only_cause is None or self._clock.now_s() < self._probe_at_s:
            return
        self._probe_at_s = self._clock.now_s() + PROBE_INTERVAL_S
        try:
            await self._written(self._store.probe)
        except ArenaError:
            return
        _log.warning("writing works again")
        self.read_only_cause = None
