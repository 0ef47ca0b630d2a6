"""Results of a study side by side: means over seeds, ratios with intervals, JSON and CSV."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from arena.cli.replay_runs import OUTCOME_FIELDS, Document
from arena.sim.bootstrap import paired_ratio

RATIO_FIGURES = ("avg_jct_s", "p50_jct_s", "p99_jct_s", "avg_bounded_slowdown", "makespan_s", "gpu_hours")
BOOTSTRAP_SEED = 20260501


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """All runs of a study, policies in the order of the command line, seeds in theirs."""

    policies: tuple[str, ...]
    seeds: tuple[int, ...]
    runs: tuple[Document, ...]

    def runs_of(self, policy: str) -> list[Document]:
        """Return a policy's runs by seed."""
        return sorted((run for run in self.runs if run["policy"] == policy), key=lambda run: int(run["seed"]))

    def values(self, policy: str, scope: str, figure: str) -> list[float]:
        """Return a figure by seed; nan where it is not known.

        Args:
            scope: ``whole`` or ``steady``.
        """
        found = ((run[scope] or {}).get(figure) for run in self.runs_of(policy))
        return [math.nan if value is None else float(value) for value in found]

    def mean(self, policy: str, scope: str, figure: str) -> float | None:
        """Return the mean of a figure over the seeds, None where one is not known."""
        values = self.values(policy, scope, figure)
        mean = math.fsum(values) / len(values) if values and not any(map(math.isnan, values)) else math.nan
        return None if math.isnan(mean) else mean

    def means(self, policy: str, scope: str) -> dict[str, float | None]:
        """Return the means of all figures over the seeds."""
        return {figure: self.mean(policy, scope, figure) for figure in self._figures(scope)}

    def p99_by_size(self, policy: str, scope: str) -> dict[str, float]:
        """Return the mean over seeds of the 99th percentile of JCT by class of GPUs asked for."""
        by_class: dict[str, list[float]] = {}
        for run in self.runs_of(policy):
            for name, value in ((run[scope] or {}).get("p99_jct_s_by_size") or {}).items():
                by_class.setdefault(name, []).append(value)
        return {name: math.fsum(values) / len(values) for name, values in by_class.items()}

    def ratios(self, policy: str, scope: str) -> dict[str, Any]:
        """Return figures over those of the first policy, with intervals over the seeds."""
        found = {}
        for figure in RATIO_FIGURES:
            values = self.values(policy, scope, figure)
            ratio = paired_ratio(values, self.values(self.policies[0], scope, figure), seed=BOOTSTRAP_SEED)
            found[figure] = None if ratio is None else asdict(ratio)
        return found

    def tenants(self, policy: str) -> list[dict[str, Any]]:
        """Return the figures of projects with guaranteed shares: means over seeds, of the longest times the longest."""
        by_project: dict[str, list[dict[str, Any]]] = {}
        for run in self.runs_of(policy):
            for one in run["tenants"]:
                by_project.setdefault(one["project"], []).append(one)
        return [_mean_tenant(found) for found in by_project.values()]

    def _figures(self, scope: str) -> list[str]:
        first: Mapping[str, Any] = next((run[scope] for run in self.runs if run[scope]), {})
        return [name for name, value in first.items() if not isinstance(value, dict)]

    def as_document(self) -> list[dict[str, Any]]:
        """Return all policies as JSON."""
        return [
            {
                "policy": policy,
                "is_rigid": self.runs_of(policy)[0]["is_rigid"],
                "whole": self.means(policy, "whole") | {"p99_jct_s_by_size": self.p99_by_size(policy, "whole")},
                "steady": self.means(policy, "steady") | {"p99_jct_s_by_size": self.p99_by_size(policy, "steady")},
                "ratios_to_first": {scope: self.ratios(policy, scope) for scope in ("whole", "steady")},
                "tenants": self.tenants(policy),
                "runs": [_brief(run) for run in self.runs_of(policy)],
            }
            for policy in self.policies
        ]


def _mean_tenant(found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    longest = max(one["below_share_s_max"] for one in found)
    names = [name for name, value in found[0].items() if isinstance(value, int | float)]
    means = {name: math.fsum(one[name] for one in found) / len(found) for name in names}
    return {**found[0], **means, "below_share_s_max": longest}


def _brief(run: Document) -> dict[str, Any]:
    names = ("seed", "policy_version", "digest", "key", "window", "whole", "steady", "python", "tenants")
    return {name: run[name] for name in names}


def figures_csv(study: Study) -> str:
    """Return one row for each run and scope, with all figures."""
    rows: list[dict[str, Any]] = []
    for run in study.runs:
        for scope in ("whole", "steady"):
            if run[scope] is None:
                continue
            figures = dict(run[scope])
            by_size = figures.pop("p99_jct_s_by_size")
            sizes = {f"p99_jct_s_of_{name}_gpus": value for name, value in by_size.items()}
            head = {"policy": run["policy"], "seed": run["seed"], "scope": scope, "digest": run["digest"]}
            rows.append(head | figures | sizes)
    columns = list(dict.fromkeys(name for row in rows for name in row))
    return _csv(columns, ([row.get(name, "") for name in columns] for row in rows))


def jobs_csv(study: Study) -> str:
    """Return one row for each job of each run."""
    columns = (*OUTCOME_FIELDS, "rho")
    rows = (
        (run["policy"], run["seed"], *values)
        for run in study.runs
        for values in zip(*(run["jobs"][name] for name in columns), strict=True)
    )
    return _csv(["policy", "seed", *columns], rows)


def _csv(columns: Sequence[str], rows: Iterator[Sequence[Any]]) -> str:
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(["" if value is None else value for value in row] for row in rows)
    return file.getvalue()
