"""Runs one rank: ``python -m arena_agent.worker`` in the torchrun environment."""

import os
import sys

from arena_agent.worker.main import run_rank

if __name__ == "__main__":
    exit_code = run_rank(os.environ)
    sys.stdout.flush()
    sys.stderr.flush()
    # Communication threads that outlive the group must not hold up or crash the end of the process.
    os._exit(exit_code)
