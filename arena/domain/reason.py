"""Reasons: why a job waits, moves or stays, as codes with numbers. Pure: no I/O, no clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from arena.domain.replacing import quickly_made


class ReasonCode(StrEnum):
    """What kind of reason; the template below turns it into a sentence."""

    NOT_YET_EVALUATED = "not_yet_evaluated"
    PLANNING = "planning"
    HELD = "held"
    BACKOFF = "backoff"
    BEHIND = "behind"
    NO_NODES = "no_nodes"
    INSUFFICIENT_GPUS = "insufficient_gpus"
    ASKED_GPUS = "asked_gpus"
    FRAGMENTED = "fragmented"
    EXCEEDS_CLUSTER = "exceeds_cluster"
    NO_FEASIBLE_PLAN = "no_feasible_plan"
    MEMORY = "memory"
    DIVISIBILITY = "divisibility"
    UNSUPPORTED = "unsupported"
    WAITING_FOR_DEVICES = "waiting_for_devices"
    NO_SHARED_CHECKPOINT_PLACE = "no_shared_checkpoint_place"
    NODE_AVOIDED = "node_avoided"
    STALLED = "stalled"
    STARTED = "started"
    GREW = "grew"
    SHRANK = "shrank"
    MOVED = "moved"
    PREEMPTED = "preempted"
    NODE_LOST = "node_lost"
    NODE_DRAINING = "node_draining"
    NODE_EMPTIED = "node_emptied"
    NODE_RECLAIMED = "node_reclaimed"
    NODE_LEFT = "node_left"
    WORKER_FAILED = "worker_failed"
    RAN_OUT_OF_MEMORY = "ran_out_of_memory"
    LAUNCH_FAILED = "launch_failed"
    OUTBID = "outbid"
    TIED = "tied"
    INDIVISIBLE = "indivisible"
    DISPLACES = "displaces"
    UNMOVABLE = "unmovable"
    LEFT_ALONE = "left_alone"
    OUT_OF_SERVICE = "out_of_service"
    KEPT = "kept"
    NEXT_BEST = "next_best"
    CHANGE_NOT_WORTH_IT = "change_not_worth_it"
    DEADLINE_KEPT = "deadline_kept"
    DEADLINE_MEANT = "deadline_meant"
    DEADLINE_LATE = "deadline_late"
    DEADLINE_PASSED = "deadline_passed"
    DEADLINE_OPEN = "deadline_open"
    DEADLINE_UNKNOWN = "deadline_unknown"
    DEADLINE_UNPLANNED = "deadline_unplanned"
    DEADLINE_TOO_SOON = "deadline_too_soon"
    DEADLINE_TOO_SLOW = "deadline_too_slow"
    DEADLINE_TAKEN = "deadline_taken"
    DEADLINE_BEHIND_PROMISES = "deadline_behind_promises"
    DEADLINE_BESIDE_SHARES = "deadline_beside_shares"
    DEADLINE_NEVER_BESIDE_SHARES = "deadline_never_beside_shares"
    DEADLINE_NOT_WEIGHED = "deadline_not_weighed"
    STARTED_OFTEN = "started_often"
    RECLAIMED = "reclaimed"
    KEPT_FOR_SHARE = "kept_for_share"
    BEYOND_SHARE = "beyond_share"
    SHARE = "share"
    RESERVED = "reserved"
    RESERVED_OPEN = "reserved_open"
    MEASURED_PACE = "measured_pace"
    BUDGET_SPENT = "budget_spent"
    BUDGET_TOO_SMALL = "budget_too_small"
    BUDGET_NOT_ENOUGH = "budget_not_enough"
    PROJECT_UNKNOWN = "project_unknown"
    PROJECT_WITHOUT_SHARE = "project_without_share"
    NEVER_BESIDE_SHARES = "never_beside_shares"
    REQUESTED = "requested"
    INTERNAL_ERROR = "internal_error"


# ``{count:s}`` is the s of a plural, ``{number:~}`` an estimate: rounded, so that nobody takes it for more.
_TEMPLATES: Mapping[ReasonCode, str] = {
    ReasonCode.NOT_YET_EVALUATED: "not yet evaluated",
    ReasonCode.PLANNING: "its performance grid is being built",
    ReasonCode.HELD: "held by {by}",
    ReasonCode.BACKOFF: "retry {retry:.0f} of {retries_max:.0f} in {wait_s:.0f} s after: {error}",
    ReasonCode.BEHIND: "behind job {job} in the queue ({ahead:.0f} ahead)",
    ReasonCode.NO_NODES: "no node is registered and ready ({nodes:.0f} known)",
    ReasonCode.INSUFFICIENT_GPUS: "needs {needed:.0f} {gpu_type} GPU{needed:s}, {free:.0f} of {total:.0f} free",
    ReasonCode.ASKED_GPUS: (
        "policy {policy} gives it the {needed:.0f} {gpu_type} GPU{needed:s} that it asks for and no fewer, "
        "though {least:.0f} would do: {free:.0f} of {total:.0f} free"
    ),
    ReasonCode.FRAGMENTED: ("needs {group}, {free:.0f} {gpu_type} GPUs are free but at most {hole:.0f} on one node"),
    ReasonCode.EXCEEDS_CLUSTER: "needs at least {needed:.0f} GPU{needed:s}, largest feasible now: {largest:.0f}",
    ReasonCode.NO_FEASIBLE_PLAN: "no plan fits any GPU group of this cluster: {detail}",
    ReasonCode.MEMORY: ("needs {needed_gib:.1f} GiB on stage {stage:.0f}, has {capacity_gib:.1f}"),
    ReasonCode.DIVISIBILITY: "{detail}",
    ReasonCode.UNSUPPORTED: "{detail}",
    ReasonCode.WAITING_FOR_DEVICES: (
        "chosen for {group}; {free:.0f} of {needed:.0f} devices are free, waiting for {holder}"
    ),
    ReasonCode.NO_SHARED_CHECKPOINT_PLACE: (
        "checkpoint place {place} is not seen by node {node}, so the job cannot move there"
    ),
    ReasonCode.NODE_AVOIDED: "it failed on node {node} before its first step, so it waits for another: {error}",
    ReasonCode.STALLED: "no step came within {timeout_s:.0f} s after {since}: it seems to hang",
    ReasonCode.STARTED: "started on {group}",
    ReasonCode.GREW: "grew from {before:.0f} to {after:.0f} GPU{after:s}, {speedup:.2f}x faster by its grid",
    ReasonCode.SHRANK: "shrank from {before:.0f} to {after:.0f} GPU{after:s} to make room for {job}",
    ReasonCode.MOVED: "moved to {group}",
    ReasonCode.PREEMPTED: "preempted by job {job}",
    ReasonCode.NODE_LOST: "node {node} was lost",
    ReasonCode.NODE_DRAINING: "node {node} is draining: {why}",
    ReasonCode.NODE_EMPTIED: "node {node} is to be empty in {left_s:.0f} s: {why} (by {by})",
    ReasonCode.NODE_RECLAIMED: "node {node} is reclaimed in {left_s:.0f} s: {why}",
    ReasonCode.NODE_LEFT: "it had to leave node {node}: {why} (by {by})",
    ReasonCode.WORKER_FAILED: "{error}",
    ReasonCode.RAN_OUT_OF_MEMORY: "{plan} is not tried again, it ran out of memory: {error}",
    ReasonCode.LAUNCH_FAILED: "launch failed on node {node}: {error} (tried {tries:.0f} of {tries_max:.0f})",
    ReasonCode.OUTBID: (
        "its best offer is {group}: there it would save all jobs {value:.3g} s of waiting each second, but others save "
        "{price:.3g} s with those GPUs"
    ),
    ReasonCode.TIED: (
        "its best offer is {group}: there it would save all jobs {value:.3g} s of waiting each second, and others save "
        "{price:.3g} s with those GPUs: too close for room to be made for it"
    ),
    ReasonCode.INDIVISIBLE: (
        "its best offer is {group}: there it would save all jobs {value:.3g} s of waiting each second, and others save "
        "{price:.3g} s with those GPUs on the average, but as whole groups are given nothing was found that saves more "
        "in all with it"
    ),
    ReasonCode.DISPLACES: (
        "on {group} it would displace {jobs}, and all jobs together would lose {loss:.3g} s more each second"
    ),
    ReasonCode.UNMOVABLE: (
        "GPUs that it could use are with jobs that start, change, end or may not be stopped at present: {jobs}"
    ),
    ReasonCode.LEFT_ALONE: (
        "GPUs that it could use are with {job}, which was started again {count:.0f} times within an hour and is left "
        "alone for {rest_s:.0f} s"
    ),
    ReasonCode.OUT_OF_SERVICE: ("{out:.0f} of {total:.0f} {gpu_type} GPU{total:s} are out of service: {where}"),
    ReasonCode.KEPT: (
        "has {group}: there it saves all jobs {value:.3g} s of waiting each second, others would save {price:.3g} s"
    ),
    ReasonCode.NEXT_BEST: (
        "its next best is {group}: {value:.3g} s each second with the restart counted, others would save {price:.3g} s"
    ),
    ReasonCode.CHANGE_NOT_WORTH_IT: "a change would gain {gain_s:.0f} s and cost {cost_s:.0f} s",
    ReasonCode.DEADLINE_KEPT: (
        "its deadline in {left_s:.0f} s can be met: {group} is kept for it from {from_s:.0f} s from now on, "
        "unless it has ended by then"
    ),
    ReasonCode.DEADLINE_MEANT: (
        "its deadline in {left_s:.0f} s is not promised, but can be met as things are: {group} is meant for it from "
        "{from_s:.0f} s from now on, unless promises or shares of others take it before"
    ),
    ReasonCode.DEADLINE_LATE: (
        "its deadline in {left_s:.0f} s cannot be met without breaking promises: "
        "the earliest end is {late_s:.0f} s later"
    ),
    ReasonCode.DEADLINE_PASSED: "its deadline has passed, so it is served as if it had none",
    ReasonCode.DEADLINE_OPEN: (
        "its deadline in {left_s:.0f} s cannot be promised: nobody knows when GPUs that it can use come free"
    ),
    ReasonCode.DEADLINE_UNKNOWN: (
        "its deadline in {left_s:.0f} s is not promised: its length is not known "
        "(declare stop.steps or stop.time_limit_s)"
    ),
    ReasonCode.DEADLINE_UNPLANNED: "its deadline in {left_s:.0f} s is not promised yet: it is still being planned",
    ReasonCode.DEADLINE_TOO_SOON: (
        "it takes {needed_s:.0f} s on {group}, the quickest it can be given (its start and a tenth to spare counted), "
        "and is due in {left_s:.0f} s"
    ),
    ReasonCode.DEADLINE_TOO_SLOW: (
        "it takes {needed_s:.0f} s on {group}, the quickest it can be given (its start and a tenth to spare counted), "
        "at {pace:.2g} times the estimated speed, as jobs like it were measured to run, and is due in {left_s:.0f} s"
    ),
    ReasonCode.DEADLINE_TAKEN: (
        "too few of the GPUs that it can use come free in time: {jobs} have them and may not be stopped before"
    ),
    ReasonCode.DEADLINE_BEHIND_PROMISES: (
        "the {needed_s:.0f} s on {group} that it needs before then are promised to {jobs}, whose deadlines came first"
    ),
    ReasonCode.DEADLINE_BESIDE_SHARES: (
        "what other projects are guaranteed ({projects}) leaves project {project} too little for the {needed_s:.0f} s "
        "on {group} that it needs before then"
    ),
    ReasonCode.DEADLINE_NEVER_BESIDE_SHARES: (
        "what other projects are guaranteed ({projects}) leaves project {project} too little to promise it any end, "
        "however late: it can only borrow"
    ),
    ReasonCode.DEADLINE_NOT_WEIGHED: "policy {policy} promises no deadlines",
    ReasonCode.STARTED_OFTEN: (
        "it was started again {count:.0f} times within an hour: it rests for {rest_s:.0f} s, unless its deadline "
        "presses before"
    ),
    ReasonCode.MEASURED_PACE: (
        "on {group} it is counted with {pace:.2g} times the estimated speed, as it, or jobs like it, were measured"
    ),
    ReasonCode.RECLAIMED: (
        "gives back {count:.0f} borrowed GPU{count:s}: project {project} has work for {claimed:.0f} {gpu_type} "
        "GPU{claimed:s} of the {guaranteed:.0f} it is guaranteed"
    ),
    ReasonCode.KEPT_FOR_SHARE: (
        "{group} would take GPUs that project {project} is guaranteed and has work for ({claimed:.0f} {gpu_type} of "
        "{guaranteed:.0f})"
    ),
    ReasonCode.BEYOND_SHARE: (
        "it may not be stopped, so it starts on {group} only {within}on GPUs that nobody is guaranteed "
        "({left:.0f} left)"
    ),
    ReasonCode.SHARE: (
        "project {project} is guaranteed {share} and uses {used:.0f}; others use {others}; "
        "beyond their shares: {borrowers}"
    ),
    ReasonCode.BUDGET_SPENT: (
        "it was stopped at {spent_usd:.6g} USD: what is left of its budget of {budget_usd:.6g} USD is for its stop, "
        "in which a training job saves"
    ),
    ReasonCode.BUDGET_TOO_SMALL: (
        "{left_usd:.6g} USD of its budget are left; its cheapest way to the end, {group}, is estimated to cost "
        "{needed_usd:~} USD"
    ),
    ReasonCode.BUDGET_NOT_ENOUGH: (
        "its budget of {budget_usd:.6g} USD is not enough: where it costs least, on {group}, "
        "it is estimated to need {needed_usd:~} USD"
    ),
    ReasonCode.PROJECT_UNKNOWN: "no job of project {project} is here; is {near} meant?",
    ReasonCode.PROJECT_WITHOUT_SHARE: "project {project} is guaranteed nothing, and no job of it is here; is it meant?",
    ReasonCode.NEVER_BESIDE_SHARES: (
        "it may not be stopped and needs {group} at least, but what others are guaranteed leaves {left:.0f} such "
        "GPU{left:s}: as the cluster is it never starts (with preemptible: true it may borrow)"
    ),
    ReasonCode.RESERVED_OPEN: (
        "nodes {nodes} are kept for it: it starts there on {group} when jobs have ended of which nobody knows how long "
        "they run"
    ),
    ReasonCode.RESERVED: "nodes {nodes} are kept for it: it starts there on {group} in {start_s:.0f} s at the latest",
    ReasonCode.REQUESTED: "requested by {by}",
    ReasonCode.INTERNAL_ERROR: "internal error while it was evaluated: {error}",
}


def rough_text(value: float) -> str:
    """Return a number with the two digits that an estimate is good for."""
    return f"{float(f'{value:.2g}'):.6g}"


class _Number(float):
    """A number that templates can also ask for the s of a plural (``s``), or for itself as an estimate (``~``)."""

    def __format__(self, form: str) -> str:
        if form == "~":
            return rough_text(self)
        return ("" if float(self) == 1.0 else "s") if form == "s" else super().__format__(form)


class _Missing(dict[str, object]):
    def __missing__(self, key: str) -> str:
        return "?"


@quickly_made
@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """A reason with its numbers and names.

    Args:
        code: Kind of reason.
        numbers: Quantities by name, units in the names.
        names: Ids and words by name.
    """

    code: ReasonCode
    numbers: Mapping[str, float] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        values = _Missing({key: _Number(number) for key, number in self.numbers.items()})
        values.update(self.names)
        template = _TEMPLATES[self.code]
        try:
            return template.format_map(values)
        except (TypeError, ValueError):  # a number is missing and its format does not suit "?"
            facts = ", ".join(f"{key}={value}" for key, value in sorted(values.items()))
            return f"{self.code.value.replace('_', ' ')} ({facts})" if facts else self.code.value


_LED_BY_THE_DEADLINE = frozenset({ReasonCode.DEADLINE_OPEN, ReasonCode.DEADLINE_UNKNOWN, ReasonCode.DEADLINE_UNPLANNED})


def cause_of_refusal(one: Reason) -> str:
    """Return why a deadline is not promised, for a reader who has just been told which and that it is not."""
    text = str(one)
    return text.partition(": ")[2] if one.code in _LED_BY_THE_DEADLINE else text


def reason(code: ReasonCode, /, **facts: float | str) -> Reason:
    """Return a reason from keyword facts: strings become names, numbers become numbers."""
    numbers: dict[str, float] = {}
    names: dict[str, str] = {}
    for key, value in facts.items():
        if isinstance(value, str):
            names[key] = value
        else:
            numbers[key] = float(value)
    return Reason(code=code, numbers=numbers, names=names)
