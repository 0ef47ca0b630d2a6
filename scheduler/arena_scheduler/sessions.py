"""Open agent sessions: who is connected, when each was last heard, and what is still to be said to it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field

from arena.domain.launch import NodeId
from arena.errors import AlreadyRunningError
from arena.rpc.v1 import agent_service_pb2 as pb
from arena_scheduler.clock import AwakeClock

MESSAGES_QUEUED_MAX = 10_000


@dataclass(slots=True, kw_only=True, eq=False)
class Session:
    """One agent's stream.

    Args:
        peer: Address the agent called from.
        heard_s: When its last message came, in seconds of the awake clock.
        outgoing: Messages to be written; None ends the stream.
        is_answered: Whether the verdict on its registration is queued; it is the first message.
        closed_why: Why the session was closed from this side.
    """

    node_id: NodeId
    incarnation: str
    peer: str
    heard_s: float
    outgoing: asyncio.Queue[pb.OpenSessionResponse | None] = field(default_factory=asyncio.Queue)
    heard: asyncio.Event = field(default_factory=asyncio.Event)
    is_answered: bool = False
    closed_why: str | None = None

    def close(self, why: str) -> None:
        """Have the stream end after what is already queued."""
        if self.closed_why is None:
            self.closed_why = why
            self.outgoing.put_nowait(None)
            self.heard.set()


class Sessions:
    """At most one session per node.

    Args:
        awake: Clock by which silence is measured.
        silence_s_max: Silence after which a session may be taken over by another incarnation.
    """

    def __init__(self, awake: AwakeClock, silence_s_max: float) -> None:
        self._awake = awake
        self._silence_s_max = silence_s_max
        self._sessions: dict[NodeId, Session] = {}

    def __iter__(self) -> Iterator[Session]:
        return iter(tuple(self._sessions.values()))

    def __len__(self) -> int:
        return len(self._sessions)

    def is_connected(self, node_id: NodeId) -> bool:
        """Tell whether a node has a session, registered or about to be."""
        return node_id in self._sessions

    async def open(self, node_id: NodeId, incarnation: str, peer: str) -> Session:
        """Open a session; the same incarnation replaces its own old one, another one only if that is silent.

        Raises:
            AlreadyRunningError: Another agent with this node id is alive; its address is named.
        """
        while (old := self._sessions.get(node_id)) is not None and old.incarnation != incarnation:
            if old.closed_why is None and await self._says_something(old):
                raise AlreadyRunningError(
                    f"node {node_id} is already connected from {old.peer}",
                    why="another agent with this node id is alive",
                    fix="give this agent another --node-id, or stop the other one",
                    details={"node_id": node_id, "address": old.peer},
                )
            self._replace(old, "another agent took over this node")
        if old is not None:
            self._replace(old, "the agent reconnected")
        session = Session(node_id=node_id, incarnation=incarnation, peer=peer, heard_s=self._awake.awake_s())
        self._sessions[node_id] = session
        return session

    async def _says_something(self, session: Session) -> bool:
        session.heard.clear()
        try:
            async with asyncio.timeout(self._silence_s_max):
                await session.heard.wait()
        except TimeoutError:
            return False
        return session.closed_why is None

    def _replace(self, old: Session, why: str) -> None:
        old.close(why)
        if self._sessions.get(old.node_id) is old:
            del self._sessions[old.node_id]

    def note_heard(self, session: Session) -> None:
        """Note a sign of life."""
        session.heard_s = self._awake.awake_s()
        session.heard.set()

    def remove(self, session: Session) -> bool:
        """Forget a session whose stream is down; return False if another one had replaced it."""
        if self._sessions.get(session.node_id) is not session:
            return False
        del self._sessions[session.node_id]
        session.close("the stream is down")
        return True

    def answer(self, node_id: NodeId, message: pb.OpenSessionResponse) -> bool:
        """Queue the verdict on a node's registration, and whatever is sent after it."""
        session = self._sessions.get(node_id)
        if session is not None:
            session.is_answered, session.heard_s = True, self._awake.awake_s()
        return self.send(node_id, message)

    def send(self, node_id: NodeId, message: pb.OpenSessionResponse) -> bool:
        """Queue a message; one to a node that is absent or whose registration is not yet answered is dropped (False).

        Nothing is lost by it: the registration itself asks anew for all that a node is to do.
        """
        session = self._sessions.get(node_id)
        if session is None or session.closed_why is not None or not session.is_answered:
            return False
        if session.outgoing.qsize() >= MESSAGES_QUEUED_MAX:
            session.close("it does not read what it is sent")
            return False
        session.outgoing.put_nowait(message)
        return True

    def drop(self, node_id: NodeId, why: str) -> None:
        """End a node's stream so that it registers anew."""
        session = self._sessions.get(node_id)
        if session is not None:
            session.close(why)

    def silent(self, grace_s: float) -> list[Session]:
        """Return the sessions not heard for longer than the grace; before its verdict an agent has nothing to say."""
        now_s = self._awake.awake_s()
        return [session for session in self if session.is_answered and now_s - session.heard_s > grace_s]
