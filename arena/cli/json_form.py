"""Views and records as JSON with a stable form (described in README.md). Pure: no I/O, no clock."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from enum import Enum
from typing import Any

from pydantic import BaseModel

from arena.domain.allocation import Allocation, GpuGroup
from arena.domain.parallel import ParallelPlan
from arena.domain.reason import Reason
from arena.rpc.views import NodeView

SCHEMA_VERSION = 1


def document(**fields: object) -> dict[str, Any]:
    """Return one JSON document: the fields with the version of their form."""
    return {"schema_version": SCHEMA_VERSION, **{key: form(value) for key, value in fields.items()}}


def dumps(value: object) -> str:
    """Return a value's JSON in one line."""
    return json.dumps(form(value), ensure_ascii=False, allow_nan=False)


def form(value: object) -> Any:
    """Return the JSON form of a value; numbers that JSON has no word for become null."""
    match value:
        case None | bool() | int():
            return value
        case Enum():
            return value.value
        case str():
            return value
        case float():
            return value if math.isfinite(value) else None
        case BaseModel():
            return form(value.model_dump(mode="json"))
        case Mapping():
            return {str(form(key)): form(item) for key, item in value.items()}
        case list() | tuple() | set() | frozenset():
            return [form(item) for item in (sorted(value) if isinstance(value, set | frozenset) else value)]
        case _:
            return _object_form(value)


def _object_form(value: object) -> dict[str, Any]:
    fields = {field.name: form(getattr(value, field.name)) for field in dataclasses.fields(value)}  # type: ignore[arg-type]
    match value:  # a plain object has no more to say than its fields
        case ParallelPlan():
            fields |= {"text": str(value), "dp": value.dp, "tp": value.tp, "pp": value.pp}
            fields |= {"gpu_count": value.gpu_count}
        case GpuGroup():
            fields |= {"text": str(value), "gpu_count": value.gpu_count}
        case Allocation():
            fields |= {"gpu_count": value.gpu_count}
        case Reason():
            fields |= {"text": str(value)}
        case NodeView():
            fields |= {"connected": value.connected}
        case _:
            pass
    return fields
