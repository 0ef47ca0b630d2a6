"""Text of others made safe for a terminal. Pure: no I/O, no clock."""

from __future__ import annotations

import re
import unicodedata

_PLAIN = re.compile(r"[\w@%+=:,./()\[\]-]+")
# Controls, surrogates, private and unassigned characters, line separators; and what turns the direction of text.
_UNSAFE_CATEGORIES = {"Cc", "Cs", "Co", "Cn", "Zl", "Zp"}
_DIRECTION = {"\u200e", "\u200f", "\u061c", *map(chr, range(0x202A, 0x202F)), *map(chr, range(0x2066, 0x206A))}


def escaped(text: str, keep: str = "") -> str:
    """Return text with every character that could steer a terminal written as an escape.

    Args:
        text: Anything.
        keep: Control characters to leave as they are, e.g. newlines of a log's tail.
    """
    return "".join(char if char in keep or _is_safe(char) else _escape(char) for char in text)


def quoted(text: str) -> str:
    """Return an id or name as one word that a shell would read back, escaped where it could steer a terminal."""
    safe = escaped(text)
    if _PLAIN.fullmatch(safe):
        return safe
    return "'" + safe.replace("'", "'\"'\"'") + "'"


def _is_safe(char: str) -> bool:
    return unicodedata.category(char) not in _UNSAFE_CATEGORIES and char not in _DIRECTION


def _escape(char: str) -> str:
    return char.encode("unicode_escape", errors="backslashreplace").decode("ascii")
