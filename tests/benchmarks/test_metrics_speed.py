"""How long a scrape of the metrics takes with 10,000 live jobs, and for how long it holds up the event loop."""

from __future__ import annotations

import asyncio
import sys
import time
from statistics import median

import pytest

from arena_scheduler.app import collect_garbage_rarely
from arena_scheduler.metrics_server import MetricsServer, application
from arena_scheduler.turn import Turn
from tests.fakes.observed_cluster import a_state, seen

pytestmark = pytest.mark.benchmark

SCRAPES = 40
LAG_S_MAX = 0.1
_SCRAPER = """
import sys, time, urllib.request
for _ in range(int(sys.argv[2])):
    began_s = time.perf_counter()
    urllib.request.urlopen(sys.argv[1]).read()
    print(time.perf_counter() - began_s)
"""


async def test_scrapes_without_a_pause_hold_up_the_event_loop_for_moments_only() -> None:
    observed = seen(a_state(10_000, 1_250))
    answer = application(
        observe=lambda: observed, silent_s=lambda: 0.0, turn=Turn, read_only_cause=lambda: None, access=None
    )
    server = MetricsServer("127.0.0.1", 0, answer)
    collect_garbage_rarely()
    server.start()
    try:
        scraper = await asyncio.create_subprocess_exec(
            sys.executable, "-c", _SCRAPER, server.url, str(SCRAPES), stdout=asyncio.subprocess.PIPE
        )
        ends = asyncio.create_task(scraper.communicate())
        lags_s = []
        while not ends.done():
            began_s = time.perf_counter()
            await asyncio.sleep(0.001)
            lags_s.append(time.perf_counter() - began_s - 0.001)
        scrapes_s = [float(line) for line in (await ends)[0].split()]
    finally:
        server.close()
    print(
        f"\n{len(observed.state.jobs):,} jobs: a scrape takes {1e3 * median(scrapes_s):.0f} ms, at most "
        f"{1e3 * max(scrapes_s):.0f}; the event loop is late by {1e3 * median(lags_s):.1f} ms, at most "
        f"{1e3 * max(lags_s):.1f}"
    )
    assert len(scrapes_s) == SCRAPES
    assert max(lags_s) < LAG_S_MAX
