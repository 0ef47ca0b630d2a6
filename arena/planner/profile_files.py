"""Profiles as files: Arena's own JSON, and Sailor's. Pure: no I/O, no clock.

Arena's form::

    {"arena_profile": 1, "gpu_type": "a100-80", "precision": "bf16",
     "model": {"family": "llama", "layers": 32, "hidden": 4096, ...},
     "includes_collectives": true,
     "layers": [{"layer": "layer", "tp": 2, "micro_batch_size": 4,
                 "forward_s": 0.0021, "backward_s": 0.0043, "update_s": 0.0004}],
     "messages": [{"kind": "all_reduce", "link": "node", "ranks": 8, "bytes": 67108864, "seconds": 0.00061}]}

A layer is ``beginning``, ``layer`` (any of them: they are alike), ``ending``, or its number from 1 where they differ.

Sailor's form is ``{micro-batch: {tp: {layer: [forward_s, backward_s, update_s]}}}`` with the beginning as layer 0; it
says neither model nor GPU type. Its times are in fp32, hold the collectives of split layers, and give the optimizer's
seconds of a whole stage with each layer. Its networks are bandwidths, in GB/s, as polynomials of log2 of the MB sent.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from arena.domain.job import ModelSpec
from arena.domain.profile import LayerTime, LinkKind, MessageKind, MessageTime, Profile
from arena.domain.specbase import Model, PositiveInt
from arena.domain.specfile import did_you_mean
from arena.errors import SpecError

SAILOR_SENDS_MB = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
"""Sizes at which Sailor's polynomials are read: those that it fitted them to, about."""

_EXAMPLE = (
    'a profile looks like this: {"arena_profile": 1, "gpu_type": "a100-80", "precision": "bf16", "model": {...}, '
    '"layers": [{"layer": "layer", "tp": 1, "micro_batch_size": 1, "forward_s": 0.01, "backward_s": 0.02}]}'
)
_PROBLEMS_MAX = 5
_HOURS_S = 3600.0
Seconds = Annotated[float, Field(strict=True, gt=0, le=_HOURS_S, allow_inf_nan=False)]


class LayerRow(Model):
    """One measured layer."""

    layer: Literal["beginning", "layer", "ending"] | PositiveInt
    tp: PositiveInt = 1
    micro_batch_size: PositiveInt
    forward_s: Seconds
    backward_s: Seconds
    update_s: Annotated[float, Field(strict=True, ge=0, le=_HOURS_S, allow_inf_nan=False)] = 0.0


class MessageRow(Model):
    """One measured message or collective."""

    kind: MessageKind
    link: LinkKind
    ranks: Annotated[int, Field(ge=2)] = 2
    bytes: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    seconds: Seconds


class ProfileFile(Model):
    """A profile in Arena's form."""

    arena_profile: Literal[1]
    gpu_type: str
    precision: Literal["fp32", "bf16", "fp16"]
    model: ModelSpec
    includes_collectives: bool = True
    layers: tuple[LayerRow, ...]
    messages: tuple[MessageRow, ...] = ()


def read_profile(text: str, *, source: str, gpu_types: Sequence[str]) -> Profile:
    """Read a profile in Arena's form.

    Args:
        source: The document's name, for errors.
        gpu_types: Names that are known.

    Raises:
        SpecError: What is wrong, and what would do.
    """
    try:
        file = ProfileFile.model_validate(_object(text, source))
    except ValidationError as error:
        found = error.errors(include_url=False)
        told = [f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in found[:_PROBLEMS_MAX]]
        more = f" (and {len(found) - _PROBLEMS_MAX} more)" if len(found) > _PROBLEMS_MAX else ""
        raise SpecError(f"{source} is no profile", why="; ".join(told) + more, fix=_EXAMPLE) from error
    if file.gpu_type not in gpu_types:
        close = did_you_mean(file.gpu_type, sorted(gpu_types))
        raise SpecError(
            f"{source}: unknown GPU type {file.gpu_type!r}{close}", fix=f"known: {', '.join(sorted(gpu_types))}"
        )
    _check_units(file, source)
    return Profile(
        gpu_type=file.gpu_type,
        model=file.model,
        precision=file.precision,
        includes_collectives=file.includes_collectives,
        layers=tuple(_layer_time(row, file.model.layers) for row in file.layers),
        messages=tuple(
            MessageTime(kind=row.kind, link=row.link, ranks=row.ranks, size_bytes=row.bytes, seconds=row.seconds)
            for row in file.messages
        ),
    )


def _object(text: str, source: str) -> dict[str, Any]:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SpecError(f"{source} is no JSON", why=str(error), fix=_EXAMPLE) from error
    if not isinstance(data, dict):
        raise SpecError(f"{source} is no profile", why=f"it holds a {type(data).__name__}", fix=_EXAMPLE)
    return data


def _check_units(file: ProfileFile, source: str) -> None:
    """Refuse layers that the model has not, and a profile without any layer of the middle."""
    layers = file.model.layers
    beyond = sorted({row.layer for row in file.layers if isinstance(row.layer, int) and row.layer > layers})
    if beyond:
        raise SpecError(f"{source}: layer {beyond[0]} of a model of {layers}", fix=f"number layers from 1 to {layers}")
    if not any(row.layer == "layer" or isinstance(row.layer, int) for row in file.layers):
        raise SpecError(f"{source} has no layer", why="the ends alone say little", fix='measure one under "layer"')
    seen: set[tuple[object, int, int]] = set()
    for row in file.layers:
        key = (row.layer, row.tp, row.micro_batch_size)
        if key in seen:
            raise SpecError(
                f"{source}: layer {row.layer} at tp {row.tp} and micro-batch {row.micro_batch_size} comes twice",
                fix="give the median of several runs",
            )
        seen.add(key)


def _layer_time(row: LayerRow, layers: int) -> LayerTime:
    ends = {"beginning": 0, "layer": 1, "ending": layers + 1}
    return LayerTime(
        unit=ends[row.layer] if isinstance(row.layer, str) else row.layer,
        tp=row.tp,
        micro_batch_size=row.micro_batch_size,
        forward_s=row.forward_s,
        backward_s=row.backward_s,
        update_s=row.update_s,
    )


def read_sailor_profile(
    text: str, *, source: str, gpu_type: str, model: ModelSpec, messages: Sequence[MessageTime] = ()
) -> Profile:
    """Read a profile in Sailor's form, for what the file does not say: whose layers, and on what.

    Raises:
        SpecError: What is wrong, and what would do.
    """
    table = _object(text, source)
    try:
        rows = list(_sailor_rows(table))
    except (TypeError, ValueError, AttributeError) as error:
        raise SpecError(
            f"{source} is no profile of Sailor's",
            why=str(error),
            fix="it looks like this: {micro-batch: {tp: {layer: [forward_s, backward_s, update_s]}}}",
        ) from error
    units = 1 + max((row.unit for row in rows), default=-1)
    if units != model.layers + 2:
        raise SpecError(
            f"{source} has {max(0, units - 2)} layers between its two ends",
            why=f"the model has {model.layers}",
            fix="give the profile of this model",
        )
    whole = tuple(
        LayerTime(
            unit=row.unit,
            tp=row.tp,
            micro_batch_size=row.micro_batch_size,
            forward_s=row.forward_s,
            backward_s=row.backward_s,
            update_s=row.update_s / units,
        )
        for row in rows
    )
    return Profile(gpu_type=gpu_type, model=model, precision="fp32", layers=whole, messages=tuple(messages))


def is_sailor_profile(text: str) -> bool:
    """Whether a document is a profile in Sailor's form."""
    try:
        table = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(table, dict) and bool(table) and all(str(key).isdigit() for key in table)


def _sailor_rows(table: Mapping[str, Mapping[str, Mapping[str, Sequence[float]]]]) -> Iterator[LayerTime]:
    for size, degrees in table.items():
        for tp, layers in degrees.items():
            for unit, times in layers.items():
                forward_s, backward_s, update_s = (float(each) for each in times)
                if not (0 < forward_s <= _HOURS_S and 0 <= backward_s <= _HOURS_S and 0 <= update_s <= _HOURS_S):
                    raise ValueError(f"micro-batch {size}, tp {tp}, layer {unit}: {times} are no seconds")
                yield LayerTime(
                    unit=int(unit),
                    tp=int(tp),
                    micro_batch_size=int(size),
                    forward_s=forward_s,
                    backward_s=backward_s,
                    update_s=update_s,
                )


def sailor_sends(coefficients: Sequence[float], link: LinkKind) -> tuple[MessageTime, ...]:
    """Return the times of single sends by a polynomial of Sailor's networks: square, linear and constant term."""
    square, linear, constant = coefficients
    found = []
    for size_mb in SAILOR_SENDS_MB:
        power = math.log2(size_mb)
        rate = 1e9 * (square * power * power + linear * power + constant)
        found.append(
            MessageTime(
                kind=MessageKind.SEND, link=link, ranks=2, size_bytes=1e6 * size_mb, seconds=1e6 * size_mb / rate
            )
        )
    return tuple(found)
