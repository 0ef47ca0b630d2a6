"""How single fields cross the border: enums by name, optional values, numbers that fit. Pure: no I/O, no clock."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Generic, Protocol, TypeVar

from google.protobuf.message import Message

from arena.errors import ArenaError, UserError

Member = TypeVar("Member", bound=str)
Number = TypeVar("Number", bound=int)
Number_co = TypeVar("Number_co", bound=int, covariant=True)
M = TypeVar("M", bound=Message)
Value = TypeVar("Value")


class _ProtoEnum(Protocol[Number_co]):
    """The part of a generated enum that the codec needs."""

    def Value(self, name: str) -> Number_co: ...  # noqa: N802 - protobuf's name


class EnumMap(Generic[Member, Number]):
    """Both directions between domain words and one proto enum, built from the names and so total.

    Args:
        proto_enum: The generated enum.
        prefix: What its value names start with, e.g. ``JOB_STATE``.
        members: Every domain word; ``queued`` belongs to ``JOB_STATE_QUEUED``.
    """

    def __init__(self, proto_enum: _ProtoEnum[Number], prefix: str, members: Iterable[Member]) -> None:
        self.prefix = prefix
        self.number_by_member: Mapping[Member, Number] = {
            member: proto_enum.Value(f"{prefix}_{str(member).upper()}") for member in members
        }
        self.member_by_number: Mapping[int, Member] = {
            number: member for member, number in self.number_by_member.items()
        }

    def to_proto(self, member: Member) -> Number:
        """Return the number of a domain word."""
        return self.number_by_member[member]

    def from_proto(self, number: int, field: str) -> Member:
        """Return the domain word of a number.

        Raises:
            UserError: The number is 0 (unspecified) or unknown here; ``field`` is named.
        """
        member = self.member_by_number.get(number)
        if member is None:
            cause = "is not specified" if number == 0 else f"has the value {number}, which this version does not know"
            raise UserError(
                f"field {field} {cause}",
                fix=f"one of {', '.join(f'{self.prefix}_{str(word).upper()}' for word in self.number_by_member)}",
                details={"field": field},
            )
        return member


def optional(message: Message, field: str) -> Any:
    """Return a field's value, or None where it is absent; only for fields with presence."""
    return getattr(message, field) if message.HasField(field) else None


def sub(message: M, present: bool, convert: Callable[[M], Value]) -> Value | None:
    """Return the converted sub-message, or None where it is absent."""
    return convert(message) if present else None


def word(text: str, kind: Callable[[str], Value], field: str) -> Value:
    """Return the domain word that a string field stands for.

    Raises:
        UserError: This version does not know the word; ``field`` is named.
    """
    try:
        return kind(text)
    except ValueError:
        raise UserError(
            f"field {field} holds {text!r}, which this version does not know",
            fix="use the same arena-sched version on both sides",
            details={"field": field},
        ) from None


def seconds_from_proto(duration_s: float, field: str) -> float:
    """Return a length of time that a message holds.

    Raises:
        UserError: It is negative or no number; ``field`` is named.
    """
    if not (math.isfinite(duration_s) and duration_s >= 0):
        raise UserError(
            f"field {field} is {duration_s:g} s", fix="allowed: 0 and more, and finite", details={"field": field}
        )
    return duration_s


@contextmanager
def fitting(what: str, kind: type[ArenaError] = UserError) -> Iterator[None]:
    """Turn protobuf's complaint about a number or string that does not fit into a typed error naming ``what``."""
    try:
        yield
    except UnicodeError as error:
        raise kind(f"{what} holds text that is not valid Unicode", why=str(error)) from error
    except ValueError as error:
        raise kind(f"{what} holds a number outside the protocol's range", why=str(error)) from error
