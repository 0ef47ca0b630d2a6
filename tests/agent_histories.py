"""Checking what agents really did: their journals are read, not the scheduler's word, and searched for violations.

A journal is a file ``journal.jsonl`` of one JSON object a line, each with ``kind``, ``wall_s`` and ``boot_s`` (the
host's boot clock, which gives all processes of one host one order). ``launch_intent`` takes devices, ``ended`` gives
them back; a supervisor's last word, ``attempts/<attempt>/exit.json``, says independently when the last process of an
attempt was gone. Instants are compared only where they come from the same boot of the same host.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

from arena.errors import UserError

JOURNAL_NAME = "journal.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryRecord:
    """One line of a journal.

    Args:
        boot_id: The boot in which ``boot_s`` counts.
        values: The line's other fields.
    """

    kind: str
    boot_id: str
    boot_s: float
    values: Mapping[str, Any]

    @property
    def attempt_id(self) -> str:
        """The attempt it is about; empty when it is about none."""
        return str(self.values.get("attempt_id", ""))


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeHistory:
    """All that a node's agents wrote down.

    Args:
        gone_boot_s: By attempt, when its supervisor saw the last process gone.
    """

    node_id: str
    records: tuple[HistoryRecord, ...]
    gone_boot_s: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """An attempt's time on one node, from the intent to the last sign of it; ``until_s`` is infinite while it lives."""

    node_id: str
    attempt_id: str
    job_id: str
    epoch: int
    devices: tuple[str, ...]
    boot_id: str
    from_s: float
    until_s: float

    def overlaps(self, other: Holding) -> bool:
        """Whether there was an instant at which both were held."""
        if self.boot_id != other.boot_id:
            return False
        return self.from_s < other.until_s and other.from_s < self.until_s


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceHeldTwice:
    """Two attempts had one device at the same time."""

    device_id: str
    first: Holding
    second: Holding


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchedTwice:
    """One attempt was launched more than once on a node."""

    node_id: str
    attempt_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochWentBack:
    """A node launched an epoch of a job after it had seen the same or a later one."""

    node_id: str
    job_id: str
    seen_epoch: int
    launched_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptsOverlap:
    """Two attempts of one job lived at the same time."""

    job_id: str
    first: Holding
    second: Holding


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedBeforeGone:
    """A node gave an attempt's devices back while a process of it lived."""

    node_id: str
    attempt_id: str
    ended_s: float
    gone_s: float


Violation = DeviceHeldTwice | LaunchedTwice | EpochWentBack | AttemptsOverlap | EndedBeforeGone


def check_state_dirs(state_dirs: Iterable[Path]) -> tuple[Violation, ...]:
    """Return all violations in the journals of agents' state directories.

    Raises:
        UserError: A directory has no readable journal.
    """
    return check_histories([read_history(directory) for directory in state_dirs])


def read_history(state_dir: Path) -> NodeHistory:
    """Read one agent's journal and its supervisors' last words; a torn last line is left out.

    Raises:
        UserError: There is no journal, or one of its other lines cannot be read.
    """
    path = state_dir / JOURNAL_NAME
    try:
        lines = path.read_bytes().splitlines(keepends=True)
    except FileNotFoundError as error:
        raise UserError(f"{state_dir} is no agent's state directory", why=f"it has no {JOURNAL_NAME}") from error
    records, node_id, boot_id = [], "", ""
    for index, line in enumerate(lines):
        try:
            values = json.loads(line)
        except ValueError as error:
            if index == len(lines) - 1:
                break
            raise UserError(f"{path} line {index + 1} cannot be read", why=str(error)) from error
        if values["kind"] == "agent_started":
            node_id, boot_id = values["node_id"], values["boot_id"]
        records.append(
            HistoryRecord(kind=values["kind"], boot_id=boot_id, boot_s=float(values["boot_s"]), values=values)
        )
    return NodeHistory(node_id=node_id, records=tuple(records), gone_boot_s=_last_words(state_dir))


def _last_words(state_dir: Path) -> Mapping[str, float]:
    return {
        path.parent.name: float(json.loads(path.read_text(encoding="utf-8"))["gone_boot_s"])
        for path in sorted(state_dir.glob("attempts/*/exit.json"))
    }


def check_histories(histories: Sequence[NodeHistory]) -> tuple[Violation, ...]:
    """Return all violations: per node, and between all nodes of a host."""
    held = [holding for history in histories for holding in holdings(history)]
    found: list[Violation] = []
    for history in histories:
        found += _launched_twice(history)
        found += _epochs_back(history)
        found += _ended_before_gone(history)
    found += _devices_held_twice(held)
    found += _attempts_overlap(held)
    return tuple(found)


def holdings(history: NodeHistory) -> tuple[Holding, ...]:
    """Return what each launch held and for how long, by the later of the agent's and the supervisor's word."""
    live: dict[str, Holding] = {}
    done: list[Holding] = []
    for record in history.records:
        if record.kind == "launch_intent":
            if record.attempt_id in live:
                done.append(live[record.attempt_id])
            live[record.attempt_id] = _holding(history.node_id, record)
        elif record.kind == "ended" and record.attempt_id in live:
            holding = live.pop(record.attempt_id)
            done.append(replace(holding, until_s=_until_s(history, holding, record)))
    return (*done, *live.values())


def _holding(node_id: str, record: HistoryRecord) -> Holding:
    values = record.values
    return Holding(
        node_id=node_id,
        attempt_id=record.attempt_id,
        job_id=values["job_id"],
        epoch=values["epoch"],
        devices=tuple(values["devices"]),
        boot_id=record.boot_id,
        from_s=record.boot_s,
        until_s=math.inf,
    )


def _until_s(history: NodeHistory, holding: Holding, ended: HistoryRecord) -> float:
    if ended.boot_id != holding.boot_id:  # it ended with its boot, and nothing else can have run in that one after it
        return math.inf
    return max(ended.boot_s, history.gone_boot_s.get(holding.attempt_id, 0.0))


def _launched_twice(history: NodeHistory) -> Iterator[Violation]:
    for kind in ("launch_intent", "launched"):
        seen: set[str] = set()
        for record in history.records:
            if record.kind != kind:
                continue
            if record.attempt_id in seen:
                yield LaunchedTwice(node_id=history.node_id, attempt_id=record.attempt_id)
            seen.add(record.attempt_id)


def _epochs_back(history: NodeHistory) -> Iterator[Violation]:
    seen: dict[str, int] = {}
    for record in history.records:
        if record.kind not in {"launch_intent", "refused", "fence"}:
            continue
        job_id, epoch = record.values["job_id"], record.values["epoch"]
        if record.kind == "launch_intent" and epoch <= seen.get(job_id, 0):
            yield EpochWentBack(node_id=history.node_id, job_id=job_id, seen_epoch=seen[job_id], launched_epoch=epoch)
        seen[job_id] = max(epoch, seen.get(job_id, 0))


def _ended_before_gone(history: NodeHistory) -> Iterator[Violation]:
    boots = {record.attempt_id: record.boot_id for record in history.records if record.kind == "launch_intent"}
    for record in history.records:
        if record.kind != "ended" or boots.get(record.attempt_id) != record.boot_id:
            continue
        gone_s = max(float(record.values["gone_boot_s"]), history.gone_boot_s.get(record.attempt_id, 0.0))
        if gone_s > record.boot_s:
            yield EndedBeforeGone(
                node_id=history.node_id, attempt_id=record.attempt_id, ended_s=record.boot_s, gone_s=gone_s
            )


def _devices_held_twice(held: Iterable[Holding]) -> Iterator[Violation]:
    by_device: dict[str, list[Holding]] = defaultdict(list)
    for holding in held:
        for device_id in holding.devices:
            by_device[device_id].append(holding)
    for device_id in sorted(by_device):
        for first, second in _overlapping(by_device[device_id]):
            yield DeviceHeldTwice(device_id=device_id, first=first, second=second)


def _attempts_overlap(held: Iterable[Holding]) -> Iterator[Violation]:
    by_job: dict[str, list[Holding]] = defaultdict(list)
    for holding in held:
        by_job[holding.job_id].append(holding)
    for job_id in sorted(by_job):
        for first, second in _overlapping(by_job[job_id]):
            if first.epoch != second.epoch:
                yield AttemptsOverlap(job_id=job_id, first=first, second=second)


def _overlapping(held: Iterable[Holding]) -> Iterator[tuple[Holding, Holding]]:
    ordered = sorted(held, key=lambda holding: (holding.boot_id, holding.from_s, holding.node_id, holding.attempt_id))
    return ((first, second) for first, second in combinations(ordered, 2) if first.overlaps(second))
