"""A study as one HTML file that needs no other: tables, pictures, the account of the trace, and how to repeat it."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from string import Template

from arena.cli.replay_gantt import gantt_png
from arena.cli.replay_pictures import cdf_png, series_png
from arena.cli.replay_results import Study
from arena.cli.replay_runs import Document
from arena.cli.replay_tables import TextTable, tables_of
from arena.units import format_count

_PAGE = Template("""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>$title</title><style>
body { font: 14px/1.5 system-ui, sans-serif; max-width: 75em; margin: 2em auto; padding: 0 1em; color: #222; }
table { border-collapse: collapse; margin: 0.5em 0; font-variant-numeric: tabular-nums; }
th, td { padding: 0.15em 0.7em; text-align: right; border-bottom: 1px solid #ddd; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
h2 { margin-top: 2em; } h3 { margin: 1.5em 0 0; } img { max-width: 100%; } pre { background: #f6f6f6; padding: 0.7em;
white-space: pre-wrap; overflow-wrap: anywhere; } td.text { text-align: left; } .note { color: #666; }
.wide { overflow-x: auto; }
</style></head><body><h1>$title</h1>
$body
</body></html>
""")


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """What a report says beside the results.

    Args:
        title: Of the page.
        gpu_count: GPUs of the cluster.
        account: What became of the rows of the trace, as (what, value).
        defects: Dropped and repaired rows.
        repeat: What is needed to do it again, as (what, value).
    """

    title: str
    gpu_count: int
    account: tuple[tuple[str, str], ...]
    defects: TextTable | None
    repeat: tuple[tuple[str, str], ...]


DEFINITIONS = (
    ("JCT", "from submission to end, queueing included; the 99th percentile is linear between order statistics"),
    (
        "SLOWDOWN",
        "mean of max(1, JCT / max(alone, 10 s)), alone being its time on what it asks for, with one start",
    ),
    ("WAITING", "mean time without GPUs: before the first start, while suspended and between attempts"),
    ("MAKESPAN", "from the first submission to the last end"),
    ("GPU_HOURS, LOST%", "held from launch to end; of it what starting, loading, saving and repeated steps took"),
    ("UTIL%", "held over all GPU time, in the run or the window"),
    ("RESTARTS", "launches beyond a job's first, per job"),
    ("RHO, UNFAIR%", "JCT / (alone * max(1, c)), c being the GPUs asked for by jobs present over all; unfair: above 1"),
    ("DECISION_MS", "wall time of the policy's decisions on the machine at hand, p99; in no digest"),
    ("STEADY WINDOW", "from when a tenth of the jobs has been submitted until nine tenths have; by submission"),
    ("RATIO", "mean over seeds over that of the first policy, with 95 % of 10,000 paired resamples of the seeds"),
)
"""Of the tables, in short; arena/cli/replay.md has them with their sources."""


def report_html(study: Study, about: About) -> str:
    """Return the whole page."""
    parts = [
        "<h2>Results</h2>",
        *(_table(table) for table in tables_of(study)),
        f"<details><summary>What the figures are</summary>{_pairs(DEFINITIONS)}</details>",
        "<h2>Completion times</h2>",
        _image("Share of the jobs that are done within a time, all seeds", cdf_png(study)),
        "<h2>The cluster over time</h2>",
        _image(
            f"GPUs held, of {about.gpu_count:,}; first seed",
            series_png(study, "busy_gpus", "GPUs held", limit=about.gpu_count),
        ),
        _image(
            "Throughput: the sum over running jobs of their speed, 1 on what they asked for; first seed",
            series_png(study, "speed", "sum of the jobs' speeds"),
        ),
        "<h2>Who had which GPU</h2>",
        *(_gantt(study, about, policies) for policies in _alike(study)),
        "<h2>The trace</h2>",
        _pairs(about.account),
        _table(about.defects) if about.defects is not None else "<p>No row was dropped or repaired.</p>",
        "<h2>To repeat it</h2>",
        _pairs(about.repeat),
        _digests(study),
    ]
    return _PAGE.substitute(title=escape(about.title), body="\n".join(parts))


def _alike(study: Study) -> list[list[str]]:
    """Return the policies, those together that gave the same GPUs to the same jobs at the same times."""
    found: list[list[str]] = []
    for policy in study.policies:
        bars = study.runs_of(policy)[0]["bars"]
        same = next((one for one in found if study.runs_of(one[0])[0]["bars"] == bars), None)
        if same is None:
            found.append([policy])
        else:
            same.append(policy)
    return found


def _gantt(study: Study, about: About, policies: Sequence[str]) -> str:
    """Return the chart of policies that did the same."""
    run, names = study.runs_of(policies[0])[0], " = ".join(policies)
    if not run["bars"]:
        return f"<p>{escape(names)}: nothing ran on the GPUs shown.</p>"
    shown = {bar["job_id"] for bar in run["bars"]}
    jobs = _part_text(len(shown), run["whole"]["job_count"], "job")
    gpus = _part_text(len(run["rows"]), about.gpu_count, "GPU")
    own_s, last_s = _end_s([run]), _end_s([study.runs_of(other)[0] for other in study.policies])
    # Charts have one scale, but for those that would be a stroke at its beginning.
    is_short = own_s < last_s / 2
    text = f"{names}, first seed: {jobs} on {gpus}{', on a time scale of its own' if is_short else ''}"
    return _image(text, gantt_png(run, until_s=own_s if is_short else last_s))


def _end_s(runs: Iterable[Document]) -> float:
    """Return when the last bar of some runs ends."""
    return max(float(bar["until_s"]) for run in runs for bar in run["bars"])


def _part_text(count: int, total: int, what: str) -> str:
    return format_count(count, what) if count == total else f"{count:,} of {format_count(total, what)}"


def _digests(study: Study) -> str:
    rows = tuple((run["policy"], str(run["seed"]), run["policy_version"], run["digest"]) for run in study.runs)
    return _table(TextTable(title="Digests of runs", columns=("POLICY", "SEED", "VERSION", "DIGEST"), rows=rows))


def _table(table: TextTable) -> str:
    head = _row("th", table.columns)
    rows = "\n".join(_row("td", row) for row in table.rows)
    note = f'<p class="note">{escape(table.note)}</p>' if table.note else ""
    body = f'<div class="wide"><table><thead>{head}</thead><tbody>\n{rows}\n</tbody></table></div>'
    title = f"<h3>{escape(table.title)}</h3>\n" if table.title else ""
    return f"{title}{body}{note}"


def _row(tag: str, cells: Iterable[str]) -> str:
    return "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells) + "</tr>"


def _pairs(pairs: Iterable[tuple[str, str]]) -> str:
    items = "".join(f"<tr><td>{escape(name)}</td><td class='text'>{_long(value)}</td></tr>" for name, value in pairs)
    return f"<table>{items}</table>"


def _long(value: str) -> str:
    return f"<pre>{escape(value)}</pre>" if len(value) > 80 else escape(value)


def _image(text: str, png: bytes) -> str:
    data = base64.b64encode(png).decode("ascii")
    return f'<p>{escape(text)}</p><img alt="{escape(text)}" src="data:image/png;base64,{data}">'
