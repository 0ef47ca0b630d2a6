"""One run of a case of the planner's benchmarks in a new process: prints what it took as JSON."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from arena.domain.allocation import GpuGroup
from arena.domain.job import JobSpec, TrainSpec
from arena.planner.bulk import batches_of, evaluated
from arena.planner.certificate import Certified, certified_best
from arena.planner.cost import evaluate
from arena.planner.hardware import catalog
from arena.planner.layout_space import LayoutSpace
from arena.planner.memory import USABLE_SHARE
from arena.planner.network import Place
from arena.planner.search import Search
from arena.planner.source import PlannerGridSource
from tests.builders import shape, train_spec

TYPES = ("a100-80", "h100", "a100-40", "v100-32")
COUNTS = (1, 2, 4, *range(8, 65, 8))
LLAMA_7B: Mapping[str, Any] = {
    "family": "llama",
    "layers": 32,
    "hidden": 4096,
    "heads": 32,
    "ffn_hidden": 11008,
    "vocab_size": 32000,
    "seq_len": 2048,
}
GPT_175B: Mapping[str, Any] = {
    "family": "gpt",
    "layers": 96,
    "hidden": 12288,
    "heads": 96,
    "vocab_size": 51200,
    "seq_len": 2048,
}


def group_of(gpu_type: str, count: int) -> GpuGroup:
    """A part of a node, or full nodes of 8."""
    return GpuGroup.of(gpu_type, [8] * (count // 8) if count >= 8 else [count])


def job(model: Mapping[str, Any], global_batch: int) -> tuple[JobSpec, TrainSpec]:
    spec = train_spec(model=model, train={"global_batch": global_batch, "precision": "bf16"})
    assert spec.train is not None
    return spec, spec.train


def timed(call: Callable[[], Any]) -> tuple[Any, dict[str, float]]:
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    found = call()
    return found, {"wall_s": time.perf_counter() - wall_s, "cpu_s": time.process_time() - cpu_s}


def grid() -> dict[str, Any]:
    spec, train = job(LLAMA_7B, 512)
    known = catalog()
    wanted = [(known[name], group_of(name, count)) for name in TYPES for count in COUNTS]
    (cells, counts), took = timed(lambda: Search(train=train, limits=spec.parallel).cells(wanted))
    feasible = sum(hasattr(cell, "best") for cell in cells)
    return {**took, "groups": len(wanted), "cells": feasible, "judged": counts.judged, "timed": counts.timed}


def grid_of_all_shapes() -> dict[str, Any]:
    spec, _ = job(LLAMA_7B, 512)
    cluster = shape(*((name, 8, 8) for name in TYPES))
    source = PlannerGridSource()
    (found, counts), took = timed(lambda: source.counted_grid(spec, cluster))
    groups = len(found.cells) + len(found.infeasible)
    return {**took, "groups": groups, "cells": len(found.cells), "judged": counts.judged, "timed": counts.timed}


def certified() -> dict[str, Any]:
    spec, train = job(GPT_175B, 1536)
    gpu_type, group = catalog()["a100-80"], group_of("a100-80", 1536)
    search = Search(train=train, limits=spec.parallel)
    found, took = timed(lambda: certified_best(search, gpu_type, group))
    assert isinstance(found, Certified)
    assert found.any_split_bound_s is not None
    layouts = LayoutSpace(train=train, limits=spec.parallel).layouts(group)
    everything = evaluate(train, gpu_type, group, layouts.candidates())
    fits = everything.memory_bytes_by_stage.max(axis=1) <= USABLE_SHARE * gpu_type.memory_bytes
    iter_time_s = found.best.estimate.iter_time_s
    return {
        **took,
        "plan": str(found.best.plan),
        "iter_time_s": iter_time_s,
        "split_gap": iter_time_s / found.any_split_bound_s - 1.0,
        "judged": found.plan_count,
        "exhaustive_s": float(everything.iter_time_s[fits].min()),
    }


def bulk() -> dict[str, Any]:
    spec, train = job(LLAMA_7B, 512)
    space = LayoutSpace(train=train, limits=spec.parallel)
    places = [Place(gpu_type=catalog()["h100"], group=group_of("h100", count)) for count in range(8, 129, 8)]

    def all_of_them() -> int:
        table = space.table([place.group for place in places])
        return len(evaluated(train, list(zip(places, table.ranges, strict=True)), batches_of(table.layouts)).row)

    plans, took = timed(all_of_them)
    return {**took, "plans": plans}


if __name__ == "__main__":
    case = {one.__name__: one for one in (grid, grid_of_all_shapes, certified, bulk)}[sys.argv[1]]
    print(json.dumps(case()))
