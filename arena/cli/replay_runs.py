"""Runs of a study: in parallel on joblib, kept as they finish, and not run again."""

from __future__ import annotations

import errno
import hashlib
import importlib
import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from arena.cli.json_form import form
from arena.cli.replay_workers import options_of_workers
from arena.cli.timed_policy import TimedPolicy
from arena.cli.whole_files import write_whole, writing_error
from arena.domain.events import Event
from arena.engine.ports import Step
from arena.errors import ArenaError, InternalError, ResourceExhaustedError, UserError
from arena.policies.base import Policy, Snapshot
from arena.sim.checks import ReplayFaultError
from arena.sim.figures import Figures
from arena.sim.ledger import JobOutcome
from arena.sim.study import FlightRecorder, Runner, RunResult, Scenario, policy_for, policy_named

RESULT_VERSION = 5
"""Changed whenever the form of a kept result does."""

CODE = ("arena.domain", "arena.planner", "arena.policies", "arena.engine", "arena.sim", "arena_traces")
"""Packages that a result depends on."""

JOBS_IN_SNAPSHOT_MAX = 1_000
_OTHER_OUT = "name another --out"
OUTCOME_FIELDS = (
    "job_id",
    "submitted_at_s",
    "first_started_at_s",
    "ended_at_s",
    "state",
    "gpu_count",
    "gpu_seconds",
    "lost_gpu_seconds",
    "attempt_count",
)

Document = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """A run to be made.

    Args:
        key: Digest of all that its result depends on.
    """

    policy: str
    seed: int
    scenario: Scenario
    key: str

    @property
    def file_name(self) -> str:
        """Of its kept result."""
        return f"{re.sub('[^A-Za-z0-9.=-]+', '_', self.policy)}-seed{self.seed}-{self.key[:12]}.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A run that failed, in a form that any process can be sent, with what is kept of it."""

    what: str
    why: str
    document: Document


Perform = Callable[[Order, Callable[[Step], None] | None], Document | Fault]


def key_of(identity: Mapping[str, Any], *, policy: str, seed: int, trace_changes: Sequence[str]) -> str:
    """Return the digest of all that a result depends on: files, options, policy, seed, program.

    Args:
        identity: Of the inputs (``Inputs.identity``).
        trace_changes: What was done to the trace for this seed.
    """
    whole = {
        "inputs": dict(identity),
        "trace_changes": list(trace_changes),
        "policy": policy,
        "policy_version": policy_named(policy).version,
        "seed": seed,
        "code": code_digest(),
        "result_version": RESULT_VERSION,
        "numpy": np.__version__,
    }
    return hashlib.sha256(json.dumps(form(whole), sort_keys=True).encode()).hexdigest()


@cache
def code_digest() -> str:
    """Return the SHA-256 of the program's sources, as far as results depend on them."""
    found = hashlib.sha256()
    for name in CODE:
        for folder in importlib.import_module(name).__path__:
            for path in sorted(Path(folder).rglob("*.py")):
                found.update(f"{name}/{path.relative_to(folder).as_posix()}\n".encode() + path.read_bytes())
    return found.hexdigest()


def execute(order: Order, watch: Callable[[Step], None] | None = None) -> Document | Fault:
    """Make a run; this is what other processes are sent.

    Returns:
        Its result as JSON, or its fault.
    """
    return executed(order, policy_for(order.policy, order.scenario.jobs), watch)


def executed(order: Order, inner: Policy, watch: Callable[[Step], None] | None = None) -> Document | Fault:
    """Make a run with a policy that is there already."""
    recorder, policy = FlightRecorder(), TimedPolicy(inner)
    try:
        result = Runner(scenario=order.scenario, recorder=recorder, watch=watch).run(policy, label=order.policy)
    except UserError:
        raise
    except Exception as error:  # noqa: BLE001 - the outermost frame of a run: what is known of it must be kept
        told = error if isinstance(error, ArenaError) else InternalError(f"{type(error).__name__}: {error}")
        return Fault(what=told.what, why=told.why, document=_fault_document(order, told, recorder, policy.seen))
    return _document(order, result, policy)


def run_all(
    orders: Sequence[Order],
    *,
    process_count: int,
    directory: Path | None,
    watch_of: Callable[[Order], Callable[[Step], None]],
    tell: Callable[[Order, bool], None],
    perform: Perform | None = None,
) -> list[Document]:
    """Return the results in the order of the orders; what a directory keeps already is not run again.

    Args:
        process_count: Runs at the same time.
        directory: Where finished runs are kept; None keeps none.
        watch_of: Makes what is called with every step of a run, where one runs at a time.
        tell: Called with each run that is there, and whether it was kept from before.
        perform: Makes a run, by default ``execute``; other processes must be able to import it.

    Raises:
        ReplayFaultError: A run failed; what is known of it is in the directory, and finished runs are kept.
    """
    found: dict[int, Document] = {}
    for index, order in enumerate(orders):
        kept = _kept(directory, order)
        if kept is not None:
            found[index] = kept
            tell(order, True)
    left = [(index, order) for index, order in enumerate(orders) if index not in found]
    for index, result in _results(left, process_count, watch_of, perform or execute):
        if isinstance(result, Fault):
            raise _told(result, orders[index], directory)
        found[index] = result
        _keep(directory, orders[index], result)
        tell(orders[index], False)
    return [found[index] for index in range(len(orders))]


def _results(
    left: Sequence[tuple[int, Order]],
    process_count: int,
    watch_of: Callable[[Order], Callable[[Step], None]],
    perform: Perform,
) -> Iterator[tuple[int, Document | Fault]]:
    if process_count == 1 or len(left) < 2:
        for index, order in left:
            yield index, perform(order, watch_of(order))
        return
    from joblib import Parallel, delayed

    parallel = Parallel(
        n_jobs=process_count,
        return_as="generator_unordered",
        pre_dispatch=2 * process_count,
        **options_of_workers(),
    )
    try:
        yield from parallel(delayed(_indexed)(index, order, perform) for index, order in left)
    except BrokenExecutor as error:
        raise ResourceExhaustedError(
            "a process that made runs was killed",
            why="the system does so where memory is short",
            fix="run it again with fewer --jobs; with --out DIR, runs that have ended are kept",
        ) from error


def _indexed(index: int, order: Order, perform: Perform) -> tuple[int, Document | Fault]:
    return index, perform(order, None)


def _kept(directory: Path | None, order: Order) -> Document | None:
    """Return a result that was kept; one that is not as it was written is made anew."""
    if directory is None:
        return None
    try:
        document: Any = json.loads((directory / "runs" / order.file_name).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(document, dict) or document.pop("sha256", None) != _sha256_of(document):
        return None
    return document if document.get("key") == order.key else None


def _keep(directory: Path | None, order: Order, document: Document) -> None:
    if directory is not None:
        whole = {"sha256": _sha256_of(document), **document}
        write_file(directory / "runs" / order.file_name, json.dumps(whole, allow_nan=False))


def check_writable(directory: Path) -> None:
    """Make the directory of kept runs, so that one that cannot be written is told before any work is done.

    Raises:
        ResourceExhaustedError: The disk is full.
        UserError: It cannot be written.
    """
    runs = directory / "runs"
    try:
        runs.mkdir(parents=True, exist_ok=True)
        if not os.access(runs, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise writing_error(runs, error, fix=_OTHER_OUT) from error


def _sha256_of(document: Document) -> str:
    """Return the digest of a result, which is the same for what is read back."""
    return hashlib.sha256(json.dumps(document).encode()).hexdigest()


def write_file(path: Path, text: str) -> None:
    """Write a file whole or not at all.

    Raises:
        ResourceExhaustedError: The disk, or what may be written to it, is full.
        UserError: It cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise writing_error(path, error, fix=_OTHER_OUT) from error
    write_whole(path, text.encode(), fix=_OTHER_OUT)


def _told(fault: Fault, order: Order, directory: Path | None) -> ReplayFaultError:
    """Keep what is known of a failed run, and return its error."""
    fix, details = "give --out DIR to keep what led to it", {"policy": order.policy, "seed": str(order.seed)}
    if directory is not None:
        path = directory / f"fault-{order.file_name}"
        write_file(path, json.dumps(fault.document, allow_nan=False))
        fix, details = f"what led to it is in {path}", {**details, "file": str(path)}
    what = f"the run of {order.policy}, seed {order.seed}, failed: {fault.what}"
    return ReplayFaultError(what, why=fault.why, fix=fix, details=details)


def _document(order: Order, result: RunResult, policy: TimedPolicy) -> Document:
    times_ms = np.array(policy.times_s) * 1e3
    p50_ms, p99_ms = np.percentile(times_ms, [50, 99]) if len(times_ms) else (0.0, 0.0)
    decision = {"decision_ms_p50": float(p50_ms), "decision_ms_p99": float(p99_ms)}
    document: Document = form(
        {
            "key": order.key,
            "policy": result.policy,
            "policy_version": result.policy_version,
            "seed": order.seed,
            "is_rigid": result.is_rigid,
            "digest": result.digest,
            "whole": flat(result.whole) | asdict(result.losses) | decision,
            "steady": None if result.steady is None else flat(result.steady),
            "window": result.window,
            "series": result.series,
            "rows": result.rows,
            "bars": result.bars,
            "jobs": _columns(result.outcomes) | {"rho": [result.rhos[one.job_id] for one in result.outcomes]},
            "python": sys.version.split()[0],
            "tenants": result.tenants,
        }
    )
    return document


def flat(figures: Figures) -> dict[str, Any]:
    """Return figures in one level, as results have them."""
    fields = asdict(figures)
    return {**fields.pop("summary"), **fields}


def _columns(outcomes: Sequence[JobOutcome]) -> dict[str, list[Any]]:
    return {name: [getattr(one, name) for one in outcomes] for name in OUTCOME_FIELDS}


def _fault_document(order: Order, error: ArenaError, recorder: FlightRecorder, seen: Snapshot | None) -> Document:
    document: Document = form(
        {
            "policy": order.policy,
            "seed": order.seed,
            "key": order.key,
            "error": {"code": error.code, "what": error.what, "why": error.why},
            "event_count": recorder.event_count,
            "last_events": [{"at_s": at_s, "event": _event_form(event)} for at_s, event in recorder.events],
            "snapshot": None if seen is None else _snapshot_form(seen),
        }
    )
    return document


def _event_form(event: Event) -> Any:
    """Return an event's form without its grid, which says nothing of how it came to this and is large."""
    fields = form(event)
    if isinstance(fields, dict):
        fields.pop("grid", None)
        fields["kind"] = event.kind
    return fields


def _snapshot_form(seen: Snapshot) -> Document:
    """Return what the policy saw last: as many jobs as a person can read."""
    waiting = seen.waiting[:JOBS_IN_SNAPSHOT_MAX]
    holding = dict(list(seen.holding.items())[:JOBS_IN_SNAPSHOT_MAX])
    shown = [replace(seen.jobs[name], reasons=()) for name in dict.fromkeys([*waiting, *holding]) if name in seen.jobs]
    return {
        "now_s": seen.now_s,
        "decision_index": seen.decision_index,
        "job_count": len(seen.jobs),
        "waiting_count": len(seen.waiting),
        "holding_count": len(seen.holding),
        "waiting": waiting,
        "holding": holding,
        "jobs": shown,
        "shape": seen.shape,
    }
