"""Attempts that failed before their first step, and on which nodes. Pure: no I/O, no clock."""

from __future__ import annotations

import re
from dataclasses import dataclass

from arena.domain.job import JobId
from arena.domain.launch import NodeId
from arena.domain.replacing import quickly_made

FAILED_STARTS_KEPT = 8
"""Nodes that a job remembers to have failed on."""

AVOIDED_S = 600.0
"""So long a job keeps away from a node that it failed on: other nodes may be busy for longer than anybody can wait.

It doubles whenever the job fails there again, so often at most: who may grow would come back for ever.
"""

AVOIDED_DOUBLINGS_MAX = 5

_NUMBER = re.compile(r"\d+")


@quickly_made
@dataclass(frozen=True, slots=True, kw_only=True)
class FailedStart:
    """A node where an attempt of a job failed before its first step.

    Args:
        user: Whose job it is.
        error: What was said of it.
        times: How often it did so.
    """

    job_id: JobId
    user: str
    node_id: NodeId
    error: str
    at_s: float
    times: int = 1

    @property
    def avoided_until_s(self) -> float:
        """Until when the job keeps away from the node, as long as there are others."""
        doublings = min(self.times - 1, AVOIDED_DOUBLINGS_MAX)
        return self.at_s + AVOIDED_S * 2.0**doublings

    @property
    def way(self) -> str:
        """How it failed, without what differs from node to node: ranks, devices, ports, the node's own name."""
        return _NUMBER.sub("#", self.error.replace(self.node_id, "?"))
