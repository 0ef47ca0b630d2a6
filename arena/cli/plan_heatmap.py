"""A grid as a picture: GPU types by GPU counts, coloured by throughput or price."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

from arena.cli.plan_grid import Goal, PricedCell, Work
from arena.cli.plan_tables import number_text
from arena.cli.whole_files import write_whole
from arena.domain.allocation import GpuGroup

_TEXTS_MAX = 240
_LEVEL_LABELS_MAX = 24
_UNFIT, _TICK_COUNT = "lightgrey", 5
_INCHES_PER_COUNT, _INCHES_MAX = 0.55, 40.0


def write_heatmap(path: str, rows: Sequence[PricedCell], groups: Iterable[GpuGroup], *, work: Work, goal: Goal) -> None:
    """Draw the best node shape of each type and count; grey where no plan fits, white where there is no group.

    Args:
        path: The PNG file.
        rows: One row for each type and count.
        groups: All that were looked at, feasible or not.
        work: What a step does.
        goal: Its quantity is what is drawn.

    Raises:
        UserError: The file cannot be written.
    """
    from matplotlib.figure import Figure

    seen = {(group.parts[0].gpu_type, group.gpu_count) for group in groups}
    types, counts = sorted({gpu_type for gpu_type, _ in seen}), sorted({count for _, count in seen})
    values = {(row.group.parts[0].gpu_type, row.group.gpu_count): _value(row, goal) for row in rows}
    width, height = 2.5 + _INCHES_PER_COUNT * max(4, len(counts)), 2.1 + 0.5 * len(types)
    figure = Figure(figsize=(min(width, _INCHES_MAX), min(height, _INCHES_MAX)), layout="constrained")
    _draw(figure, types, counts, {key: values.get(key) for key in seen}, label=_label(work, goal))
    drawn = BytesIO()
    figure.savefig(drawn, format="png", dpi=120)
    write_whole(Path(path), drawn.getvalue(), fix="name another file")


def _value(row: PricedCell, goal: Goal) -> float:
    return row.usd_per_million_units if goal is Goal.COST else row.units_per_s


def _label(work: Work, goal: Goal) -> str:
    return f"USD per million {work.unit}s" if goal is Goal.COST else f"{work.unit}s per second"


def _draw(
    figure: Any,
    types: Sequence[str],
    counts: Sequence[int],
    values: Mapping[tuple[str, int], float | None],
    *,
    label: str,
) -> None:
    import numpy as np
    from matplotlib.colors import ListedColormap, LogNorm

    keys = [[(gpu_type, count) for count in counts] for gpu_type in types]
    table = np.array([[values.get(key) for key in row] for row in keys], dtype=np.float64)
    is_seen = np.array([[key in values for key in row] for row in keys])
    axes = figure.add_subplot()
    axes.imshow(np.ma.masked_equal(is_seen, 0), aspect="auto", cmap=ListedColormap([_UNFIT]))
    least = float(np.nanmin(table))
    # Speeds span orders of magnitude; free GPUs have no logarithm.
    norm = LogNorm(vmin=least, vmax=float(np.nanmax(table))) if least > 0 else None
    image = axes.imshow(np.ma.masked_invalid(table), aspect="auto", cmap="viridis", norm=norm)
    rotation = 90 if len(counts) > _LEVEL_LABELS_MAX else 0
    axes.set_xticks(range(len(counts)), [str(count) for count in counts], rotation=rotation)
    axes.set_yticks(range(len(types)), list(types))
    axes.set_xlabel("GPUs")
    axes.set_ylabel("GPU type")
    bar = figure.colorbar(image, ax=axes, label=label)
    _number(bar, image.norm, is_logarithmic=norm is not None)
    _explain(figure, has_unfit=bool((is_seen & ~np.isfinite(table)).any()), has_unseen=not is_seen.all())
    if table.size <= _TEXTS_MAX:
        for (row, column), value in np.ndenumerate(table):
            if np.isfinite(value):
                colour = "black" if image.norm(value) > 0.6 else "white"
                axes.text(column, row, _short(value), ha="center", va="center", fontsize=7, color=colour)


def _number(bar: Any, norm: Any, *, is_logarithmic: bool) -> None:
    """Write numbers beside a scale as in the fields, the least and the largest among them."""
    import numpy as np
    from matplotlib.ticker import NullLocator

    spaced = np.geomspace if is_logarithmic else np.linspace
    ticks = np.unique(np.clip(spaced(norm.vmin, norm.vmax, _TICK_COUNT), norm.vmin, norm.vmax))
    bar.ax.yaxis.set_minor_locator(NullLocator())
    bar.set_ticks(ticks, labels=[_short(float(value)) for value in ticks])


def _explain(figure: Any, *, has_unfit: bool, has_unseen: bool) -> None:
    """Say what fields without a colour of the scale are, where there are such."""
    from matplotlib.patches import Patch

    handles = [Patch(facecolor=_UNFIT, label="no plan fits")] if has_unfit else []
    handles += [Patch(facecolor="white", edgecolor="grey", label="no such group")] if has_unseen else []
    if handles:
        figure.legend(handles=handles, loc="outside upper left", ncols=2, frameon=False, fontsize=8)


def _short(value: float) -> str:
    for scale, suffix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= scale:
            return f"{number_text(value / scale)}{suffix}"
    return number_text(value)
