"""``python -m arena_agent.shim ATTEMPT_DIRECTORY``: supervise one attempt that runs a program of its own."""

from __future__ import annotations

import sys
from pathlib import Path

from arena_agent.files import AttemptFiles
from arena_agent.shim.linux import become_subreaper, set_process_name
from arena_agent.shim.order import ShimOrder
from arena_agent.shim.ranks import ExecStarter
from arena_agent.shim.supervisor import Supervisor


def main(directory: str) -> int:
    """Run the order in the directory to its end."""
    become_subreaper()
    set_process_name("arena-shim")
    files = AttemptFiles(directory=Path(directory))
    order = ShimOrder.from_json(files.order.read_text(encoding="utf-8"))
    Supervisor(files, order, ExecStarter()).run()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
