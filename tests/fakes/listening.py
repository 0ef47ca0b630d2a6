"""A policy that keeps what it was shown."""

from __future__ import annotations

from dataclasses import dataclass, field

from arena.policies.base import Decision, Policy, Snapshot


@dataclass
class Listening:
    """Decides as another policy does, and says what it is told to say of whom it serves."""

    inner: Policy
    serves_waiting_only: bool = False
    snapshots: list[Snapshot] = field(default_factory=list)
    name: str = "listening"
    version: str = "1"

    def decide(self, snapshot: Snapshot) -> Decision:
        self.snapshots.append(snapshot)
        return self.inner.decide(snapshot)
