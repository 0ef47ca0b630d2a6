"""Pictures of a study as PNG: how JCTs are distributed, how busy the cluster was, who had which GPU."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import numpy as np

from arena.cli.replay_results import Study
from arena.cli.replay_runs import Document
from arena.units import HOUR_S

_CDF_POINTS_MAX = 1_000
_DPI = 110
_WIDTH = 9.0
_JOB_COLOURS = 20
_CHARACTERS_ACROSS, _LABEL_MIN, _JOB_ID_SHOWN = 170, 6, 10
"""Small characters across the picture, the fewest that say something, and those of a job's id."""


def cdf_png(study: Study) -> bytes:
    """Draw the share of jobs that are done within a time, for each policy over all its seeds."""
    figure, axes = _figure(3.6)
    for policy in study.policies:
        runs = study.runs_of(policy)
        times = [np.array(run["jobs"]["ended_at_s"]) - np.array(run["jobs"]["submitted_at_s"]) for run in runs]
        jct_s = np.sort(np.concatenate(times))
        if not len(jct_s):
            continue
        shares = np.linspace(0, 1, min(_CDF_POINTS_MAX, len(jct_s)))
        axes.plot(np.quantile(jct_s, shares), shares, label=policy)
    axes.set_xscale("log")
    axes.set_xlabel("JCT (s)")
    axes.set_ylabel("share of the jobs")
    return _done(figure, axes)


def series_png(study: Study, field: str, label: str, *, limit: float | None = None) -> bytes:
    """Draw a series over time, of each policy's first seed.

    Args:
        field: ``busy_gpus`` or ``speed``.
        label: Of the axis.
        limit: Drawn as a line: GPUs of the cluster.
    """
    figure, axes = _figure(3.0)
    for policy in study.policies:
        series = study.runs_of(policy)[0]["series"]
        if series["edges_s"]:
            axes.stairs(series[field], np.array(series["edges_s"]) / HOUR_S, label=policy, baseline=None)
    if limit is not None:
        axes.axhline(limit, color="grey", linewidth=0.8, linestyle="--")
    axes.set_xlabel("time (h)")
    axes.set_ylabel(label)
    axes.set_ylim(bottom=0)
    return _done(figure, axes)


def gantt_png(run: Document) -> bytes:
    """Draw which job had which GPU, with its group and plan where there is room; starting and loading is hatched."""
    rows, bars = run["rows"], run["bars"]
    figure, axes = _figure(min(14.0, 1.6 + 0.16 * len(rows)))
    colours = {
        job_id: index % _JOB_COLOURS for index, job_id in enumerate(dict.fromkeys(bar["job_id"] for bar in bars))
    }
    for bar in bars:
        _draw_bar(axes, bar, f"C{colours[bar['job_id']] % 10}", is_dark=colours[bar["job_id"]] >= 10)
    _label_bars(axes, bars)
    axes.set_yticks(range(len(rows)), rows, fontsize=5)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlabel("time (h)")
    return _done(figure, axes, has_legend=False)


def _draw_bar(axes: Any, bar: Document, colour: str, *, is_dark: bool) -> None:
    from_s, until_s = bar["from_s"] / HOUR_S, bar["until_s"] / HOUR_S
    ready_s = until_s if bar["ready_s"] is None else bar["ready_s"] / HOUR_S
    alpha = 0.95 if is_dark else 0.6
    axes.barh(bar["row"], ready_s - from_s, left=from_s, height=0.9, color="white", hatch="////", edgecolor=colour)
    axes.barh(bar["row"], until_s - ready_s, left=ready_s, height=0.9, color=colour, alpha=alpha, edgecolor="white")


def _label_bars(axes: Any, bars: Sequence[Document]) -> None:
    """Name attempts, each once, as far as their bars have room."""
    first: dict[tuple[str, float], Document] = {}
    for bar in bars:
        first.setdefault((bar["job_id"], bar["from_s"]), bar)
    if not first:
        return
    span_s = max(bar["until_s"] for bar in bars) - min(bar["from_s"] for bar in bars)
    for bar in first.values():
        room = int(_CHARACTERS_ACROSS * (bar["until_s"] - bar["from_s"]) / span_s) - 2
        if room >= _LABEL_MIN:
            text = _plain(f"{bar['job_id'][:_JOB_ID_SHOWN]} {bar['label']}"[:room])
            axes.text(bar["from_s"] / HOUR_S, bar["row"], f" {text}", va="center", fontsize=5, clip_on=True)


def _plain(text: str) -> str:
    """Return text that matplotlib takes for no formula."""
    return text.replace("$", r"\$")


def _figure(height: float) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(_WIDTH, height), layout="constrained")
    return figure, figure.add_subplot()


def _done(figure: Any, axes: Any, *, has_legend: bool = True) -> bytes:
    handles, labels = axes.get_legend_handles_labels()
    if has_legend and handles:
        axes.legend(handles, [_plain(label) for label in labels], fontsize=8)
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=_DPI, metadata={"Software": None})
    return file.getvalue()
