"""How the terms of a submission came, so that advice names what its reader has to change. Pure: no I/O, no clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from arena.domain.reason import Reason, ReasonCode
from arena.errors import ArenaError, RefusedError, SpecError

OPTION_OF_FIELD: Mapping[str, str] = {
    "deadline_s": "--deadline",
    "is_deadline_strict": "--deadline-strict",
    "budget_usd": "--budget",
    "name": "--name",
}
"""Fields that have options of their own."""

_STRICT = "is_deadline_strict"


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """How the fields of a job were given: by options of their own, by ``--set``, or in its file.

    Args:
        by_option: Fields that came by options of their own.
        by_set: Fields that came by ``--set``.
        is_command: Whether there is no file, so that ``--set`` is the only other way.
    """

    by_option: frozenset[str] = frozenset()
    by_set: frozenset[str] = frozenset()
    is_command: bool = False

    def name(self, field: str) -> str:
        """Return what to leave out, or to look for, to change a field: ``deadline_s`` or ``--deadline``."""
        if field in self.by_option:
            return OPTION_OF_FIELD[field]
        return f"--set {field}" if field in self.by_set or self.is_command else field

    def to_be(self, field: str, value: str) -> str:
        """Return what to do so that a field has a value: ``set deadline_s to 26`` or ``give --deadline 26``."""
        if field in self.by_option:
            return f"give {OPTION_OF_FIELD[field]} {value}"
        return f"give --set {field}={value}" if field in self.by_set or self.is_command else f"set {field} to {value}"

    def text(self, one: Reason | str) -> str:
        """Return what is said of a job, with the fields that it advises to set as they can be given."""
        text = str(one)
        if self.is_command:
            text = text.replace("declare stop.steps or stop.time_limit_s", "give --set stop.time_limit_s=SECONDS")
            text = text.replace("preemptible: true", "--set preemptible=true")
        return text

    def error(self, error: ArenaError) -> ArenaError:
        """Return an error whose advice is about what was given."""
        if isinstance(error, RefusedError) and "cause" in error.details:
            return RefusedError(
                error.what, why=self.text(error.why), fix=self._advice(error.details), details=error.details
            )
        if isinstance(error, SpecError):
            what = error.what
            for field in self.by_option:
                what = what.replace(f"--set {field}: {field}:", f"{OPTION_OF_FIELD[field]}:")
            return SpecError(what, why=error.why, fix=error.fix, details=error.details)
        return error

    def _advice(self, details: Mapping[str, str]) -> str:
        """Return what to do about a strict deadline that cannot be promised."""
        first = ""
        if "earliest_end_s" in details:
            seconds = f"{float(details['earliest_end_s']) + 1:.0f}"
            first = f"{self.to_be('deadline_s', seconds)} or more, or "
        elif details.get("cause") == ReasonCode.DEADLINE_UNKNOWN:
            first = f"{self.text('declare stop.steps or stop.time_limit_s')}, or "
        return f"{first}leave out {self.name(_STRICT)}"


def terms_of(options: Mapping[str, Any], overrides: list[tuple[str, str]]) -> Terms:
    """Return how the terms of a submission came.

    Args:
        options: Of the command line, by parameter.
        overrides: What ``--set`` gave.
    """
    given = {"deadline_s", "budget_usd", "name"} & {key for key, value in options.items() if value is not None}
    return Terms(
        by_option=frozenset(given | ({_STRICT} if options["deadline_strict"] else set())),
        by_set=frozenset(key for key, _ in overrides),
        is_command=options["gpus"] is not None,
    )
