"""Speed and gap of the heterogeneous search at 256 GPUs of each type, one thread, building of tables included.

The aim is 1 s and 3 % for 1 to 4 types. Sailor takes 0.3 / 6.2 / 4,900 s for 1 / 2 / 3, beside 6-35 s of set-up. The
limits of time below leave room for a busy machine: they catch a step back.
"""

import time

import pytest

from arena.domain.job import ModelFamily, ModelSpec, TrainSpec
from arena.planner.hardware import catalog
from arena.planner.heterogeneous.offer import Offered
from arena.planner.heterogeneous.search import search

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(600)]

GPUS_PER_TYPE = 256
TYPES = ("a100-40", "v100-16", "h100", "a100-80")
CPU_S_MAX = {1: 1.0, 2: 1.0, 3: 1.5, 4: 2.0}
SAILOR_S = {1: "0.3 s", 2: "6.2 s", 3: "4,900 s", 4: "no answer"}
GAP_MAX = 0.03


@pytest.mark.parametrize("type_count", [1, 2, 3, 4])
def test_search_over_types(type_count: int) -> None:
    model = ModelSpec(family=ModelFamily.GPT, layers=24, hidden=1024, heads=16, vocab_size=50304, seq_len=2048)
    train = TrainSpec(model=model, precision="bf16", global_batch=2048)
    known = catalog()
    offer = {
        (name, "east"): Offered(gpu_type=known[name], gpu_count=GPUS_PER_TYPE, gpus_per_node=8)
        for name in TYPES[:type_count]
    }
    search(train, offer)

    started_s, cpu_s = time.perf_counter(), time.process_time()
    found = search(train, offer)
    took_s, took_cpu_s = time.perf_counter() - started_s, time.process_time() - cpu_s

    assert found.estimate is not None
    print(
        f"\n{type_count} types x {GPUS_PER_TYPE} GPUs: {took_s:.2f} s ({took_cpu_s:.2f} s of one CPU; aim 1 s; "
        f"Sailor {SAILOR_S[type_count]} + 6-35 s), "
        f"gap {100 * found.gap:.1f} % (aim 3 %), step {found.score * 1e3:.1f} ms, {found.statistics}"
    )
    assert took_cpu_s < CPU_S_MAX[type_count]
    assert found.gap <= GAP_MAX
