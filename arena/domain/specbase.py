"""What all parts of a specification are made of: their base, and types of common fields. Pure: no I/O, no clock."""

from __future__ import annotations

import unicodedata
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

NAME_LENGTH_MAX = 128


def _clean_name(name: str) -> str:
    """Normalise to NFC and refuse what would break a terminal; spaces, quotes and any script are fine."""
    name = unicodedata.normalize("NFC", name).strip()
    if not name:
        raise ValueError("must not be empty")
    if name.isascii() and name.isprintable():  # nearly all are
        return name
    bad = [char for char in name if unicodedata.category(char) in {"Cc", "Cs", "Co", "Cn"}]
    if bad:
        raise ValueError(f"must not hold control characters, found {bad[0]!r}")
    return name


Name = Annotated[str, Field(max_length=NAME_LENGTH_MAX), AfterValidator(_clean_name)]
PositiveInt = Annotated[int, Field(ge=1)]
Size = Annotated[int, Field(ge=1, le=2**32 - 1)]
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, lt=1)]


class Model(BaseModel):
    """Base of all specification parts: frozen, unknown fields refused, and every number finite.

    JSON has no word for infinity: one that got in could be stored, and never read again.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, defer_build=True, allow_inf_nan=False)
