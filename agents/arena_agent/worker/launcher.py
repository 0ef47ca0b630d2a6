"""``python -m arena_agent.worker.launcher``: the warm launcher with torch and the worker imported."""

from __future__ import annotations

import os
import sys

from arena_agent.shim.launcher import serve
from arena_agent.worker.main import run_rank

if __name__ == "__main__":
    sys.exit(serve(run_rank, os.environ))
