"""Processes that make runs of a study end with the one that started it, however that ends.

Idle ones would stay for minutes, and busy ones finish a run for nobody; who reads the study's output waits for both.
"""

from __future__ import annotations

import os
import threading
import time
from typing import Any

_POLL_S = 1.0


def options_of_workers() -> dict[str, Any]:
    """Return what joblib is told of its own processes; those of other backends, e.g. of Dask, are not ours to end."""
    from joblib.parallel import get_active_backend

    backend, _ = get_active_backend()
    if type(backend).__name__ != "LokyBackend":
        return {}
    return {"initializer": end_with, "initargs": (os.getpid(),)}


def end_with(parent_pid: int) -> None:
    """End this process soon after its parent is gone; a worker's first call."""
    threading.Thread(target=_watch, args=(parent_pid,), name="ends-with-parent", daemon=True).start()


def _watch(parent_pid: int) -> None:
    while os.getppid() == parent_pid:
        time.sleep(_POLL_S)
    os._exit(1)
