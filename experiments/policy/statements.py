"""What a policy is to show, statement by statement, with the numbers that decide. Pure: no I/O, no clock."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from arena.cli.replay_results import Study
from arena.sim.bootstrap import Ratio, paired_ratio
from experiments.policy.cases import Setting

AVERAGE, TAIL = "avg_jct_s", "p99_jct_s"
RIVAL = "arena-greedy"
AVERAGE_MAX = 0.6
"""Of the average over that of ``RIVAL``, at ``LOAD`` with predicted lengths: the upper end of its interval."""

AVERAGE_MAX_BLIND = 0.75
"""The same where lengths are not told."""

TAIL_MAX = 1.0
LOAD = 0.9
DRAWS = 20
"""Over so many draws statements are to be tested."""

RATIO_SEED = 1


class Verdict(StrEnum):
    """What the numbers say of a statement."""

    HOLDS = "holds"
    FAILS = "FAILS"
    UNSURE = "mean holds, interval does not"
    UNTESTED = "not tested"


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """A statement of one setting.

    Args:
        numbers: What decided it.
        draws: Over how many.
    """

    setting: str
    text: str
    verdict: Verdict
    numbers: str
    draws: int

    @property
    def as_json(self) -> dict[str, Any]:
        """For the document of a study."""
        return asdict(self)


def statements_of(
    study: Study, policy: str, *, setting: Setting, name: str, bounds_s: Sequence[float] = ()
) -> list[Statement]:
    """Return what a study of one setting says of a policy.

    Args:
        name: Of the setting, for people.
        bounds_s: No schedule's mean completion time is below it, by draw; empty where nothing is known.
    """
    if policy not in study.policies:
        return []
    draws = len(study.seeds)
    found = [*_among_all(study, policy), *_against_rival(study, policy, setting, bounds_s)]
    return [
        Statement(setting=name, text=text, verdict=verdict, numbers=numbers, draws=draws)
        for text, verdict, numbers in found
    ]


_Found = tuple[str, Verdict, str]


def _among_all(study: Study, policy: str) -> Iterator[_Found]:
    own_name = policy.partition(":")[0]
    others = [name for name in study.policies if name.partition(":")[0] != own_name]
    if not others:
        return
    own, best = _mean(study, policy, AVERAGE), min(others, key=lambda name: _mean(study, name, AVERAGE))
    ratios = {name: _ratio(study, policy, name, AVERAGE) for name in others}
    ratio = ratios[best]
    crossing = [name for name, one in ratios.items() if one is None or (one.high is not None and one.high >= 1.0)]
    verdict = Verdict.FAILS if own >= _mean(study, best, AVERAGE) else Verdict.UNSURE if crossing else Verdict.HOLDS
    compared = f"{own:,.0f} s; next of {len(others)} others {best} {_mean(study, best, AVERAGE):,.0f} s"
    yield "average JCT is the lowest", verdict, f"{compared}, ratio {_text(ratio)}"
    better = [name for name in others if _is_better(study, name, policy)]
    single = [text for name in others if (text := _better_draws(study, name, policy))]
    numbers = f"over all draws: {', '.join(better) or 'none'}; in single draws: {'; '.join(single) or 'none'}"
    yield "no other is better on average and p99", Verdict.FAILS if better else Verdict.HOLDS, numbers


def _is_better(study: Study, name: str, policy: str) -> bool:
    return all(_mean(study, name, figure) < _mean(study, policy, figure) for figure in (AVERAGE, TAIL))


def _better_draws(study: Study, name: str, policy: str) -> str:
    """Return in which draws another policy is better on both, ``srtf in 3, 7``; empty where in none."""
    values = [study.values(each, "whole", figure) for figure in (AVERAGE, TAIL) for each in (name, policy)]
    seeds = [
        seed
        for seed, other, own, tail, own_tail in zip(study.seeds, *values, strict=True)
        if other < own and tail < own_tail
    ]
    return f"{name} in {', '.join(map(str, seeds))}" if seeds else ""


def _against_rival(study: Study, policy: str, setting: Setting, bounds_s: Sequence[float]) -> Iterator[_Found]:
    if setting.load != LOAD or setting.lengths == "true":
        return
    is_blind = setting.lengths == "none"
    most = AVERAGE_MAX_BLIND if is_blind else AVERAGE_MAX
    text, verdict, numbers = _at_most(study, policy, AVERAGE, most)
    is_short = verdict in (Verdict.FAILS, Verdict.UNSURE)
    yield text, verdict, numbers + (_beyond_all(study, bounds_s, most) if is_short else "")
    if not is_blind:
        yield _at_most(study, policy, TAIL, TAIL_MAX)


def _beyond_all(study: Study, bounds_s: Sequence[float], most: float) -> str:
    """Return that a limit is out of reach of any schedule, where the bounds say so; else nothing.

    The same resamples make both intervals, and in each of them a schedule's sum is at least that of the bounds: its
    interval ends no lower than theirs.
    """
    least = paired_ratio(bounds_s, study.values(RIVAL, "whole", AVERAGE), seed=RATIO_SEED) if bounds_s else None
    if least is None or (least.value if least.high is None else least.high) <= most:
        return ""
    return f"; no schedule is below {_text(least)}"


def _at_most(study: Study, policy: str, figure: str, most: float) -> _Found:
    text = f"{'average' if figure == AVERAGE else 'p99'} over {RIVAL} <= {most:g}"
    if RIVAL not in study.policies:
        return text, Verdict.UNTESTED, f"{RIVAL} did not run"
    ratio = _ratio(study, policy, RIVAL, figure)
    if ratio is None:
        return text, Verdict.UNTESTED, "no ratio"
    if ratio.value > most:
        return text, Verdict.FAILS, _text(ratio)
    is_sure = ratio.high is not None and ratio.high <= most
    return text, Verdict.HOLDS if is_sure else Verdict.UNSURE, _text(ratio)


def _mean(study: Study, policy: str, figure: str) -> float:
    mean = study.mean(policy, "whole", figure)
    return math.nan if mean is None else mean


def _ratio(study: Study, policy: str, other: str, figure: str) -> Ratio | None:
    return paired_ratio(study.values(policy, "whole", figure), study.values(other, "whole", figure), seed=RATIO_SEED)


def _text(ratio: Ratio | None) -> str:
    if ratio is None:
        return "-"
    interval = "" if ratio.low is None else f" [{ratio.low:.3f}, {ratio.high:.3f}]"
    return f"{ratio.value:.3f}{interval}"


def counted(statements: Sequence[Statement]) -> str:
    """Return how many statements hold, and how many were tested over fewer draws than they are to be."""
    held = sum(one.verdict is Verdict.HOLDS for one in statements)
    short = sum(one.draws < DRAWS for one in statements)
    few = f"; {short} of them over fewer than {DRAWS} draws" if short else ""
    return f"{held} of {len(statements)} statements hold{few}"
