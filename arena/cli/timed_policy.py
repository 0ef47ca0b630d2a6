"""A policy with a watch beside it: how long its decisions take, and what it saw last."""

from __future__ import annotations

import time
from array import array
from dataclasses import dataclass, field

from arena.policies.base import Decision, Policy, ServingWaiting, Snapshot


@dataclass(slots=True)
class TimedPolicy:
    """A policy, how long each of its decisions took, and the snapshot it saw last."""

    inner: Policy
    times_s: array[float] = field(default_factory=lambda: array("d"))
    seen: Snapshot | None = None

    @property
    def name(self) -> str:
        """The inner policy's."""
        return self.inner.name

    @property
    def version(self) -> str:
        """The inner policy's."""
        return self.inner.version

    @property
    def serves_waiting_only(self) -> bool:
        """The inner policy's."""
        return isinstance(self.inner, ServingWaiting) and self.inner.serves_waiting_only

    def decide(self, snapshot: Snapshot) -> Decision:
        """Ask the inner policy and take the time."""
        self.seen = snapshot
        began_s = time.perf_counter()
        decision = self.inner.decide(snapshot)
        self.times_s.append(time.perf_counter() - began_s)
        return decision
