"""Curves of a study as PNG: how JCTs are distributed, how busy and how fast the cluster was.

Curves may lie on each other: the same ones are drawn once and named together in the legend, and of those that only
touch, later ones are thinner and broken, so that what is below still shows.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import Any

import numpy as np
import numpy.typing as npt

from arena.cli.replay_results import Study
from arena.units import DAY_S, HOUR_S, MINUTE_S

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Told apart by people with any kind of colour vision: Okabe and Ito, Color Universal Design (2008), without yellow."""

WIDTH_INCHES = 9.0
DPI = 150
_CDF_POINTS_MAX = 1_000
_DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (2, 1.2)), (0, (7, 2, 1.5, 2)))
_WIDTH_MAX, _WIDTH_MIN, _WIDTH_STEP = 2.6, 1.0, 0.45
_LEGEND_CHARACTERS, _LEGEND_GAP = 140, 9
"""Characters that fit across a picture, and what a line sample and the space around it take of them."""
_SAME = 1e-9
_UNITS = (("d", DAY_S), ("h", HOUR_S), ("min", MINUTE_S))
_UNITS_MIN = 3.0
"""So many of a unit make it the one of an axis: fewer would be numbered by fractions."""
_DECADES_NUMBERED_FINELY = 1e4
Values = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """A step function of one policy, or of several that have the same.

    Args:
        policies: In the order of the study.
        x: Where it steps, in rising order.
        y: What it is from there on; of a series over time, one less than ``x``, which then are edges.
    """

    policies: tuple[str, ...]
    x: Values
    y: Values

    @property
    def label(self) -> str:
        """As the legend has it."""
        return " = ".join(self.policies)


def cdf_png(study: Study) -> bytes:
    """Draw the share of jobs that are done within a time, for each policy over all its seeds."""
    found = {policy: jct_curve(study, policy) for policy in study.policies}
    curves = together({policy: curve for policy, curve in found.items() if len(curve.x)})
    figure, axes = new_figure(3.8)
    last = max((float(curve.x[-1]) for curve in curves), default=0.0)
    for index, curve in enumerate(curves):
        x, y = np.append(curve.x, last), np.append(curve.y, curve.y[-1])
        axes.step(x, y, where="post", label=curve.label, **_style(study, curve, index))
    if last > 0:
        _number_logarithmic(axes)
    axes.set_xlabel("JCT (s)")
    axes.set_ylabel("share of all jobs")
    axes.set_ylim(-0.02, 1.02)
    axes.tick_params(axis="y", labelsize=8)
    return drawn(figure, axes)


def jct_curve(study: Study, policy: str) -> Curve:
    """Return the empirical distribution of a policy's JCTs over all jobs: who has not ended is never done.

    It begins at 0 under the shortest, and steps at each job; of a great many jobs at one in so many.
    """
    runs = study.runs_of(policy)
    times = [np.array(run["jobs"]["ended_at_s"]) - np.array(run["jobs"]["submitted_at_s"]) for run in runs]
    jct_s = np.sort(np.concatenate(times).astype(np.float64))
    if not len(jct_s):
        return Curve(policies=(policy,), x=jct_s, y=jct_s)
    steps = np.unique(np.linspace(0, len(jct_s) - 1, min(_CDF_POINTS_MAX, len(jct_s))).round().astype(np.int64))
    job_count = sum(int(run["whole"]["job_count"]) for run in runs)
    shares = (steps + 1) / job_count
    return Curve(policies=(policy,), x=np.append(jct_s[0], jct_s[steps]), y=np.append(0.0, shares))


def series_png(study: Study, field: str, label: str, *, limit: float | None = None) -> bytes:
    """Draw a series over time, of each policy's first seed, down to 0 where its last job ends.

    Args:
        field: ``busy_gpus`` or ``speed``.
        label: Of the axis.
        limit: Drawn as a line: GPUs of the cluster.
    """
    found = {}
    for policy in study.policies:
        series = study.runs_of(policy)[0]["series"]
        if series["edges_s"]:
            edges, values = (np.array(series[name], dtype=np.float64) for name in ("edges_s", field))
            found[policy] = Curve(policies=(policy,), x=edges, y=values)
    unit, unit_s = time_unit(max((float(curve.x[-1]) for curve in found.values()), default=0.0))
    figure, axes = new_figure(3.2)
    for index, curve in enumerate(together(found)):
        axes.stairs(curve.y, curve.x / unit_s, label=curve.label, baseline=0, **_style(study, curve, index))
    if limit is not None:
        axes.axhline(limit, color="grey", linewidth=0.8, linestyle=":", label=f"all {limit:,.0f} GPUs", zorder=0)
    axes.set_xlabel(f"time ({unit})")
    axes.set_ylabel(label)
    axes.set_ylim(bottom=0)
    axes.tick_params(axis="y", labelsize=8)
    return drawn(figure, axes)


def time_unit(span_s: float) -> tuple[str, float]:
    """Return the unit of a time axis that is so long, and its seconds."""
    return next(((name, unit_s) for name, unit_s in _UNITS if span_s >= _UNITS_MIN * unit_s), ("s", 1.0))


def together(curve_by_policy: Mapping[str, Curve]) -> list[Curve]:
    """Return the curves with those that are the same made one, in the order of their first policies."""
    found: list[Curve] = []
    for policy, curve in curve_by_policy.items():
        index = next((index for index, one in enumerate(found) if _is_same(one, curve)), None)
        if index is None:
            found.append(curve)
        else:
            same = found[index]
            found[index] = Curve(policies=(*same.policies, policy), x=same.x, y=same.y)
    return found


def _is_same(one: Curve, other: Curve) -> bool:
    if one.x.shape != other.x.shape or one.y.shape != other.y.shape:
        return False
    return np.allclose(one.x, other.x, rtol=_SAME, atol=_SAME) and np.allclose(one.y, other.y, rtol=_SAME, atol=_SAME)


def _style(study: Study, curve: Curve, index: int) -> dict[str, Any]:
    """Return how a curve is drawn: a policy's colour is the same in all pictures, widths go by what lies below."""
    own = study.policies.index(curve.policies[0])
    return {
        "color": COLOURS[own % len(COLOURS)],
        "linestyle": _DASHES[own % len(_DASHES)],
        "linewidth": max(_WIDTH_MIN, _WIDTH_MAX - _WIDTH_STEP * index),
    }


def _number_logarithmic(axes: Any) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axes.set_xscale("log", nonpositive="clip")
    low, high = axes.get_xlim()
    subs = (1.0, 2.0, 5.0) if high <= low * _DECADES_NUMBERED_FINELY else (1.0,)
    axes.xaxis.set_major_locator(LogLocator(subs=subs, numticks=15))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}" if value >= 1 else f"{value:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())


def plain(text: str) -> str:
    """Return text that matplotlib takes for no formula."""
    return text.replace("$", r"\$")


def new_figure(height_inches: float) -> tuple[Any, Any]:
    """Return an empty picture and its axes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH_INCHES, height_inches), layout="constrained")
    return figure, figure.add_subplot()


def drawn(figure: Any, axes: Any, *, handles: Sequence[Any] | None = None) -> bytes:
    """Return a picture as PNG, with its legend above it, where it covers nothing.

    Args:
        handles: Of the legend; by default what the axes have labels for.
    """
    shown = list(axes.get_legend_handles_labels()[0] if handles is None else handles)
    if shown:
        wrapped = [
            wrap(str(one.get_label()), _LEGEND_CHARACTERS - _LEGEND_GAP, break_on_hyphens=False) for one in shown
        ]
        labels = [plain("\n".join(lines)) for lines in wrapped]
        widths = [max(map(len, lines)) + _LEGEND_GAP for lines in wrapped]
        fits = sum(widths) <= _LEGEND_CHARACTERS
        count = len(shown) if fits else max(1, min(len(shown), _LEGEND_CHARACTERS // max(widths)))
        figure.legend(shown, labels, loc="outside upper left", ncols=count, frameon=False, fontsize=8, handlelength=3.2)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(axis="x", labelsize=8)
    axes.xaxis.label.set_size(8)
    axes.yaxis.label.set_size(8)
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=DPI, metadata={"Software": None})
    return file.getvalue()
