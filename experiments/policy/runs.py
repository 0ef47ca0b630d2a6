"""Runs of a study under several policies: in parallel, kept, and with how often each job moved."""

from __future__ import annotations

import bisect
import hashlib
import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import Progress

from arena.cli.json_form import form
from arena.cli.replay_results import Study
from arena.cli.replay_runs import Document, Fault, Order, executed, key_of, run_all
from arena.domain.job import JobId
from arena.engine.ports import Step
from arena.sim.study import policy_for, policy_named
from arena.units import HOUR_S
from experiments.policy.cases import Case

FORM_VERSION = 2
"""Changed whenever what is kept of a run does."""


@dataclass(slots=True)
class Moves:
    """When each job was launched again, read from the steps of a run."""

    at_s_by_job: dict[JobId, list[float]] = field(default_factory=lambda: defaultdict(list))
    _epochs: dict[JobId, int] = field(default_factory=dict)

    def watch(self, step: Step) -> None:
        """Take a step into account."""
        for attempt in step.attempts:
            seen = self._epochs.get(attempt.job_id, 0)
            if attempt.epoch > seen:
                self._epochs[attempt.job_id] = attempt.epoch
                if seen:
                    self.at_s_by_job[attempt.job_id].append(step.at_s)

    def most_in(self, window_s: float = HOUR_S) -> int:
        """Return the most moves that one job made within any stretch of that length."""
        return max((most_within(times, window_s) for times in self.at_s_by_job.values()), default=0)


def most_within(times: Sequence[float], window_s: float) -> int:
    """Return the most of some rising instants that lie within one stretch, both ends belonging to it."""
    return max((bisect.bisect_right(times, at + window_s) - index for index, at in enumerate(times)), default=0)


def performed(order: Order, watch: Callable[[Step], None] | None = None) -> Document | Fault:
    """Make a run; what is kept of it leaves out its pictures."""
    moves = Moves()

    def watching(step: Step) -> None:
        moves.watch(step)
        if watch is not None:
            watch(step)

    began_s = time.process_time()
    document = executed(order, policy_for(order.policy, order.scenario.jobs), watching)
    if isinstance(document, Fault):
        return document
    kept = {name: value for name, value in document.items() if name not in {"bars", "rows", "series"}}
    kept["whole"]["moves_in_hour_max"] = moves.most_in()
    kept["whole"]["cpu_s"] = time.process_time() - began_s
    return kept


@dataclass(frozen=True, slots=True, kw_only=True)
class Keeping:
    """Where runs are kept, and which of them go by their policy's version alone.

    Args:
        directory: None keeps nothing.
        trusted: Policies whose kept runs are taken even where the program has changed since; the digest of the program
            is otherwise part of what names a run.
    """

    directory: Path | None = None
    trusted: frozenset[str] = frozenset()

    def key(self, case: Case, policy: str) -> str:
        """Return what names a run."""
        identity = case.identity | {"form": FORM_VERSION}
        if policy not in self.trusted:
            return key_of(identity, policy=policy, seed=case.seed, trace_changes=case.notes)
        whole = [form(identity), policy, policy_named(policy).version, case.seed, case.notes, "trusted"]
        return hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()


LENGTH_BLIND = frozenset({"arena-greedy", "fcfs", "tiresias"})
"""Policies that ask for no job's length where none has a deadline: what they do is the same whatever is told of it."""


def studied(
    cases: Sequence[Case],
    policies: Sequence[str],
    *,
    keeping: Keeping,
    process_count: int,
    blind_cases: Sequence[Case] = (),
) -> Study:
    """Run all cases under all policies, with a bar.

    Args:
        blind_cases: The same draws with other lengths told, which may have been run already; for ``LENGTH_BLIND``.

    Raises:
        ReplayFaultError: A run did what no run may do.
    """
    orders = [
        Order(policy=policy, seed=case.seed, scenario=case.scenario, key=keeping.key(case, policy))
        for policy in policies
        for case in (blind_cases if blind_cases and policy in LENGTH_BLIND else cases)
    ]
    with _progress(orders, by_jobs=process_count == 1) as (watch_of, tell):
        runs = run_all(
            orders,
            process_count=process_count,
            directory=keeping.directory,
            watch_of=watch_of,
            tell=tell,
            perform=performed,
        )
    return Study(policies=tuple(policies), seeds=tuple(case.seed for case in cases), runs=tuple(runs))


_Hooks = tuple[Callable[[Order], Callable[[Step], None]], Callable[[Order, bool], None]]


@contextmanager
def _progress(orders: Sequence[Order], *, by_jobs: bool) -> Iterator[_Hooks]:
    total = sum(len(order.scenario.jobs) for order in orders) if by_jobs else len(orders)
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("replaying", total=total)

        def watch_of(order: Order) -> Callable[[Step], None]:
            bar.update(task, description=f"{order.policy}, seed {order.seed}")

            def watch(step: Step) -> None:
                ended = sum(job.state.is_terminal for job in step.jobs)
                if ended:
                    bar.advance(task, ended)

            return watch

        def tell(order: Order, is_kept: bool) -> None:
            if not by_jobs:
                bar.advance(task)
            elif is_kept:
                bar.advance(task, len(order.scenario.jobs))

        yield watch_of, tell


def geometric_mean(study: Study, policy: str, figure: str) -> float:
    """Return the geometric mean over the draws of a figure over that of the first policy: each draw counts alike."""
    own = np.array(study.values(policy, "whole", figure))
    first = np.array(study.values(study.policies[0], "whole", figure))
    return float(np.exp(np.log(own / first).mean()))


def figures_of(study: Study, *, bound_s: float) -> list[dict[str, Any]]:
    """Return all policies of a study as JSON: means over its draws, ratios to the first policy, each draw.

    Args:
        bound_s: No schedule's mean completion time is below it.
    """
    return [
        {
            "policy": policy,
            "policy_version": study.runs_of(policy)[0]["policy_version"],
            "means": study.means(policy, "whole"),
            "moves_in_hour_max": max(study.values(policy, "whole", "moves_in_hour_max")),
            "avg_over_bound": (study.mean(policy, "whole", "avg_jct_s") or 0.0) / bound_s,
            "ratios_to_first": study.ratios(policy, "whole"),
            "avg_ratio_of_a_draw": geometric_mean(study, policy, "avg_jct_s"),
            "draws": [{"seed": run["seed"], "digest": run["digest"], **run["whole"]} for run in study.runs_of(policy)],
        }
        for policy in study.policies
    ]
