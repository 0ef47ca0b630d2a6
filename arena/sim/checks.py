"""An account of devices and jobs of a run that trusts nobody: what no policy may get past it.

It is kept apart from the engine's own state, costs as much as what changes, and is kept for every run; the engine's
invariants (``arena.engine.invariants``) look at a whole state, and are for small runs. Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from arena.domain.events import JobSubmitted
from arena.domain.job import JobId
from arena.domain.launch import AttemptId, DeviceId
from arena.domain.records import AttemptRecord, EntryKind, JobRecord
from arena.engine.ports import Step
from arena.errors import InternalError
from arena.units import format_count

_NAMED_MAX = 5


class ReplayFaultError(InternalError):
    """A run did what no run may do: a device given twice, a gang in part, a job lost, a decision that was refused."""

    code = "replay_fault"


@dataclass(slots=True, kw_only=True)
class Watchdog:
    """Reads every step and raises at the first that is wrong.

    Args:
        devices: Of the cluster.
    """

    devices: frozenset[DeviceId]
    _holders: dict[DeviceId, AttemptId] = field(default_factory=dict)
    _released: dict[AttemptId, int] = field(default_factory=dict)
    _live: dict[JobId, AttemptRecord] = field(default_factory=dict)
    _epochs: dict[JobId, int] = field(default_factory=dict)
    _open: dict[JobId, None] = field(default_factory=dict)
    _ended: set[JobId] = field(default_factory=set)

    def watch(self, step: Step) -> None:
        """Take a step into account.

        Raises:
            ReplayFaultError: It is wrong.
        """
        self._decided(step)
        if isinstance(step.event, JobSubmitted):
            self._submitted(step.event.job_id)
        for attempt in step.attempts:
            self._release(attempt)
        for attempt in step.attempts:
            if attempt.epoch > self._epochs.get(attempt.job_id, 0):
                self._launched(attempt)
        for job in step.jobs:
            if job.state.is_terminal:
                self._over(job)

    def finish(self) -> None:
        """Say that the run has come to its end by itself.

        Raises:
            ReplayFaultError: Jobs have not ended, or hold devices.
        """
        if self._open:
            raise _fault(f"{format_count(len(self._open), 'job')} never ended", _named(self._open))
        if self._holders:
            raise _fault("devices are held after the last job has ended", _named(self._holders))

    def _decided(self, step: Step) -> None:
        for entry in step.history:
            if entry.kind is EntryKind.DECISION and "error" in entry.data:
                raise _fault("the policy failed, or its decision was refused", str(entry.data["error"]))
        for job in step.jobs:
            if job.evaluation_failure_count:
                raise _fault(f"the policy failed on job {job.job_id}, or its decision was refused", job.error)

    def _submitted(self, job_id: JobId) -> None:
        if job_id in self._ended or job_id in self._open:
            raise _fault(f"job {job_id} was submitted twice")
        self._open[job_id] = None

    def _release(self, attempt: AttemptRecord) -> None:
        """Take back what nodes have given up; another job may have it before the last node has."""
        done = self._released.get(attempt.attempt_id, 0)
        for end in attempt.ends[done:]:
            for share in attempt.allocation.shares:
                if share.node_id == end.node_id:
                    for device in share.device_ids:
                        if self._holders.get(device) == attempt.attempt_id:
                            del self._holders[device]
        if attempt.is_live:
            self._released[attempt.attempt_id] = len(attempt.ends)
            return
        self._released.pop(attempt.attempt_id, None)
        self._live.pop(attempt.job_id, None)
        left = [device for device in attempt.allocation.device_ids if self._holders.get(device) == attempt.attempt_id]
        if left:
            raise _fault(f"attempt {attempt.attempt_id} is over and holds devices", _named(sorted(left)))

    def _launched(self, attempt: AttemptRecord) -> None:
        job_id = attempt.job_id
        if job_id not in self._open:
            raise _fault(f"job {job_id} was launched, and it is over or was never submitted")
        if job_id in self._live:
            raise _fault(f"job {job_id} has two live attempts", f"epochs {self._epochs[job_id]} and {attempt.epoch}")
        devices = [device for share in attempt.allocation.shares for device in share.device_ids]
        if not len(devices) == len(set(devices)) == attempt.group.gpu_count:
            raise _fault(f"job {job_id} was launched in part", f"{len(set(devices))} devices for {attempt.group}")
        for device in devices:
            if device not in self.devices:
                raise _fault(f"job {job_id} was given device {device}, which the cluster does not have")
            if device in self._holders:
                raise _fault(f"device {device} was given to job {job_id}", f"{self._holders[device]} holds it")
            self._holders[device] = attempt.attempt_id
        self._epochs[job_id] = attempt.epoch
        self._live[job_id] = attempt

    def _over(self, job: JobRecord) -> None:
        if job.job_id in self._ended:
            raise _fault(f"job {job.job_id} ended twice")
        if job.job_id in self._live:
            raise _fault(f"job {job.job_id} is {job.state.value} and holds devices")
        self._open.pop(job.job_id, None)
        self._epochs.pop(job.job_id, None)
        self._ended.add(job.job_id)


def _fault(what: str, why: str = "") -> ReplayFaultError:
    return ReplayFaultError(what, why=why)


def _named(names: Iterable[str]) -> str:
    listed = list(names)
    more = f" and {len(listed) - _NAMED_MAX} more" if len(listed) > _NAMED_MAX else ""
    return ", ".join(listed[:_NAMED_MAX]) + more
