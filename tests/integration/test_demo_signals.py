"""However the demo is ended, it ends all that it started: scheduler, agents, workers and who follows their history."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.fakes.local_cluster import wait_until
from tests.fakes.processes_here import processes_of

pytestmark = pytest.mark.slow

DEMO = Path(__file__).parents[2] / "experiments" / "demo" / "run.py"
END_LIMIT_S = 150
HEARING = (
    "import os, signal, sys; [signal.signal(one, 0) for one in (1, 2, 15)]; os.execv(sys.executable, sys.argv[1:])"
)
"""A program that runs another, which hears the signals even where whoever runs the tests has them ignored (nohup)."""


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A demo whose processes all know the test's directory; it leads a process group, as a terminal would have it."""
    environ = {key: value for key, value in os.environ.items() if not key.startswith("ARENA_")}
    environ |= {"OMP_NUM_THREADS": "1", "XDG_CONFIG_HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path)}
    argv = [sys.executable, "-c", HEARING, sys.executable, str(DEMO), "--out", str(tmp_path / "out")]
    with subprocess.Popen(
        argv,
        env={**environ, "TMPDIR": str(tmp_path)},
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        yield process
        for pid in processes_of(tmp_path):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def ended(demo: subprocess.Popen[str], number: signal.Signals, directory: Path) -> None:
    """Send the demo's group a signal, and see that it ends with all that was its."""
    os.killpg(demo.pid, number)
    _, err = demo.communicate(timeout=END_LIMIT_S)
    assert err.strip() == f"{number.name}: ending the cluster and its jobs"
    assert demo.returncode == 128 + number
    assert processes_of(directory) == []
    assert list(directory.glob("arena-demo-*")) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_nothing_is_left_of_a_demo_that_is_ended_while_it_trains(
    demo: subprocess.Popen[str], number: signal.Signals, tmp_path: Path
) -> None:
    assert demo.stdout is not None
    assert any("attempt_first_step" in line for line in demo.stdout)
    assert len(processes_of(tmp_path)) > 4
    ended(demo, number, tmp_path)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_nothing_is_left_of_a_demo_that_is_ended_while_its_cluster_starts(
    demo: subprocess.Popen[str], number: signal.Signals, tmp_path: Path
) -> None:
    wait_until(lambda: any(tmp_path.glob("arena-demo-*/up.log")), "its cluster starts")
    ended(demo, number, tmp_path)
