"""Divisors of numbers, for what splits evenly and for errors that say what would. Pure: no I/O, no clock."""

from __future__ import annotations


def divisors(number: int) -> list[int]:
    """Return the divisors of a positive number in rising order."""
    small = [candidate for candidate in range(1, int(number**0.5) + 1) if number % candidate == 0]
    return sorted({*small, *(number // candidate for candidate in small)})


def nearest_divisors(number: int, wanted: int) -> str:
    """Return the divisors of a number on both sides of one that is none: ``8 or 16``."""
    found = divisors(number)
    around = [max(one for one in found if one < wanted), *[one for one in found if one > wanted][:1]]
    return " or ".join(map(str, around))


def format_set(numbers: list[int]) -> str:
    """Write numbers as people write a set: ``{1, 2, 4}``."""
    return "{" + ", ".join(map(str, numbers)) + "}"
