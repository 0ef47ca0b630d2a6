"""Which state may follow which, one table each for jobs, attempts and nodes. Pure: no I/O, no clock."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import TypeVar

from arena.domain.cluster import NodeState
from arena.domain.records import AttemptState, JobState
from arena.errors import InternalError

State = TypeVar("State", bound=StrEnum)
Table = Mapping[State, frozenset[State]]

_J = JobState
JOB_TRANSITIONS: Table[JobState] = {
    _J.QUEUED: frozenset({_J.HELD, _J.STARTING, _J.CANCELLED, _J.FAILED}),
    _J.HELD: frozenset({_J.QUEUED, _J.CANCELLED}),
    _J.STARTING: frozenset(
        {
            _J.RUNNING,
            _J.FINISHING,
            _J.SUCCEEDED,
            _J.RECONFIGURING,
            _J.PREEMPTING,
            _J.QUEUED,
            _J.HELD,
            _J.FAILED,
            _J.CANCELLING,
        }
    ),
    _J.RUNNING: frozenset(
        {
            _J.FINISHING,
            _J.SUCCEEDED,
            _J.RECONFIGURING,
            _J.PREEMPTING,
            _J.QUEUED,
            _J.FAILED,
            _J.CANCELLING,
        }
    ),
    _J.RECONFIGURING: frozenset(
        {_J.STARTING, _J.QUEUED, _J.PREEMPTING, _J.FINISHING, _J.SUCCEEDED, _J.FAILED, _J.CANCELLING}
    ),
    _J.PREEMPTING: frozenset(
        {_J.QUEUED, _J.HELD, _J.RECONFIGURING, _J.FINISHING, _J.SUCCEEDED, _J.FAILED, _J.CANCELLING}
    ),
    _J.FINISHING: frozenset({_J.SUCCEEDED, _J.QUEUED, _J.HELD, _J.FAILED, _J.CANCELLING}),
    _J.CANCELLING: frozenset({_J.CANCELLED, _J.SUCCEEDED}),
    _J.SUCCEEDED: frozenset(),
    _J.FAILED: frozenset(),
    _J.CANCELLED: frozenset(),
}

_A = AttemptState
ATTEMPT_TRANSITIONS: Table[AttemptState] = {
    _A.LAUNCHING: frozenset({_A.STARTING, _A.RUNNING, _A.FINISHING, _A.STOPPING, _A.ENDED}),
    _A.STARTING: frozenset({_A.RUNNING, _A.FINISHING, _A.STOPPING, _A.ENDED}),
    _A.RUNNING: frozenset({_A.FINISHING, _A.STOPPING, _A.ENDED}),
    _A.FINISHING: frozenset({_A.STOPPING, _A.ENDED}),
    _A.STOPPING: frozenset({_A.ENDED}),
    _A.ENDED: frozenset(),
}

_N = NodeState
_LIVE = frozenset({_N.READY, _N.CLEANING, _N.DEGRADED, _N.QUARANTINED, _N.DRAINING, _N.DRAINED, _N.LOST})
NODE_TRANSITIONS: Table[NodeState] = {state: _LIVE - {state} for state in NodeState}


def check_transition(table: Table[State], before: State, after: State, what: str, name: str) -> None:
    """Refuse a change that the table does not list; staying in a state is always legal.

    Raises:
        InternalError: The change is not legal; ``what`` and ``name`` say of what.
    """
    if after is not before and after not in table[before]:
        raise InternalError(f"{what} {name} may not go from {before.value} to {after.value}")
