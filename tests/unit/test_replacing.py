"""The fast ``replace`` does what the standard one does."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import pytest

from arena.domain.allocation import GpuGroup
from arena.domain.launch import NodeId
from arena.domain.records import JobState
from arena.domain.replacing import replace
from arena.errors import SpecError
from arena.policies.capacity import Capacity
from tests.builders import capacity_of, job_record, node_info


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    left: int
    right: int = 2


@dataclass(frozen=True, kw_only=True)
class WithoutSlots:
    left: int
    right: int = 2


def test_records_are_as_with_the_standard_replace() -> None:
    record = job_record("a")
    changes = {"epoch": 3, "state": JobState.STARTING, "changed_at_s": 5.0}
    assert replace(record, **changes) == dataclasses.replace(record, **changes)  # type: ignore[arg-type]
    assert record.epoch == 0
    assert replace(record) == record
    assert replace(record) is not record


@pytest.mark.parametrize("kind", [Pair, WithoutSlots])
def test_an_unknown_field_is_an_error(kind: type[Pair | WithoutSlots]) -> None:
    with pytest.raises((TypeError, KeyError)):
        replace(kind(left=1), middle=3)  # type: ignore[call-arg]
    assert replace(kind(left=1), right=5) == kind(left=1, right=5)


def test_checks_of_a_class_still_hold() -> None:
    part = GpuGroup.of("a", [2, 1]).parts[0]
    with pytest.raises(SpecError):
        replace(part, node_counts=())


def test_values_share_what_did_not_change() -> None:
    capacity = capacity_of([node_info("n1")])
    after = replace(capacity, rooms=Capacity().rooms)
    assert after.devices is capacity.devices
    assert NodeId("n1") in capacity.rooms
