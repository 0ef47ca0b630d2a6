"""Who had which GPU as PNG: a row for each GPU, a block for each attempt."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from textwrap import wrap
from typing import Any

from arena.cli.replay_pictures import drawn, new_figure, plain, time_unit
from arena.cli.replay_runs import Document

_COLOURS = ("#56B4E9", "#E69F00", "#009E73", "#CC79A7", "#F0E442", "#0072B2", "#D55E00", "#999999")
"""Okabe and Ito, as of curves, with yellow, since areas are bounded by white."""
_ALPHA = 0.65
_ROW_INCHES, _HEIGHT_MIN_INCHES, _HEIGHT_MAX_INCHES = 0.17, 1.7, 14.0
_CHARACTERS_ACROSS, _LABEL_MIN, _JOB_ID_SHOWN = 150, 5, 10
"""Small characters across the picture, the fewest that say something, and those of a job's id beside its plan."""
_GAP = 0.1
_LINES_PER_ROW = 1.4
_CUT = "…"


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """An attempt on GPUs that are next to each other in the chart.

    Args:
        first_row: Index of the first GPU.
        ready_s: When it began to step, its end where it never did.
    """

    first_row: int
    row_count: int
    job_id: str
    label: str
    from_s: float
    ready_s: float
    until_s: float


def gantt_png(run: Document, *, until_s: float) -> bytes:
    """Draw which job had which GPU, with its group and plan where there is room; starting and loading is hatched.

    Args:
        until_s: Where time ends, so that pictures of several runs can be compared.
    """
    rows, blocks = run["rows"], list(blocks_of(run["bars"]))
    figure, axes = new_figure(max(_HEIGHT_MIN_INCHES, min(_HEIGHT_MAX_INCHES, 1.1 + _ROW_INCHES * len(rows))))
    colours = colour_indices(blocks)
    unit, unit_s = time_unit(until_s)
    for block in blocks:
        _draw(axes, block, _COLOURS[colours[block.job_id]], unit_s)
    _label(axes, blocks, until_s, unit_s)
    _name_rows(axes, rows)
    axes.set_xlim(0, max(until_s, 1.0) / unit_s)
    axes.set_xlabel(f"time ({unit})")
    return drawn(figure, axes, handles=_legend())


def blocks_of(bars: Sequence[Document]) -> Iterator[Block]:
    """Yield attempts, each once for every stretch of GPUs that are next to each other."""

    def attempt(bar: Document) -> tuple[float, str]:
        return (bar["from_s"], bar["job_id"])

    for _, same in groupby(sorted(bars, key=lambda bar: (*attempt(bar), bar["row"])), key=attempt):
        stretch: list[Document] = []
        for bar in same:
            if stretch and bar["row"] != stretch[-1]["row"] + 1:
                yield _block(stretch)
                stretch = []
            stretch.append(bar)
        yield _block(stretch)


def _block(bars: Sequence[Document]) -> Block:
    first = bars[0]
    return Block(
        first_row=first["row"],
        row_count=len(bars),
        job_id=first["job_id"],
        label=first["label"],
        from_s=first["from_s"],
        ready_s=first["until_s"] if first["ready_s"] is None else first["ready_s"],
        until_s=first["until_s"],
    )


def colour_indices(blocks: Sequence[Block]) -> dict[str, int]:
    """Return a colour for each job: the next in turn that is not that of what its first GPUs, or those beside, had."""
    found: dict[str, int] = {}
    last: dict[int, int] = {}
    turn = 0
    for block in blocks:
        rows = range(block.first_row, block.first_row + block.row_count)
        if block.job_id not in found:
            beside = {last.get(row) for row in range(rows.start - 1, rows.stop + 1)}
            order = [(turn + offset) % len(_COLOURS) for offset in range(len(_COLOURS))]
            found[block.job_id] = next((index for index in order if index not in beside), order[0])
            turn = found[block.job_id] + 1
        last.update(dict.fromkeys(rows, found[block.job_id]))
    return found


def _draw(axes: Any, block: Block, colour: str, unit_s: float) -> None:
    at, height = block.first_row - 0.5 + _GAP / 2, block.row_count - _GAP
    begin, ready, end = (at_s / unit_s for at_s in (block.from_s, block.ready_s, block.until_s))
    for left, right, style in (
        (begin, ready, {"facecolor": "white", "edgecolor": colour, "hatch": "////"}),
        (ready, end, {"facecolor": colour, "edgecolor": "white", "alpha": _ALPHA}),
    ):
        if right > left:
            axes.barh(at, right - left, left=left, height=height, align="edge", linewidth=0.6, **style)


def _label(axes: Any, blocks: Sequence[Block], until_s: float, unit_s: float) -> None:
    """Name attempts, each once, as far as there is room: in what ran, or in all of it where that is too short."""
    from matplotlib.patheffects import withStroke

    named: set[tuple[str, float]] = set()
    for block in blocks:
        if (block.job_id, block.from_s) in named:
            continue
        named.add((block.job_id, block.from_s))
        room = _room(block.until_s - block.ready_s, until_s)
        from_s = block.ready_s if room >= _LABEL_MIN else block.from_s
        room = _room(block.until_s - from_s, until_s)
        text = label_text(block.job_id, block.label, room=room, line_count=int(block.row_count * _LINES_PER_ROW))
        if text:
            row = block.first_row + (block.row_count - 1) / 2
            halo = [withStroke(linewidth=1.5, foreground="white")]
            lines = "\n".join(f" {line}" for line in plain(text).splitlines())
            axes.text(from_s / unit_s, row, lines, va="center", fontsize=6, clip_on=True, path_effects=halo)


def _room(length_s: float, until_s: float) -> int:
    return int(_CHARACTERS_ACROSS * length_s / until_s) - 1 if until_s > 0 else 0


def label_text(job_id: str, label: str, *, room: int, line_count: int = 1) -> str:
    """Return what of an attempt's name fits; a plan is there whole or not at all, as half of it would be another.

    Args:
        room: Characters of a line.
        line_count: Lines that there is height for.
    """
    short = job_id if len(job_id) <= _JOB_ID_SHOWN else f"{job_id[: _JOB_ID_SHOWN - 1]}{_CUT}"
    for text in (f"{job_id} {label}", f"{short} {label}", job_id, short):
        lines = wrap(text, max(room, 1), break_long_words=False, break_on_hyphens=False)
        if len(lines) <= line_count and max(map(len, lines), default=0) <= room:
            return "\n".join(lines)
    return f"{job_id[: room - 1]}{_CUT}" if room >= _LABEL_MIN else ""


def _name_rows(axes: Any, rows: Sequence[str]) -> None:
    """Name the nodes, whose GPUs stand together, and part them by lines."""
    ticks, names, first = [], [], 0
    for node, found in groupby(rows, key=lambda row: row.rpartition("/")[0]):
        count = len(list(found))
        ticks.append(first + (count - 1) / 2)
        names.append(plain(node))
        first += count
        axes.axhline(first - 0.5, color="grey", linewidth=0.4, zorder=0)
    axes.set_yticks(ticks, names, fontsize=6)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_ylabel("GPUs of nodes")


def _legend() -> list[Any]:
    from matplotlib.patches import Patch

    return [
        Patch(
            facecolor=_COLOURS[0],
            edgecolor="white",
            alpha=_ALPHA,
            label="runs; jobs beside each other differ in colour",
        ),
        Patch(facecolor="white", edgecolor=_COLOURS[0], hatch="////", label="starts and loads"),
        Patch(facecolor="white", edgecolor="lightgrey", label="idle"),
    ]
