"""Measured training runs as typed rows: what was run, on what, and what it took.

A cell that the file leaves empty stays unknown here; what can be inferred from other rows of its source is inferred in
``complete``, by rules that hold for all sources.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path

_NUMBERS_OF_SHAPE = ("layers", "hidden", "heads", "kv_heads", "ffn", "vocab")
_NAMED_PARAMETERS = re.compile(r"(\d+(?:\.\d+)?)\s*B\b", re.IGNORECASE)
_SIZE_TOLERANCE = 0.003
_SIXTEEN_BIT = ("bf16", "fp16")


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRow:
    """One published run; None where the source does not say.

    Args:
        line: Of the file, from 2.
        tflops_kind: ``model`` or ``hardware`` (recomputation counted) for ``tflops_per_gpu``.
    """

    file: str
    line: int
    source: str
    gpu_type: str
    model: str
    num_gpus: int | None
    gpus_per_node: int | None
    params_b: float | None
    layers: int | None
    hidden: int | None
    heads: int | None
    kv_heads: int | None
    ffn: int | None
    vocab: int | None
    seq_len: int | None
    global_batch: int | None
    micro_batch: int | None
    dp: int | None
    tp: int | None
    pp: int | None
    vpp: int | None
    cp: int | None
    ep: int | None
    zero_or_fsdp: str
    recompute: str
    precision: str
    attention_impl: str
    tokens_per_sec_per_gpu: float | None
    tflops_per_gpu: float | None
    tflops_kind: str
    iter_time_s: float | None
    peak_mem_gb: float | None
    oom: str
    primary_metric: str
    note: str

    @property
    def source_name(self) -> str:
        """The source without its sections, so that tables of one document count as one."""
        return source_name(self.source)

    @property
    def is_sixteen_bit(self) -> bool:
        """Whether it was trained in bf16 or fp16 throughout."""
        return any(name in self.precision.lower() for name in _SIXTEEN_BIT)

    @property
    def is_reduced(self) -> bool:
        """Whether products were in 8 or 4 bits."""
        return any(name in self.precision.lower() for name in ("fp8", "fp4"))

    @property
    def has_complete_plan(self) -> bool:
        """Whether the model's shape and everything that says how the run was laid out are stated."""
        plan = (self.num_gpus, self.global_batch, self.micro_batch, self.dp, self.tp, self.pp)
        shape = (self.layers, self.hidden, self.heads, self.vocab, self.seq_len)
        return all(value is not None for value in (*plan, *shape))


def source_name(source: str) -> str:
    """Return a source's name without sections, commits and the path of a single file."""
    name = re.sub(r"\s*\[.*", "", source)
    name = re.sub(r"@\S+", "", name)
    name = re.sub(r"/plan_config\S*|/N\d+(?=/|$)", "", name)
    name = re.sub(r"\s*\((?:image|as in|via|plan from|NVIDIA/).*", "", name)
    name = re.sub(r"(\.md|\.txt)\s.*", r"\1", name)
    return name.strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class BadRow:
    """A line that could not be read."""

    file: str
    line: int
    reason: str


def read_rows(path: Path) -> Iterator[MeasuredRow | BadRow]:
    """Yield the rows of a CSV file with a header; a line that cannot be read comes with its reason."""
    with path.open(newline="", encoding="utf-8") as stream:
        for line, cells in enumerate(csv.DictReader(stream), start=2):
            try:
                yield _row(path.name, line, cells)
            except ValueError as error:
                yield BadRow(file=path.name, line=line, reason=str(error))


def _row(file: str, line: int, cells: Mapping[str, str | None]) -> MeasuredRow:
    values: dict[str, object] = {"file": file, "line": line}
    for field in fields(MeasuredRow):
        if field.name not in values:
            values[field.name] = _cell(field.name, str(field.type), cells)
    return MeasuredRow(**values)  # type: ignore[arg-type]


def _cell(name: str, kind: str, cells: Mapping[str, str | None]) -> object:
    if name not in cells:
        raise ValueError(f"no column {name}")
    text = (cells[name] or "").strip()
    if kind == "str":
        return text
    if not text:
        return None
    try:
        number = float(text)
    except ValueError as error:
        raise ValueError(f"{name} = {text!r} is no number") from error
    if not 0 < number < float("inf"):
        raise ValueError(f"{name} = {text!r} is not positive and finite")
    if kind.startswith("int"):
        if number != int(number):
            raise ValueError(f"{name} = {text!r} is no whole number")
        return int(number)
    return number


def complete(rows: Iterable[MeasuredRow]) -> list[MeasuredRow]:
    """Fill in shapes that a source states elsewhere, or that the stated size of the model determines.

    1. A row without layers takes the layer count with which its width gives the stated size within 0.3 %; else the
       shape of the source's first row of the same model name that states one (its width too: a width that contradicts
       the size is a slip); else the layer count that comes nearest.
    2. A row without heads takes the count that its source states most often for its width, the smaller on a tie.
    """
    known = list(rows)
    shapes = _shapes_by_name(known)
    heads = _heads_by_width(known)
    return [_with_heads(_with_layers(row, shapes), heads) for row in known]


def _shapes_by_name(rows: list[MeasuredRow]) -> dict[tuple[str, str], MeasuredRow]:
    shapes: dict[tuple[str, str], MeasuredRow] = {}
    for row in rows:
        if row.layers and row.hidden and row.heads:
            shapes.setdefault((row.source_name, row.model), row)
    return shapes


def _heads_by_width(rows: list[MeasuredRow]) -> dict[tuple[str, int], int]:
    counts: dict[tuple[str, int], Counter[int]] = {}
    for row in rows:
        if row.hidden and row.heads:
            counts.setdefault((row.source_name, row.hidden), Counter())[row.heads] += 1
    return {key: min(count, key=lambda heads: (-count[heads], heads)) for key, count in counts.items()}


def _with_layers(row: MeasuredRow, shapes: Mapping[tuple[str, str], MeasuredRow]) -> MeasuredRow:
    if row.layers or not row.hidden or not row.vocab:
        return row
    layers, miss = _layers_of_size(row)
    same = shapes.get((row.source_name, row.model))
    if layers and (miss <= _SIZE_TOLERANCE or same is None):
        return replace(row, layers=layers)
    if same is None:
        return row
    return replace(row, **{name: getattr(same, name) for name in _NUMBERS_OF_SHAPE})


def _layers_of_size(row: MeasuredRow) -> tuple[int, float]:
    """Return the layer count that comes nearest to the stated size, and by which share it misses it."""
    stated = row.params_b or next((float(found) for found in _NAMED_PARAMETERS.findall(row.model)), None)
    if stated is None or not row.hidden or not row.vocab:
        return 0, 1.0
    each, ends = 12.0 * row.hidden**2, float(row.vocab * row.hidden)
    layers = round((stated * 1e9 - ends) / each)
    return layers, abs(layers * each + ends - stated * 1e9) / (stated * 1e9)


def _with_heads(row: MeasuredRow, heads: Mapping[tuple[str, int], int]) -> MeasuredRow:
    if row.heads or not row.hidden:
        return row
    return replace(row, heads=heads.get((row.source_name, row.hidden)))
