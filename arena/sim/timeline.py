"""What pictures of a run need: how fast all jobs ran together, and which job had which GPU. Pure: no I/O, no clock."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from arena.domain.cluster import ClusterShape
from arena.domain.job import JobId
from arena.domain.launch import DeviceId
from arena.domain.records import AttemptRecord
from arena.engine.ports import Step
from arena.sim.replay import nodes_of

BARS_MAX = 4_000
JOBS_MAX = 200
ROWS_MAX = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A job on one GPU: launched, stepping, over.

    Args:
        row: Index of the GPU among those that are drawn.
        ready_s: When it began to step; None where it never did.
        label: Group and plan.
    """

    row: int
    job_id: JobId
    from_s: float
    ready_s: float | None
    until_s: float
    label: str


@dataclass(slots=True, kw_only=True)
class Timeline:
    """Reads every step of a run.

    Args:
        step_s_by_job: Seconds per step of each job on what it asked for.
        rows: GPUs whose bars are kept, with their index.
    """

    step_s_by_job: Mapping[JobId, float]
    rows: Mapping[DeviceId, int]
    bars: list[Bar] = field(default_factory=list)
    _drawn: dict[JobId, None] = field(default_factory=dict)
    _is_full: bool = False
    _from_s: array[float] = field(default_factory=lambda: array("d"))
    _until_s: array[float] = field(default_factory=lambda: array("d"))
    _speed: array[float] = field(default_factory=lambda: array("d"))

    def watch(self, step: Step) -> None:
        """Take the attempts that ended by a step into account."""
        for attempt in step.attempts:
            if attempt.ended_at_s is None:
                continue
            self._ran(attempt, attempt.ended_at_s)
            if not self._is_full:
                self._draw(attempt, attempt.ended_at_s)

    def speed(self) -> list[tuple[float, float]]:
        """Return how fast the cluster was after each change: 1 for each job as fast as on what it asked for."""
        at_s = np.concatenate([np.array(self._from_s), np.array(self._until_s)])
        changes = np.concatenate([np.array(self._speed), -np.array(self._speed)])
        order = np.argsort(at_s, kind="stable")
        level = np.maximum(np.cumsum(changes[order]), 0.0)
        return [(float(at), float(value)) for at, value in zip(at_s[order], level, strict=True)]

    def _ran(self, attempt: AttemptRecord, ended_at_s: float) -> None:
        ready_at_s = _ready_at_s(attempt)
        if ready_at_s is None:
            return
        asked_s = self.step_s_by_job.get(attempt.job_id, 1.0)
        own_s = attempt.estimate.iter_time_s if attempt.estimate is not None else asked_s
        self._from_s.append(ready_at_s)
        self._until_s.append(ended_at_s)
        self._speed.append(asked_s / own_s)

    def _draw(self, attempt: AttemptRecord, ended_at_s: float) -> None:
        rows = sorted(self.rows[device] for device in attempt.allocation.device_ids if device in self.rows)
        if not rows:
            return
        self._drawn[attempt.job_id] = None
        self._is_full = len(self._drawn) > JOBS_MAX or len(self.bars) + len(rows) > BARS_MAX
        if self._is_full:
            return
        label = str(attempt.group) if attempt.plan is None else f"{attempt.group}: {attempt.plan}"
        for row in rows:
            bar = Bar(
                row=row,
                job_id=attempt.job_id,
                from_s=attempt.launched_at_s,
                ready_s=_ready_at_s(attempt),
                until_s=ended_at_s,
                label=label,
            )
            self.bars.append(bar)


def _ready_at_s(attempt: AttemptRecord) -> float | None:
    """Return when an attempt began to work; a program says nothing more than that its processes are up."""
    return attempt.first_step_at_s if attempt.ready_at_s is None else attempt.ready_at_s


def drawn_devices(shape: ClusterShape) -> tuple[DeviceId, ...]:
    """Return the GPUs that a chart shows: whole nodes, of each pool about the same number of GPUs."""
    share = max(1, ROWS_MAX // max(1, len(shape.pools)))
    found: list[DeviceId] = []
    for pool in shape.pools:
        count = max(1, share // pool.gpus_per_node)
        part = ClusterShape(pools=(pool,))
        names = (node.devices for node, _ in zip(nodes_of(part), range(count), strict=False))
        found.extend(device.device_id for devices in names for device in devices)
    return tuple(found[: 2 * ROWS_MAX])


def rows_of(devices: Sequence[DeviceId]) -> dict[DeviceId, int]:
    """Return the index of each GPU."""
    return {device: index for index, device in enumerate(devices)}


def all_devices(shape: ClusterShape) -> Iterable[DeviceId]:
    """Yield every GPU of a cluster, by the names that a replay gives them."""
    return (device.device_id for node in nodes_of(shape) for device in node.devices)
