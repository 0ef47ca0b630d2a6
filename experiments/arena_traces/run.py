"""Replay a trace of Arena's format on its four GPU types, under equal rules or under those of the original artifact.

Usage: python -m experiments.arena_traces.run --trace FILE --policy fcfs,... [--gpus-per-type N] [--restart-s 60]
[--artifact-rules] [--json OUT]. The table of iteration times is looked for in ``$ARENA_DATA_DIR/data/arena``
(default: ``../shared`` where it exists).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from arena.cli.timed_policy import TimedPolicy
from arena.domain.job import GpuLimits, JobSpec, StopSpec
from arena.domain.trace import TraceJob
from arena.engine.ports import Step
from arena.errors import ArenaError
from arena.policies.arena_greedy import ArenaGreedy
from arena.policies.base import Policy
from arena.policies.registry import gives_what_is_asked, make_policy
from arena.sim.costs import ConstantRestart, PerGpuRestart, RestartCost, SimCosts
from arena.sim.metrics import Summary, summarise
from arena.sim.replay import REPLAY_CONFIG, Replay, ReplayJob
from arena.sim.world import Fate
from arena_traces.reading import read_trace
from experiments.arena_traces.tables import Tables, cluster

ITERATIONS_DIVISOR = 5
"""The artifact runs a fifth of the iterations that its traces state."""

ROUND_S = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """How a replay is judged.

    Args:
        is_artifact: Rounds of 300 s, unmeasured points filled, the artifact's restart charges.
        restart_s: Of every start under equal rules.
    """

    is_artifact: bool
    restart_s: float

    def costs(self, policy: str) -> SimCosts:
        """Return what changes take under a policy."""
        if not self.is_artifact:
            restart: RestartCost = ConstantRestart(first_s=self.restart_s, again_s=self.restart_s)
            return SimCosts(start_s=0.0, restart=restart, save_s=0.0, exit_s=0.0)
        if policy == "arena-greedy":
            restart = PerGpuRestart(per_gpu_s=10.0, most_s=40.0)
        else:
            # Nothing is ever restarted under fcfs, and its median of 5,100 s leaves no room for a first charge.
            restart = PerGpuRestart(per_gpu_s=150.0, most_s=600.0, counts_first=False)
        return SimCosts(start_s=0.0, restart=restart, save_s=0.0, exit_s=0.0, round_s=ROUND_S)


def measured(job: TraceJob, tables: Tables) -> TraceJob:
    """Return a job that asks for something that was measured; a few of the published traces do not."""
    assert job.workload is not None  # Arena's format names one in every row
    gpu_type, count = tables.nearest(job.workload, job.gpu_type or "", job.gpu_count)
    return replace(job, gpu_type=gpu_type, gpu_count=count)


def replay_job(job: TraceJob, *, is_rigid: bool) -> ReplayJob:
    """Return a job of the trace as the scheduler is told of it."""
    assert job.workload is not None
    assert job.step_count is not None
    steps = max(job.step_count // ITERATIONS_DIVISOR, 1)
    limits = GpuLimits(count=job.gpu_count, types=(job.gpu_type or "",)) if is_rigid else GpuLimits()
    spec = JobSpec.model_validate(
        {
            "name": job.job_id,
            "kind": "rigid" if is_rigid else "malleable",
            "workload": job.workload,
            "stop": StopSpec(steps=steps),
            "gpus": limits,
            "deadline_s": job.deadline_s,
        }
    )
    return ReplayJob(job_id=job.job_id, submitted_at_s=job.submitted_at_s, spec=spec, fate=Fate(step_count=steps))


def made(name: str, jobs: Sequence[TraceJob]) -> Policy:
    """Return a policy; the published greedy is told what each job asks for."""
    if name == "arena-greedy":
        return ArenaGreedy(asks={job.job_id: (job.gpu_type or "", job.gpu_count) for job in jobs})
    return make_policy(name, {})


def run_policy(name: str, jobs: Sequence[TraceJob], tables: Tables, args: argparse.Namespace) -> dict[str, Any]:
    """Replay the trace under one policy and return its figures."""
    rules = Rules(is_artifact=args.artifact_rules, restart_s=args.restart_s)
    shape = cluster(args.gpus_per_type)
    if not rules.is_artifact:
        jobs = [measured(job, tables) for job in jobs]
    policy = TimedPolicy(made(name, jobs))
    replay = Replay(
        shape=shape,
        policy=policy,
        grids=tables.filled_grids() if rules.is_artifact else tables.grids(),
        costs=rules.costs(name),
        config=replace(REPLAY_CONFIG, decide_after_s=0.0),
    )
    asked = [replay_job(job, is_rigid=gives_what_is_asked(name)) for job in jobs]
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(name, total=len(asked))

        def watch(step: Step) -> None:
            ended = sum(job.state.is_terminal for job in step.jobs)
            if ended:
                bar.advance(task, ended)

        ledger = replay.run(asked, watch=watch)
    summary: Summary = summarise(ledger, submitted_count=len(asked), gpu_count=shape.gpu_count)
    times_ms = np.array(policy.times_s) * 1e3
    return {
        **asdict(summary),
        "decision_ms_p50": float(np.percentile(times_ms, 50)),
        "decision_ms_p99": float(np.percentile(times_ms, 99)),
    }


def table_of(results: dict[str, dict[str, Any]]) -> Table:
    """Return the policies side by side."""
    table = Table(title="All jobs; times in seconds")
    columns = (
        ("policy", ""),
        ("avg JCT", "avg_jct_s"),
        ("median", "p50_jct_s"),
        ("p99", "p99_jct_s"),
        ("queueing", "queue_s"),
        ("makespan", "makespan_s"),
        ("GPU-hours", "gpu_hours"),
        ("lost %", "lost_share"),
        ("restarts/job", "restarts_per_job"),
        ("unfinished", "unfinished_count"),
        ("decision p99 ms", "decision_ms_p99"),
    )
    for title, _ in columns:
        table.add_column(title, justify="left" if title == "policy" else "right")
    for name, figures in results.items():
        cells = [f"{figures[key] * (100 if key == 'lost_share' else 1):,.1f}" for _, key in columns[1:]]
        table.add_row(name, *cells)
    return table


def main() -> int:
    """Replay, print the table, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", type=Path, required=True)
    parser.add_argument("--policy", default="fcfs")
    parser.add_argument("--gpus-per-type", type=int, default=None)
    parser.add_argument("--restart-s", type=float, default=60.0)
    parser.add_argument("--artifact-rules", action="store_true")
    parser.add_argument("--json", type=Path, default=None)
    args = parser.parse_args()
    folder = Path(os.environ.get("ARENA_DATA_DIR", "../shared")) / "data" / "arena"
    if not (folder / "prof_database.json").is_file():
        print(f"no table of iteration times in {folder}; set ARENA_DATA_DIR", file=sys.stderr)
        return 4
    tables = Tables.read(folder)
    try:
        jobs = read_trace(args.trace, format="arena-csv").jobs
        results = {name: run_policy(name, jobs, tables, args) for name in args.policy.split(",")}
    except ArenaError as error:
        print(f"error: {error.message}", file=sys.stderr)
        return error.exit_code
    Console(width=max(Console().width, 140)).print(table_of(results))
    if args.json is not None:
        args.json.write_text(json.dumps({"trace": str(args.trace), "policies": results}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
