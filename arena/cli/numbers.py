"""Numbers of options that are numbers: click's ranges let NaN pass, and an infinite one where no maximum is set."""

from __future__ import annotations

import math
import re
from typing import Any

import click

_UNIT_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_PART = re.compile(r"([0-9]{1,18}(?:[.][0-9]{1,9})?)([smhd])")
_DURATION_S_MAX = 36_500 * _UNIT_S["d"]


class FiniteRange(click.FloatRange):
    """A range of floats without NaN and infinities; a mistake of it is one of usage."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number."""
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is no finite number.", param, ctx)
        return number


class Duration(click.ParamType):  # type: ignore[type-arg]  # older ones take no argument
    """A length of time in seconds, or with units: ``90``, ``90s``, ``10m``, ``1h30m``, ``2d``; a century at most."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the seconds."""
        if isinstance(value, int | float):
            return float(value)
        text = f"{value}s" if value[-1:].isdigit() else value
        parts = _PART.findall(text)
        if not parts or "".join(number + unit for number, unit in parts) != text:
            duration_s = _plain_number(value)
            if not _DURATION_S_MAX < duration_s < math.inf:
                self.fail(f"{value} is no length of time; write it like 90s, 10m or 1h30m.", param, ctx)
        else:
            duration_s = sum(float(number) * _UNIT_S[unit] for number, unit in parts)
        if duration_s > _DURATION_S_MAX:
            fix = "at most 36500d, a century; write it like 90s, 10m, 1h30m or 2d"
            self.fail(f"{value} is too far off: {fix}.", param, ctx)
        return duration_s


def _plain_number(text: str) -> float:
    """Return a number of seconds in a form that is not taken, NaN where it is none."""
    try:
        return float(text)
    except ValueError:
        return math.nan
