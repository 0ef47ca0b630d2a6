"""Which test files ``-m`` leaves nothing of, by what they say of themselves: importing them for nothing takes seconds.

A file marks all its tests by ``pytestmark = pytest.mark.slow`` (or a list that begins so) and single ones by
``@pytest.mark.slow``; ``is_as_it_says`` finds marks that came in another way. Pure: texts in, answers out.
"""

from __future__ import annotations

import re
from collections.abc import Collection

MARKS = frozenset({"slow", "benchmark"})
_ALL_ARE = re.compile(r"^pytestmark = \[?pytest\.mark\.(\w+)", re.MULTILINE)
_SOME_ARE = re.compile(r"^(?:@|pytestmark = \[?)pytest\.mark\.(\w+)", re.MULTILINE)
_JOINED = re.compile(r"(not )?\w+( and (not )?\w+)*")


def leaves_nothing(expression: str, text: str) -> bool:
    """Whether marks joined by ``and`` select no test of a file; False where that cannot be told from its text."""
    if not _JOINED.fullmatch(expression):
        return False
    terms = expression.split(" and ")
    unwanted = {term.removeprefix("not ") for term in terms if term.startswith("not ")}
    wanted = {term for term in terms if not term.startswith("not ")}
    return bool(unwanted & MARKS & _all_are(text)) or not wanted & MARKS <= _some_are(text)


def is_as_it_says(marks: Collection[str], text: str) -> bool:
    """Whether a test's marks are what is read in its file's text."""
    own = MARKS & set(marks)
    return _all_are(text) & MARKS <= own <= _some_are(text)


def _all_are(text: str) -> set[str]:
    return set(_ALL_ARE.findall(text))


def _some_are(text: str) -> set[str]:
    return set(_SOME_ARE.findall(text))
