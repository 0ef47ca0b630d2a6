"""Processes forked from one that has loaded what they need, so that starting one takes milliseconds."""

from __future__ import annotations

import os
import sys
from multiprocessing import forkserver, get_context
from multiprocessing.context import ForkServerContext

# The last is what a child runs first: the main module of the tests themselves.
PRELOADED = ["tests.fakes.checkpoint_ranks", "pytest"]


def forking() -> ForkServerContext:
    """Return a context whose processes are forked so; the first call starts the process they come from."""
    context = get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    # That process does not get our path by itself, and passes over what it cannot import.
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)
    try:
        forkserver.ensure_running()
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before
    return context
