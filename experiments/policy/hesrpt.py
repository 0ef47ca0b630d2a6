"""The study ``hesrpt``: a policy's mean flow time over the least there is, where that is known in closed form.

All jobs are submitted at once, run on any number of GPUs of one type at a speed of k^p, and changes cost nothing. Sizes
are drawn log-normal (sigma 1). A job makes many small steps, so that what a change loses of a step is nothing.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from arena.domain.allocation import GpuGroup
from arena.domain.cluster import ClusterShape, NodePool
from arena.domain.grid import Cell, Estimate, Grid, PlanEstimate
from arena.domain.job import JobId, JobSpec, WorkloadSpec
from arena.domain.trace import TraceJob
from arena.sim.bootstrap import paired_ratio
from experiments.policy.arrivals import Drawn
from experiments.policy.cases import Case, Setting, case_of
from experiments.policy.drawing import log_normal
from experiments.policy.hesrpt_form import optimal_mean_flow_s
from experiments.policy.loads import add_run_options, keeping_of, policies_of
from experiments.policy.report import ratio_text
from experiments.policy.runs import studied

GPU_TYPE = "gpu"
EXPONENTS = "0.5,0.7,0.9"
STEPS = 10_000_000
"""Of a job of the median size."""

MEDIAN_S = 1e7
"""On one GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerGrids:
    """Grids of jobs that any count of GPUs runs at a speed of count^exponent.

    Args:
        is_one_node: Whether the cluster is one node, so that a group is a count; else each GPU is a node of its own.
    """

    exponent: float
    gpu_count: int
    is_one_node: bool = True
    _made: dict[str, Grid] = field(default_factory=dict, repr=False, compare=False)

    @property
    def version(self) -> str:
        """The speed-up and the counts."""
        return f"k^{self.exponent:g}, k = 1 to {self.gpu_count}, {'one node' if self.is_one_node else 'nodes of one'}"

    def grid(self, spec: JobSpec, shape: ClusterShape) -> Grid:
        """Return the grid; it is the same for all jobs, as far as their limits allow."""
        least = spec.gpus.count_min
        most = min(spec.gpus.count_max or self.gpu_count, self.gpu_count)
        key = f"{least}-{most}"
        if key not in self._made:
            cells = tuple(self._cell(count) for count in range(least, most + 1))
            self._made[key] = Grid(cells=cells, source=self.version)
        return self._made[key]

    def shape(self) -> ClusterShape:
        """Return the cluster."""
        size, nodes = (self.gpu_count, 1) if self.is_one_node else (1, self.gpu_count)
        pool = NodePool(gpu_type=GPU_TYPE, zone="default", gpus_per_node=size, node_count=nodes)
        return ClusterShape(pools=(pool,))

    def _cell(self, count: int) -> Cell:
        group = GpuGroup.of(GPU_TYPE, [count] if self.is_one_node else [1] * count)
        time_s = MEDIAN_S / STEPS / count**self.exponent
        return Cell(group=group, best=PlanEstimate(plan=None, estimate=Estimate(iter_time_s=time_s)))


def add_command(commands: Any) -> None:
    """Add the command line of the study."""
    parser: argparse.ArgumentParser = commands.add_parser("hesrpt", help=__doc__)
    parser.add_argument("--exponents", default=EXPONENTS)
    parser.add_argument("--gpus", type=int, default=1000)
    parser.add_argument("--job-count", type=int, default=20)
    parser.add_argument("--nodes", choices=("one", "single"), default="one", help="one node, or nodes of a single GPU")
    parser.add_argument("--draws", type=int, default=5)
    add_run_options(parser)
    parser.set_defaults(study=study, needs_data=False)


def batch(job_count: int, seed: int) -> Drawn:
    """Return jobs of one instant; sizes are in steps."""
    workload = WorkloadSpec(name="malleable", global_batch=1)
    jobs = tuple(
        TraceJob(
            job_id=JobId(f"job-{index:03}"),
            row=index,
            submitted_at_s=0.0,
            gpu_count=1,
            step_count=round(STEPS * log_normal(1.0, seed, index, purpose="size")),
            workload=workload,
            gpu_type=GPU_TYPE,
        )
        for index in range(job_count)
    )
    return Drawn(jobs=jobs, sha256={}, notes=(f"{job_count} jobs at once, sizes of seed {seed}",))


def optimum_s(case: Case, grids: PowerGrids) -> float:
    """Return the least mean flow time of a batch."""
    sizes = [one.step_count * MEDIAN_S / STEPS for one in case.scenario.jobs]
    return optimal_mean_flow_s(sizes, exponent=grids.exponent, gpu_count=grids.gpu_count)


def study(args: argparse.Namespace, folder: Path, console: Console) -> dict[str, Any]:
    """Run the batches and print mean flow time over the optimum."""
    found = [run_exponent(float(text), args) for text in args.exponents.split(",")]
    console.print(_table(found, args))
    return {"gpu_count": args.gpus, "job_count": args.job_count, "settings": found}


def run_exponent(exponent: float, args: argparse.Namespace) -> dict[str, Any]:
    """Return each policy's mean flow time over the optimum, with its interval over the draws."""
    grids = PowerGrids(exponent=exponent, gpu_count=args.gpus, is_one_node=args.nodes == "one")
    setting = Setting(restart_s=0.0)
    cases = [
        case_of(batch(args.job_count, seed), grids, grids.shape(), setting=setting, seed=seed)
        for seed in range(args.draws)
    ]
    best_s = [optimum_s(case, grids) for case in cases]
    runs = studied(cases, policies_of(args), keeping=keeping_of(args), process_count=args.jobs)
    return {
        "exponent": exponent,
        "optimum_s": best_s,
        "policies": [_row(runs.values(name, "whole", "avg_jct_s"), best_s, name) for name in runs.policies],
    }


def _row(flow_s: Sequence[float], best_s: Sequence[float], name: str) -> dict[str, Any]:
    ratio = paired_ratio(flow_s, best_s, seed=1)
    worst = float(np.max(np.array(flow_s) / np.array(best_s)))
    text = ratio_text(None if ratio is None else {"value": ratio.value, "low": ratio.low, "high": ratio.high})
    return {"policy": name, "flow_s": list(flow_s), "over_optimum": text, "worst": worst}


def _table(found: Sequence[dict[str, Any]], args: argparse.Namespace) -> Table:
    table = Table(
        title=f"mean flow time over the optimum: {args.job_count} jobs at once on {args.gpus} GPUs, {args.draws} draws",
        title_justify="left",
    )
    table.add_column("policy")
    for one in found:
        table.add_column(f"k^{one['exponent']:g}", justify="right")
        table.add_column("worst draw", justify="right")
    for index, row in enumerate(found[0]["policies"]):
        cells = [(one["policies"][index]["over_optimum"], f"{one['policies'][index]['worst']:.4f}") for one in found]
        table.add_row(row["policy"], *(text for pair in cells for text in pair))
    return table
