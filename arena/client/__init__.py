"""The Python client of a scheduler."""

from __future__ import annotations

from arena.client.client import ArenaClient, Cancelled, JobDetail, LogChunk, Submitted
from arena.client.settings import DEFAULT_ADDRESS, ClientSettings

__all__ = ["DEFAULT_ADDRESS", "ArenaClient", "Cancelled", "ClientSettings", "JobDetail", "LogChunk", "Submitted"]
