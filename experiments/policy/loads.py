"""The study ``loads``: policies at several offered loads, over draws, on Arena's four GPU types.

With ``--policy all`` it tests what the default policy is to show, and says of each statement whether it holds.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from joblib import Parallel, delayed
from rich.console import Console
from rich.progress import track

from arena.errors import UserError
from arena.policies.registry import policy_names
from experiments.arena_traces.tables import Tables, cluster
from experiments.policy.arrivals import Arrivals, ArrivalSource
from experiments.policy.bounds import Bound, bound_of, gpu_counts_of, works_of
from experiments.policy.cases import Case, Setting, case_of
from experiments.policy.data_parallel import PlanTimes, data_parallel_grids, read_estimates
from experiments.policy.priced_bound import priced_mean_s
from experiments.policy.report import statements_table, table_of
from experiments.policy.runs import Keeping, figures_of, studied
from experiments.policy.statements import Statement, counted, statements_of

AGAINST = "arena-greedy"
GPUS_PER_TYPE = {Arrivals.ITP: 16, Arrivals.ITP_OTHERS: 16, Arrivals.HELIOS: 32, Arrivals.PAI: 32}
"""So many that at a load of 0.9 arrivals last more than 15 times as long as the mean job."""

LOADS = "0.3,0.6,0.9,1.1"
DEFAULT = "arena"
"""The policy of which statements are tested."""

LENGTHS = ("true", "predicted", "none")
TRUSTED = ",".join(name for name in policy_names() if name != DEFAULT)
"""Policies that nobody tunes."""

ALL = "all"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """What replays of Arena's tables have in common."""

    source: ArrivalSource
    estimates: PlanTimes
    gpus_per_type: int

    @classmethod
    def read(cls, arrivals: Arrivals, folder: Path, *, gpus_per_type: int | None) -> Bench:
        """Read tables and traces."""
        tables = Tables.read(folder / "data" / "arena")
        source = ArrivalSource.read(arrivals, folder, tables)
        return cls(
            source=source, estimates=read_estimates(folder), gpus_per_type=gpus_per_type or GPUS_PER_TYPE[arrivals]
        )

    def cases(self, setting: Setting, draws: int, *, first: int | None = None) -> list[Case]:
        """Return the draws of one setting, or of each the first so many jobs."""
        measured, shape = self.source.tables.grids(), cluster(self.gpus_per_type)
        is_pure = setting.plans == "data-parallel"
        grids = data_parallel_grids(measured, self.estimates) if is_pure else measured
        drawn = (self.source.drawn(seed) for seed in range(draws))
        return [
            case_of(replace(one, jobs=one.jobs[:first]), grids, shape, setting=setting, seed=seed, reference=measured)
            for seed, one in enumerate(drawn)
        ]


def add_command(commands: Any) -> None:
    """Add the command line of the study."""
    parser: argparse.ArgumentParser = commands.add_parser("loads", help=(__doc__ or "").split("\n")[0])
    parser.add_argument("--arrivals", default=Arrivals.ITP, help=f"of {', '.join(Arrivals)}, comma-separated")
    add_bench_options(parser)
    parser.add_argument("--loads", default=LOADS, help=f"offered loads, default {LOADS}")
    parser.add_argument("--lengths", default="predicted", help=f"of {', '.join(LENGTHS)}, comma-separated")
    parser.add_argument("--length-sigma", type=float, default=1.0)
    parser.add_argument("--restart-s", type=float, default=60.0)
    add_bound_option(parser)
    parser.set_defaults(study=study)


def add_bench_options(parser: argparse.ArgumentParser) -> None:
    """Add what all studies on these replays take."""
    parser.add_argument(
        "--gpus-per-type", type=int, default=None, help="of each of four; 16 for itp and itp-others, else 32"
    )
    parser.add_argument("--load-at", choices=("asked", "least"), default="asked", help="GPU time that a load counts")
    parser.add_argument("--draws", type=int, default=20)
    parser.add_argument("--first", type=int, default=None, help="only so many jobs of each draw")
    add_run_options(parser)


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """Add what all studies take."""
    parser.add_argument(
        "--policy", default="", help=f"a,b,...; each may have options: name:option=number; {ALL}: every one there is"
    )
    parser.add_argument("--against", default=AGAINST, help="the policy that ratios are taken to")
    parser.add_argument("--jobs", type=int, default=1, help="runs at the same time")
    parser.add_argument("--keep", type=Path, default=Path("out/policy"), help="where runs are kept")
    parser.add_argument(
        "--trust",
        default=TRUSTED,
        help=f"policies whose kept runs hold while their version does, whatever else changed; default {TRUSTED}",
    )
    parser.add_argument("--json", type=Path, default=None)


def add_bound_option(parser: argparse.ArgumentParser) -> None:
    """Add how near to the optimum the bound is looked for."""
    parser.add_argument(
        "--bound",
        choices=("quick", "priced"),
        default="quick",
        help="priced: the nearest there is, half a minute a draw",
    )


def policies_of(args: argparse.Namespace) -> tuple[str, ...]:
    """Return the policies, the one that others are compared to first."""
    given = args.policy.replace(ALL, ",".join(policy_names())) if args.policy == ALL else args.policy
    names = [args.against, *(name.strip() for name in given.split(","))]
    return tuple(dict.fromkeys(name for name in names if name))


def keeping_of(args: argparse.Namespace) -> Keeping:
    """Return where runs are kept."""
    return Keeping(directory=args.keep, trusted=frozenset(name for name in args.trust.split(",") if name))


def study(args: argparse.Namespace, folder: Path, console: Console) -> dict[str, Any]:
    """Run the study; print a table for each setting and what they all say of the default policy."""
    found, statements = [], list[Statement]()
    for name in _each(args.arrivals, tuple(Arrivals)):
        bench = Bench.read(Arrivals(name), folder, gpus_per_type=args.gpus_per_type)
        for setting in _settings(args):
            cases = bench.cases(setting, args.draws, first=args.first)
            told = bench.cases(replace(setting, lengths="predicted"), args.draws, first=args.first)
            title = f"{name}, load {setting.load:g}, {'no' if setting.lengths == 'none' else setting.lengths} lengths"
            document, said = run_cases(cases, args, console, title=title, blind_cases=told)
            found.append({"arrivals": name, **document})
            statements.extend(said)
    if statements:
        console.print(statements_table(statements))
        console.print(counted(statements))
    return {"settings": found, "statements": [one.as_json for one in statements]}


def _each(text: str, known: Sequence[str]) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    unknown = [name for name in names if name not in known]
    if unknown:
        raise UserError(f"{unknown[0]!r} is not known", fix=f"use {', '.join(known)}")
    return names


def _settings(args: argparse.Namespace) -> list[Setting]:
    return [
        Setting(
            load=float(load),
            counts_least=args.load_at == "least",
            lengths=lengths,
            length_sigma=args.length_sigma,
            restart_s=args.restart_s,
        )
        for lengths in _each(args.lengths, LENGTHS)
        for load in args.loads.split(",")
    ]


def run_cases(
    cases: list[Case],
    args: argparse.Namespace,
    console: Console,
    *,
    title: str,
    blind_cases: Sequence[Case] = (),
) -> tuple[dict[str, Any], list[Statement]]:
    """Run all policies over the draws of one setting, print their table; return it, and what it says."""
    policies = policies_of(args)
    found = studied(cases, policies, keeping=keeping_of(args), process_count=args.jobs, blind_cases=blind_cases)
    bounds = bounds_of(cases, is_priced=args.bound == "priced", process_count=args.jobs)
    bounds_s = [bound.mean_jct_s for bound in bounds]
    bound_s = float(np.mean(bounds_s))
    rows = figures_of(found, bound_s=bound_s)
    jobs = sorted(len(case.scenario.jobs) for case in cases)
    least = float(np.mean([case.load_at_least for case in cases]))
    shape, setting = cases[0].scenario.shape, cases[0].setting
    console.print(table_of(f"{title}, restart {setting.restart_s:g} s", rows))
    count = f"{jobs[0]}" if jobs[0] == jobs[-1] else f"{jobs[0]} to {jobs[-1]}"
    console.print(
        f"draws: {len(cases)}, jobs: {count}, GPUs: {shape.gpu_count}; load at the least GPU time {least:.2f}; "
        f"no schedule's average is below {bound_s:,.0f} s\n"
    )
    document = {
        "title": title,
        "setting": cases[0].identity["setting"],
        "gpu_count": shape.gpu_count,
        "load_at_least": least,
        "bounds": [asdict(bound) for bound in bounds],
        "notes": [list(case.notes) for case in cases],
        "policies": rows,
    }
    said = statements_of(found, DEFAULT, setting=setting, name=title, bounds_s=bounds_s)
    return document, said


def bounds_of(cases: Sequence[Case], *, is_priced: bool, process_count: int = 1) -> list[Bound]:
    """Return what no schedule of each case can beat, in their order."""
    if not is_priced:
        return [_bound(case, is_priced=False) for case in cases]
    found = Parallel(n_jobs=process_count, return_as="generator")(
        delayed(_bound)(case, is_priced=True) for case in cases
    )
    console = Console(stderr=True)
    return list(track(found, description="bounds", total=len(cases), console=console, transient=True))


def _bound(case: Case, *, is_priced: bool) -> Bound:
    works = works_of(case)
    bound = bound_of(works, gpu_count=case.scenario.shape.gpu_count)
    return replace(bound, priced_s=priced_mean_s(works, gpu_counts_of(case))) if is_priced else bound
