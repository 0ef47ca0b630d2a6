"""The studies ``sensitivity``, ``ablations`` and ``exact``: one thing changed at a time, over the same draws."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from arena.cli.replay_results import Study
from arena.errors import UserError
from arena.sim.bootstrap import paired_ratio
from experiments.policy.arrivals import Arrivals
from experiments.policy.cases import Setting
from experiments.policy.loads import DEFAULT, Bench, add_bench_options, keeping_of, policies_of
from experiments.policy.report import ratio_text
from experiments.policy.runs import studied

BASE = "base"

SENSITIVITY: dict[str, dict[str, Any]] = {
    "restart 0 s": {"restart_s": 0.0},
    "restart 260 s": {"restart_s": 260.0},
    "lengths true": {"lengths": "true"},
    "lengths sigma 0.5": {"length_sigma": 0.5},
    "lengths sigma 2": {"length_sigma": 2.0},
    "lengths none": {"lengths": "none"},
    "30 % killed early": {"killed_share": 0.3},
    "estimates off (sigma 0.1)": {"bias_sigma": 0.1},
    "estimates off (sigma 0.2)": {"bias_sigma": 0.2},
    "estimates off (sigma 0.4)": {"bias_sigma": 0.4},
    "links believed 0.7": {"bias_link": 0.7},
    "10 % of plans do not fit": {"no_fit_share": 0.1},
    "30 % of plans do not fit": {"no_fit_share": 0.3},
    "decisions after 60 s": {"decide_after_s": 60.0},
    "decisions after 300 s": {"decide_after_s": 300.0},
}

ABLATIONS: dict[str, dict[str, Any]] = {
    "no lengths": {"lengths": "none"},
    "no type change": {"keeps_type": True},
    "no elasticity": {"kind": "moldable"},
    "neither of the two": {"keeps_type": True, "kind": "moldable"},
    "data-parallel only": {"plans": "data-parallel"},
}

OPTIONS: dict[str, str] = {
    "no change cost": "arena:grow=0:shrink=0:swap=0:suspend=0:again=0",
    "no outlook": "arena:outlook=0",
    "no standby": "arena:standby=0",
    "no bound on waiting": "arena:wait_max_s=1e9",
}
"""Parts of the default policy that an option leaves out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variation:
    """One thing changed.

    Args:
        policies: That run under it.
    """

    label: str
    setting: Setting
    policies: tuple[str, ...]


def add_commands(commands: Any) -> None:
    """Add the command lines of the studies."""
    parser: argparse.ArgumentParser = commands.add_parser("sensitivity", help="what is believed turns out wrong")
    _add_options(parser)
    parser.add_argument("--only", default="", help="names of variations, comma-separated")
    parser.set_defaults(study=sensitivity)
    parser = commands.add_parser("ablations", help="one part of a policy left out at a time")
    _add_options(parser)
    parser.add_argument("--only", default="", help="names of variations, comma-separated")
    parser.add_argument(
        "--variant", action="append", default=[], metavar="LABEL=POLICY", help="an option of the policy, set otherwise"
    )
    parser.set_defaults(study=ablations)
    parser = commands.add_parser("exact", help="a policy against the same one that solves each decision exactly")
    _add_options(parser)
    parser.add_argument("--exact", required=True, metavar="POLICY", help="the exact one, e.g. arena:exact=1")
    parser.set_defaults(study=exact, draws=1, first=300)


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--arrivals", choices=tuple(Arrivals), default=Arrivals.ITP)
    add_bench_options(parser)
    parser.add_argument("--load", type=float, default=0.9)
    parser.add_argument("--lengths", choices=("true", "predicted", "none"), default="predicted")


def _base(args: argparse.Namespace) -> Setting:
    return Setting(load=args.load, counts_least=args.load_at == "least", lengths=args.lengths)


def chosen(known: dict[str, Any], only: str) -> dict[str, Any]:
    """Return the variations whose names are given, comma-separated, in their usual order; all where none is.

    Raises:
        UserError: There is none of that name.
    """
    names = [name.strip() for name in only.split(",") if name.strip()]
    unknown = [name for name in names if name not in known]
    if unknown:
        raise UserError(f"there is no variation {unknown[0]!r}", fix=f"use {'; '.join(known)}")
    return {name: change for name, change in known.items() if not names or name in names}


def sensitivity(args: argparse.Namespace, folder: Path, console: Console) -> dict[str, Any]:
    """Run all policies under each disturbance."""
    policies, base = policies_of(args), _base(args)
    varied = [
        Variation(label=label, setting=replace(base, **change), policies=policies)
        for label, change in {BASE: {}, **chosen(SENSITIVITY, args.only)}.items()
    ]
    return _run(varied, args, folder, console)


def ablations(args: argparse.Namespace, folder: Path, console: Console) -> dict[str, Any]:
    """Run the policy as it is, and with a part of what it may do left out."""
    policies, base = tuple(name for name in args.policy.split(",") if name), _base(args)
    if len(policies) != 1:
        raise UserError("ablations are of one policy", fix="give it with --policy")
    given = {label: policy for label, _, policy in (text.partition("=") for text in args.variant)}
    options = {**(OPTIONS if policies[0] == DEFAULT else {}), **given}
    names = [BASE, *chosen({**ABLATIONS, **options}, args.only)]
    varied = [
        Variation(
            label=label,
            setting=replace(base, **ABLATIONS.get(label, {})),
            policies=(options[label],) if label in options else policies,
        )
        for label in names
    ]
    return _run(varied, args, folder, console)


def exact(args: argparse.Namespace, folder: Path, console: Console) -> dict[str, Any]:
    """Run a policy and its exact form; the ratio is that of the first to the exact one."""
    policies = (args.exact, *(name for name in args.policy.split(",") if name))
    varied = [Variation(label=BASE, setting=_base(args), policies=policies)]
    return _run(varied, args, folder, console)


def _run(varied: Sequence[Variation], args: argparse.Namespace, folder: Path, console: Console) -> dict[str, Any]:
    bench = Bench.read(Arrivals(args.arrivals), folder, gpus_per_type=args.gpus_per_type)
    rows: list[dict[str, Any]] = []
    base: Study | None = None
    for one in varied:
        cases = bench.cases(one.setting, args.draws, first=args.first)
        found = studied(cases, one.policies, keeping=keeping_of(args), process_count=args.jobs)
        base = base or found
        rows.extend(_row(one, policy, found, base) for policy in found.policies)
    console.print(_table(rows, f"{args.arrivals}, load {args.load:g}, draws: {args.draws}"))
    return {"arrivals": args.arrivals, "draws": args.draws, "rows": rows}


def _row(one: Variation, policy: str, found: Study, base: Study) -> dict[str, Any]:
    """Return a policy's figures, over the first policy of its variation, and over itself in the first variation."""
    own = policy if policy in base.policies else base.policies[0]
    return {
        "label": one.label,
        "policy": policy,
        "setting": asdict(one.setting),
        "means": found.means(policy, "whole"),
        "moves_in_hour_max": max(found.values(policy, "whole", "moves_in_hour_max")),
        "to_first": found.ratios(policy, "whole"),
        "to_base": {figure: _ratio(found, policy, base, own, figure) for figure in ("avg_jct_s", "p99_jct_s")},
    }


def _ratio(found: Study, policy: str, base: Study, own: str, figure: str) -> dict[str, float | None] | None:
    ratio = paired_ratio(found.values(policy, "whole", figure), base.values(own, "whole", figure), seed=1)
    return None if ratio is None else asdict(ratio)


def _table(rows: Sequence[dict[str, Any]], title: str) -> Table:
    table = Table(title=title, title_justify="left")
    heads = ("changed", "policy", "avg JCT s", "p99", "restarts/job", "lost %", "failed jobs", "moves in 1 h")
    compared = [("to_first", rows[0]["policy"])] if len({row["policy"] for row in rows}) > 1 else []
    compared += [("to_base", BASE)] if len({row["label"] for row in rows}) > 1 else []
    ratios = [f"{figure} / {name}" for _, name in compared for figure in ("avg", "p99")]
    for head in (*heads, *ratios):
        table.add_column(head, justify="left" if head in heads[:2] else "right", no_wrap=head not in heads[2:])
    for row in rows:
        means = row["means"]
        table.add_row(
            row["label"],
            row["policy"],
            f"{means['avg_jct_s']:,.0f}",
            f"{means['p99_jct_s']:,.0f}",
            f"{means['restarts_per_job']:.2f}",
            f"{means['lost_share'] * 100:.2f}",
            f"{means['failed_count']:.1f}",
            f"{row['moves_in_hour_max']:.0f}",
            *(ratio_text(row[key][figure]) for key, _ in compared for figure in ("avg_jct_s", "p99_jct_s")),
        )
    return table
