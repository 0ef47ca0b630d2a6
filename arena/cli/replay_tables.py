"""Results of a study as tables, for the terminal and for the report. Pure: no I/O, no clock."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from arena.cli.quoting import escaped
from arena.cli.replay_results import RATIO_FIGURES, Study
from arena.cli.words import NOTHING, hours_text


@dataclass(frozen=True, slots=True, kw_only=True)
class TextTable:
    """A table of texts.

    Args:
        title: A line above it.
        note: A line below it.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""


_SECONDS, _HOURS = "seconds", "hours"
"""Forms of times and of GPU-hours, of which a small study has few."""

_SECONDS_WITH_TENTHS = 100.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Column:
    """A column: its heading, the figure, its form, by what it is multiplied, and whether it is of jobs that ended."""

    heading: str
    figure: str
    form: str = _SECONDS
    factor: float = 1.0
    of_ended: bool = False


_TIMES = (
    _Column(heading="AVG_JCT", figure="avg_jct_s"),
    _Column(heading="P50", figure="p50_jct_s"),
    _Column(heading="P99", figure="p99_jct_s"),
    _Column(heading="SLOWDOWN", figure="avg_bounded_slowdown", form=",.2f", of_ended=True),
    _Column(heading="WAITING", figure="queue_s", of_ended=True),
    _Column(heading="MAKESPAN", figure="makespan_s", of_ended=True),
)
_COSTS = (
    _Column(heading="GPU_HOURS", figure="gpu_hours", form=_HOURS),
    _Column(heading="LOST%", figure="lost_share", form=".1f", factor=100.0),
    _Column(heading="UTIL%", figure="utilisation", form=".1f", factor=100.0),
    _Column(heading="RESTARTS", figure="restarts_per_job", form=".2f"),
    _Column(heading="UNFAIR%", figure="unfair_share", form=".1f", factor=100.0, of_ended=True),
    _Column(heading="RHO_MAX", figure="rho_max", form=",.1f"),
)
_LOSSES = (
    _Column(heading="FAILED", figure="failed_node_count", form=",.1f"),
    _Column(heading="RECLAIMED", figure="reclaimed_node_count", form=",.1f"),
    _Column(heading="LOST_GPU_HOURS", figure="lost_gpu_hours", form=_HOURS),
)
_ONLY_WHOLE = (_Column(heading="DECISION_MS", figure="decision_ms_p99", form=",.2f"),)
_RATIO_HEADINGS = {
    "avg_jct_s": "AVG_JCT",
    "p50_jct_s": "P50",
    "p99_jct_s": "P99",
    "avg_bounded_slowdown": "SLOWDOWN",
    "makespan_s": "MAKESPAN",
    "gpu_hours": "GPU_HOURS",
}
TIMES_NOTE = "times in seconds; LEFT: not ended when the run was cut, and in no figure beside"
COSTS_NOTE = "RESTARTS per job; UNFAIR%: jobs with rho above 1; DECISION_MS: p99"

_INTERVALS_NOTE = "95 % paired bootstrap over seeds"
_NO_INTERVALS_NOTE = "no intervals: they need --seeds 2 or more, and something that is drawn"


def tables_of(study: Study) -> list[TextTable]:
    """Return all tables of a study, each narrow enough for a terminal of 80 columns where names are short."""
    found = [*_figures_tables(study, "whole", "ALL JOBS, whole run")]
    if study.runs[0]["window"] is not None:
        window = study.runs[0]["window"]
        title = f"STEADY WINDOW of seed {study.runs[0]['seed']}: jobs submitted from {window['from_s']:,.0f} "
        found += _figures_tables(study, "steady", f"{title}to {window['to_s']:,.0f} s")
    if any(study.p99_by_size(policy, "whole") for policy in study.policies):
        found.append(_sizes_table(study))
    if any(study.mean(policy, "whole", one.figure) for policy in study.policies for one in _LOSSES[:2]):
        found.append(_losses_table(study))
    if any(study.mean(policy, "whole", "given_up_job_count") for policy in study.policies):
        found.append(_budgets_table(study))
    if study.runs[0]["tenants"]:
        found.append(_tenants_table(study))
    if any((study.mean(policy, "whole", "deadline_count") or 0) > 0 for policy in study.policies):
        found.append(_deadline_table(study))
    if len(study.policies) > 1:
        found.append(_ratios_table(study))
    return found


def _figures_tables(study: Study, scope: str, title: str) -> Iterator[TextTable]:
    seeds = f"; means over {len(study.seeds)} seeds" if len(study.seeds) > 1 else ""
    counts = {
        policy: tuple(_count(study, policy, scope, figure) for figure in ("job_count", "unfinished_count"))
        for policy in study.policies
    }
    yield TextTable(
        title=title,
        columns=("POLICY", "JOBS", "LEFT", *(one.heading for one in _TIMES)),
        rows=tuple((escaped(policy), *counts[policy], *_cells(study, policy, scope, _TIMES)) for policy in counts),
        note=TIMES_NOTE + seeds if scope == "whole" else "",
    )
    costs = (*_COSTS, *(_ONLY_WHOLE if scope == "whole" else ()))
    yield TextTable(
        title="",
        columns=("POLICY", *(one.heading for one in costs)),
        rows=tuple((escaped(policy), *_cells(study, policy, scope, costs)) for policy in study.policies),
        note=COSTS_NOTE if scope == "whole" else "",
    )


def _cells(study: Study, policy: str, scope: str, columns: Sequence[_Column]) -> tuple[str, ...]:
    has_ended = study.mean(policy, scope, "avg_jct_s") is not None
    return tuple(
        _cell(study.mean(policy, scope, one.figure) if has_ended or not one.of_ended else None, one) for one in columns
    )


def _count(study: Study, policy: str, scope: str, figure: str) -> str:
    value = study.mean(policy, scope, figure)
    return NOTHING if value is None else f"{value:,.6g}" if value % 1 else f"{value:,.0f}"


def _cell(value: float | None, column: _Column) -> str:
    if value is None:
        return NOTHING
    if column.form == _SECONDS:
        return _seconds_text(value)
    return hours_text(value) if column.form == _HOURS else format(value * column.factor, column.form)


def _seconds_text(value: float) -> str:
    return f"{value:.1f}" if 0 < value < _SECONDS_WITH_TENTHS else f"{value:,.0f}"


def _sizes_table(study: Study) -> TextTable:
    by_policy = {policy: study.p99_by_size(policy, "whole") for policy in study.policies}
    classes = sorted({name for found in by_policy.values() for name in found}, key=_low)
    rows = tuple(
        (escaped(policy), *(_seconds_text(found[name]) if name in found else NOTHING for name in classes))
        for policy, found in by_policy.items()
    )
    return TextTable(title="P99 OF JCT (s) by GPUs asked for", columns=("POLICY", *classes), rows=rows)


def _low(name: str) -> int:
    return int(name.rstrip("+").split("-")[0])


def _losses_table(study: Study) -> TextTable:
    return TextTable(
        title="LOSSES OF NODES",
        columns=("POLICY", *(one.heading for one in _LOSSES)),
        rows=tuple((escaped(policy), *_cells(study, policy, "whole", _LOSSES)) for policy in study.policies),
        note="nodes lost until the last job had ended; GPU-hours lost for whatever cause",
    )


def _budgets_table(study: Study) -> TextTable:
    return TextTable(
        title="BUDGETS",
        columns=("POLICY", "GIVEN_UP"),
        rows=tuple(
            (escaped(policy), _count(study, policy, "whole", "given_up_job_count")) for policy in study.policies
        ),
        note="jobs that were stopped for their budgets, or could not pay for any way to their end; they count as ended",
    )


def _tenants_table(study: Study) -> TextTable:
    rows = [
        (
            escaped(policy),
            escaped(one["project"]) or "(others)",
            ", ".join(f"{count} {escaped(gpu_type)}" for gpu_type, count in one["guaranteed"].items()) or NOTHING,
            *(hours_text(one[name]) for name in ("gpu_hours", "borrowed_gpu_hours")),
            *(f"{one[name]:,.0f}" for name in ("below_share_s", "below_share_s_max", "avg_jct_s")),
        )
        for policy in study.policies
        for one in study.tenants(policy)
    ]
    return TextTable(
        title="GUARANTEED SHARES",
        columns=("POLICY", "PROJECT", "SHARE", "GPU_HOURS", "BORROWED", "BELOW_S", "LONGEST", "AVG_JCT"),
        rows=tuple(rows),
        note="BELOW_S: seconds with less than the share and work for it; LONGEST: the longest of them at a stretch",
    )


def _deadline_table(study: Study) -> TextTable:
    """Return who met its deadline; MET% is of those that were not cancelled, who neither met nor missed theirs.

    So it is of the same jobs under every policy, however late each lets a user's cancellation come.
    """
    rows = []
    for policy in study.policies:
        counts = ("count", "met_count", "overrun_count", "cancelled_count")
        total, met, overrun, cancelled = (study.mean(policy, "whole", f"deadline_{one}") or 0.0 for one in counts)
        share = f"{100 * met / (total - cancelled):.1f}" if total > cancelled else NOTHING
        rows.append((escaped(policy), f"{total:,.6g}", f"{met:,.6g}", share, f"{overrun:,.6g}", f"{cancelled:,.6g}"))
    return TextTable(
        title="DEADLINES",
        columns=("POLICY", "JOBS", "MET", "MET%", "OVERRAN", "CANCELLED"),
        rows=tuple(rows),
        note=(
            "of those not met, OVERRAN: jobs that had more to do than they declared; CANCELLED: by their users, "
            "neither met nor missed, so that MET% is of the others"
        ),
    )


def _ratios_table(study: Study) -> TextTable:
    others = study.policies[1:]
    found = [study.ratios(policy, "whole") for policy in others]
    rows = tuple((_RATIO_HEADINGS[name], *(_ratio_text(ratios[name]) for ratios in found)) for name in RATIO_FIGURES)
    note = _INTERVALS_NOTE if len(study.seeds) > 1 else _NO_INTERVALS_NOTE
    if any(study.mean(policy, "whole", "unfinished_count") for policy in study.policies):
        note += "; of the jobs that ended, which are not the same under each policy"
    title = f"RATIO TO {escaped(study.policies[0])}"
    return TextTable(title=title, columns=("FIGURE", *map(escaped, others)), rows=rows, note=note)


def _ratio_text(ratio: dict[str, float | None] | None) -> str:
    if ratio is None:
        return NOTHING
    if ratio["low"] is None or ratio["high"] is None:
        return f"{ratio['value']:.3f}"
    return f"{ratio['value']:.3f} [{ratio['low']:.3f}, {ratio['high']:.3f}]"


def numbers(columns: Sequence[str]) -> tuple[str, ...]:
    """Return the headings of numbers: all but the first."""
    return tuple(columns[1:])
