"""The study ``rubick``: its published workload on the iteration times that were measured for it, 64 A800.

A placement is a string of digits, the GPUs on each node; a cell is the fastest of the plans that were measured on it,
at the fixed batch of its model. A job makes the steps that the workload states; its "duration" is the time of the plan
that its user asked for, and is not used. Every start costs the same, the first too, as in Rubick's own simulator.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import hashlib
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from arena.domain.allocation import GpuGroup
from arena.domain.cluster import ClusterShape, NodePool
from arena.domain.job import JobId, WorkloadSpec
from arena.domain.trace import TraceJob
from arena.planner.tables import TableGrids
from experiments.policy.arrivals import Drawn
from experiments.policy.cases import Setting, case_of
from experiments.policy.loads import add_bound_option, add_run_options, run_cases

GPU_TYPE = "a800"
NODES, GPUS_PER_NODE = 8, 8
RESTART_S = 260.0
MODELS = ("bert", "gpt2", "llama30", "llama7", "roberta", "t5", "vit")
WORKLOAD = "traces/paper_workloads/rubick/workload-base.csv.gz"
PLACEMENTS = "data/peers/rubick_morphling/traces"

PUBLISHED = "Rubick's own simulator: average JCT 1.011 h, median 0.491 h, p99 8.10 h, makespan 16.30 h"


def add_command(commands: Any) -> None:
    """Add the command line of the study."""
    parser: argparse.ArgumentParser = commands.add_parser("rubick", help=__doc__)
    parser.add_argument("--lengths", choices=("true", "predicted", "none"), default="true")
    parser.add_argument("--length-sigma", type=float, default=1.0)
    parser.add_argument("--restart-s", type=float, default=RESTART_S)
    add_run_options(parser)
    add_bound_option(parser)
    parser.set_defaults(study=study)


def study(args: argparse.Namespace, folder: Path, console: Console) -> dict[str, Any]:
    """Replay the workload."""
    setting = Setting(lengths=args.lengths, length_sigma=args.length_sigma, restart_s=args.restart_s)
    grids = TableGrids(name="rubick placements", iter_time_s=read_times(folder / PLACEMENTS))
    cases = [case_of(read_jobs(folder / WORKLOAD), grids, shape(), setting=setting, seed=0)]
    title = f"Rubick's workload-base, {args.lengths} lengths"
    found, _ = run_cases(cases, args, console, title=title)
    for row in found["policies"]:
        means = row["means"]
        hours = {name: means[key] / 3600 for name, key in _HOURS.items()}
        console.print(row["policy"], ", ".join(f"{name} {value:.3f} h" for name, value in hours.items()))
    console.print(PUBLISHED)
    return {"gpu_count": NODES * GPUS_PER_NODE, "published": PUBLISHED, "settings": [found]}


_HOURS = {"average JCT": "avg_jct_s", "median": "p50_jct_s", "p99": "p99_jct_s", "makespan": "makespan_s"}


def shape() -> ClusterShape:
    """Return the cluster on which the times were measured."""
    pool = NodePool(gpu_type=GPU_TYPE, zone="default", gpus_per_node=GPUS_PER_NODE, node_count=NODES)
    return ClusterShape(pools=(pool,))


def read_times(folder: Path) -> dict[WorkloadSpec, dict[GpuGroup, float | None]]:
    """Read the measured times of all models."""
    times: dict[WorkloadSpec, dict[GpuGroup, float | None]] = {}
    for model in MODELS:
        with (folder / model / "placements.csv").open(encoding="utf-8") as file:
            times[WorkloadSpec(name=model, global_batch=1)] = fastest_by_group(csv.DictReader(file))
    return times


def fastest_by_group(rows: Iterable[Mapping[str, str]]) -> dict[GpuGroup, float | None]:
    """Return the time of the fastest plan on each placement; rows without a time were not measured."""
    found: dict[GpuGroup, float | None] = {}
    for row in rows:
        time_s = float(row["iter_time"] or "nan")
        if not time_s > 0 or math.isinf(time_s):
            continue
        group = GpuGroup.of(GPU_TYPE, [int(digit) for digit in row["placement"]])
        found[group] = min(found.get(group) or math.inf, time_s)
    return found


def read_jobs(path: Path) -> Drawn:
    """Read the workload."""
    data = path.read_bytes()
    rows = csv.DictReader(gzip.decompress(data).decode().splitlines())
    jobs = tuple(_job(row, line) for line, row in enumerate(rows, start=2))
    jobs = tuple(sorted(jobs, key=lambda job: (job.submitted_at_s, job.row)))
    digest = hashlib.sha256(data).hexdigest()
    return Drawn(jobs=jobs, sha256={path.name: digest}, notes=("the workload as it is",))


def _job(row: Mapping[str, str], line: int) -> TraceJob:
    return TraceJob(
        job_id=JobId(row["name"]),
        row=line,
        submitted_at_s=float(row["submission_time"]),
        gpu_count=int(row["num_gpus"]),
        step_count=max(int(row["steps"]), 1),
        workload=WorkloadSpec(name=row["application"], global_batch=1),
        gpu_type=GPU_TYPE,
    )
