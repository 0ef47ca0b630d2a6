"""The fast ``replace`` does what the standard one does."""

from __future__ import annotations

import dataclasses
import pickle
from dataclasses import dataclass, field

import pytest

from arena.domain.allocation import GpuGroup
from arena.domain.launch import NodeId
from arena.domain.records import JobState
from arena.domain.replacing import freeze, quickly_made, replace, thaw
from arena.errors import SpecError
from arena.policies.capacity import Capacity
from tests.builders import capacity_of, job_record, node_info


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    left: int
    right: int = 2


@quickly_made
@dataclass(frozen=True, slots=True, kw_only=True)
class Quick:
    left: int
    right: int = 2
    rest: list[int] = field(default_factory=list)

    @property
    def total(self) -> int:
        return self.left + self.right


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


def test_a_quickly_made_record_is_as_any_other() -> None:
    one = Quick(left=1)
    assert (one.left, one.right, one.rest) == (1, 2, [])
    assert one.rest is not Quick(left=1).rest
    assert one == Quick(left=1, right=2, rest=[])
    assert pickle.loads(pickle.dumps(one)) == one
    assert type(one) is Quick
    with pytest.raises(dataclasses.FrozenInstanceError):
        one.left = 3  # type: ignore[misc]
    with pytest.raises(TypeError):
        Quick()  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        Quick(left=1, middle=2)  # type: ignore[call-arg]


def test_what_is_thawed_can_be_set_until_it_is_frozen_and_the_record_stays_as_it_was() -> None:
    record = Quick(left=1)
    thawed = thaw(record)
    thawed.left = 5  # type: ignore[misc]
    assert thawed.total == 7
    after = freeze(thawed)
    assert (after, record.left) == (Quick(left=5, rest=record.rest), 1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        after.left = 6  # type: ignore[misc]


def test_a_class_that_checks_its_fields_cannot_be_thawed() -> None:
    with pytest.raises(TypeError, match="GroupPart"):
        thaw(GpuGroup.of("a", [2, 1]).parts[0])
