"""Tables of step times as files: Arena's own CSV and JSON, and that of the published artifact. Pure: no I/O, no clock.

A table says how long a step of a workload takes on a group of GPUs::

    workload,global_batch,group,step_time_s
    bert__1.3B,256,a100 4,1.52
    bert__1.3B,256,a100 4+4,0.91
    bert__1.3B,256,a10 2,

A group is a GPU type and the GPUs on each node; an empty time says that it was tried and could not run. A group without
a row does not exist for the workload. The same in JSON::

    {"arena_table": 1, "name": "lab, May", "rows": [
        {"workload": "bert__1.3B", "global_batch": 256, "group": "a100 4+4", "step_time_s": 0.91}]}

The artifact's form is ``{"optimal": {"bert_1.3B_256": {"2_a100_2_n_4_d": 0.91, ...}}}``, where the key is
``<nodes>_<type>_<nodes>_n_<GPUs a node>_d``, and -1 a failure.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from arena.domain.allocation import GpuGroup
from arena.domain.job import WorkloadSpec
from arena.domain.specfile import shown
from arena.errors import SpecError
from arena.planner.tables import TableGrids

COLUMNS = ("workload", "global_batch", "group", "step_time_s")
_GROUP = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]{0,63}) (\d{1,4}(?:\+\d{1,4})*)")
_ARTIFACT_GROUP = re.compile(r"([1-9]\d{0,3})_([A-Za-z0-9.-]+)_\1_n_([1-9]\d{0,3})_d")
_ARTIFACT_WORKLOAD = re.compile(r"(.+)_([^_]+)_([1-9]\d{0,8})")
_ARTIFACT_FAILURE = -1
_SECONDS_MAX = 1e7
_PROBLEMS_MAX = 5
_EXAMPLE = f"a table looks like this: {','.join(COLUMNS)}, then a row such as bert__1.3B,256,a100 4+4,0.91"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    place: str
    fields: Mapping[str, Any]


def parse_table(text: str, *, source: str) -> TableGrids:
    """Read a table of step times.

    Args:
        text: The document.
        source: Its name, for errors and for the grids made of it.

    Raises:
        SpecError: What is wrong, with its lines.
    """
    text = text.removeprefix("\ufeff")
    if not text.lstrip().startswith("{"):
        if text and not text.endswith(("\n", "\r")):
            raise SpecError(
                f"{source}: its last line does not end",
                why="it may be cut, and 6.15 read as 6.1",
                fix="see whether it is whole, and end it with a newline",
            )
        try:
            return _table(_csv_rows(text, source), name=source, source=source)
        except csv.Error as error:
            raise SpecError(f"{source} is no CSV", why=str(error), fix=_EXAMPLE) from error
    try:
        document: dict[str, Any] = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SpecError(f"{source} is no JSON", why=str(error), fix=_EXAMPLE) from error
    if "optimal" in document:
        return _artifact_table(document["optimal"], source)
    if document.get("arena_table") != 1 or not isinstance(document.get("rows"), list):
        raise SpecError(f"{source} is no table of step times", why='"arena_table": 1 and "rows" are missing')
    rows = (_Row(place=f"{source}, row {index}", fields=one) for index, one in enumerate(document["rows"], start=1))
    return _table(rows, name=str(document.get("name", source)), source=source)


def _csv_rows(text: str, source: str) -> Iterator[_Row]:
    reader = csv.reader(io.StringIO(text, newline=None))
    head = [one.strip() for one in next(reader, [])]
    if sorted(head) != sorted(COLUMNS):
        why = f"its columns are {', '.join(head) or 'none'}"
        raise SpecError(f"{source}, line 1: a table has the columns {', '.join(COLUMNS)}", why=why, fix=_EXAMPLE)
    for row in reader:
        if not any(row):
            continue
        place = f"{source}, line {reader.line_num}"
        if len(row) != len(head):
            raise SpecError(f"{place}: {len(row)} fields, {len(head)} columns")
        yield _Row(place=place, fields={key: value.strip() for key, value in zip(head, row, strict=True)})


def _table(rows: Iterable[_Row], *, name: str, source: str) -> TableGrids:
    times: dict[WorkloadSpec, dict[GpuGroup, float | None]] = {}
    problems: list[str] = []
    for row in rows:
        try:
            workload, group, time_s = _read(row.fields)
        except ValueError as error:
            problems.append(f"{row.place}: {error}")
            continue
        if group in times.setdefault(workload, {}):
            problems.append(f"{row.place}: {workload.name}, batch {workload.global_batch}, on {group} is there twice")
        times[workload][group] = time_s
    _refuse(problems)
    if not times:
        raise SpecError(f"{source} has no rows", fix=_EXAMPLE)
    return TableGrids(name=name, iter_time_s=times)


def _read(fields: object) -> tuple[WorkloadSpec, GpuGroup, float | None]:
    if not isinstance(fields, Mapping) or set(fields) != set(COLUMNS):
        raise ValueError(f"a row has {', '.join(COLUMNS)}")
    name = fields["workload"]
    if not isinstance(name, str) or not name:
        raise ValueError(f"workload is a name, got {shown(name)}")
    batch = _number(fields["global_batch"], "global_batch", int)
    if batch < 1:
        raise ValueError(f"global_batch is at least 1, got {batch}")
    group = group_of(fields["group"])
    return WorkloadSpec(name=name, global_batch=batch), group, _seconds(fields["step_time_s"])


def _seconds(value: object) -> float | None:
    if value is None or value == "":
        return None
    seconds: float = _number(value, "step_time_s", float)
    if not 0 < seconds <= _SECONDS_MAX:
        raise ValueError(f"step_time_s is above 0 and at most {_SECONDS_MAX:g}, got {shown(value)}")
    return seconds


def _number(value: object, field: str, kind: Callable[[Any], float]) -> Any:
    # Python reads True as 1 and 1_000 as 1000; a table that says so has another mistake.
    is_number = (
        not isinstance(value, bool) and (kind is float or not isinstance(value, float)) and "_" not in str(value)
    )
    try:
        number = kind(value) if is_number else None
        is_finite = number is not None and math.isfinite(number)
    except (TypeError, ValueError, OverflowError):
        is_finite = False
    if not is_finite:
        raise ValueError(f"{field} is a {'whole ' if kind is int else ''}number, got {shown(value)}")
    return number


def group_of(text: object) -> GpuGroup:
    """Return a group from its text, ``a100 4+4``.

    Raises:
        ValueError: It is none.
    """
    match = _GROUP.fullmatch(text) if isinstance(text, str) else None
    counts = [int(count) for count in match[2].split("+")] if match else [0]
    if match is None or min(counts) < 1:
        raise ValueError(f"group is a GPU type and the GPUs on each node, e.g. 'a100 4+4', got {shown(text)}")
    return GpuGroup.of(match[1], counts)


def _artifact_table(rows: object, source: str) -> TableGrids:
    if not isinstance(rows, Mapping) or not rows:
        raise SpecError(f"{source} is no table of step times", why='"optimal" has no workloads')
    times: dict[WorkloadSpec, dict[GpuGroup, float | None]] = {}
    problems: list[str] = []
    for name, row in rows.items():
        match = _ARTIFACT_WORKLOAD.fullmatch(name)
        if match is None or not isinstance(row, Mapping):
            problems.append(f"{source}: {shown(name)} is no <family>_<size>_<batch> with its groups")
            continue
        workload = WorkloadSpec(name=f"{match[1]}__{match[2]}", global_batch=int(match[3]))
        times[workload] = {}
        for key, value in row.items():
            found = _ARTIFACT_GROUP.fullmatch(key)
            if found is None:
                problems.append(f"{source}: {name}: {shown(key)} is no <nodes>_<type>_<nodes>_n_<GPUs>_d")
                continue
            try:
                time_s = None if value == _ARTIFACT_FAILURE else _seconds(value)
            except ValueError as error:
                problems.append(f"{source}: {name}: {key}: {error}")
                continue
            times[workload][GpuGroup.of(found[2], [int(found[3])] * int(found[1]))] = time_s
    _refuse(problems)
    return TableGrids(name=source, iter_time_s=times)


def _refuse(problems: list[str]) -> None:
    if not problems:
        return
    more = [f"and {len(problems) - _PROBLEMS_MAX} more"] if len(problems) > _PROBLEMS_MAX else []
    raise SpecError("\n".join([*problems[:_PROBLEMS_MAX], *more]))
