"""Which devices CUDA_VISIBLE_DEVICES leaves visible, by CUDA's rules. Pure: no I/O, no clock."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_LEADING_NUMBER = re.compile(r"[+]?\d+")


@dataclass(frozen=True, slots=True, kw_only=True)
class VisibleCandidate:
    """A device as the driver lists it.

    Args:
        uuid: ``GPU-...`` or ``MIG-...``.
        parent_index: Index of the whole GPU; None for a MIG instance, which has no index of its own.
    """

    uuid: str
    parent_index: int | None


def visible_uuids(variable: str | None, candidates: Sequence[VisibleCandidate]) -> tuple[str, ...]:
    """Return the visible devices in the variable's order.

    An unset variable shows all. The list ends at the first entry that names nothing; a device named twice makes all of
    them invisible; a UUID may be shortened as long as it is unique.
    """
    if variable is None:
        return tuple(candidate.uuid for candidate in candidates)
    found: list[str] = []
    for token in variable.split(","):
        uuid = _resolve(token.strip(), candidates)
        if uuid is None:
            break
        if uuid in found:
            return ()
        found.append(uuid)
    return tuple(found)


def _resolve(token: str, candidates: Sequence[VisibleCandidate]) -> str | None:
    if token.startswith(("GPU-", "MIG-")):
        matches = [candidate.uuid for candidate in candidates if candidate.uuid.startswith(token)]
        return matches[0] if len(matches) == 1 else None
    number = _LEADING_NUMBER.match(token)
    if number is None:
        return None
    index = int(number.group())
    return next((candidate.uuid for candidate in candidates if candidate.parent_index == index), None)
