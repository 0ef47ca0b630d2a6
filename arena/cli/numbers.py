"""Numbers of options that are numbers: click's ranges let NaN pass, and an infinite one where no maximum is set."""

from __future__ import annotations

import math
import re
from typing import Any

import click

_UNIT_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_PART = re.compile(r"([0-9]{1,9}(?:[.][0-9]{1,9})?)([smhd])")


class FiniteRange(click.FloatRange):
    """A range of floats without NaN and infinities; a mistake of it is one of usage."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number."""
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is no finite number.", param, ctx)
        return number


class Duration(click.ParamType):  # type: ignore[type-arg]  # older ones take no argument
    """A length of time in seconds, or with units: ``90``, ``90s``, ``10m``, ``1h30m``, ``2d``."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the seconds."""
        if isinstance(value, int | float):
            return float(value)
        text = f"{value}s" if value[-1:].isdigit() else value
        parts = _PART.findall(text)
        if not parts or "".join(number + unit for number, unit in parts) != text:
            self.fail(f"{value} is no length of time; write it like 90s, 10m or 1h30m.", param, ctx)
        return sum(float(number) * _UNIT_S[unit] for number, unit in parts)
