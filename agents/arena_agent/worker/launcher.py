"""``python -m arena_agent.worker.launcher``: the warm launcher with torch and the worker imported."""

from __future__ import annotations

import gc

gc.disable()  # collecting among freshly imported modules is a twelfth of what importing them takes

import os  # noqa: E402
import sys  # noqa: E402

from arena_agent.shim.launcher import serve  # noqa: E402
from arena_agent.worker.main import run_rank  # noqa: E402

if __name__ == "__main__":
    gc.freeze()  # no rank looks through them again, which would also copy the memory they lie in
    gc.enable()
    sys.exit(serve(run_rank, os.environ))
