"""The tabled Gittins quantity against a numeric search that shares nothing with it but the definition."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.integrate import cumulative_simpson
from scipy.stats import norm

from arena.policies.gittins import DOUBT, gittins_table

SHARES_DONE = (0.0, 0.05, 0.5, 0.9, 0.99, 1.0, 1.03, 1.2, 1.5, 2.5, 6.0)
ENDS = 20_001


def searched(sigma: float, done: float, doubt: float) -> float:
    """The least work per end over a dense grid of ends, by integrating the survival function numerically.

    The length has median 1: log-normal, or with the probability ``doubt`` Pareto beyond 1.
    """
    begin = max(done, math.exp(-9.0 * sigma))
    logs = np.linspace(math.log(begin), max(9.0 * sigma, math.log(begin) + 9.0 * sigma), ENDS)
    ends = np.exp(logs)
    going = (1.0 - doubt) * norm.sf(logs / sigma) + doubt * np.minimum(1.0, 1.0 / ends)
    ended = (1.0 - doubt) * norm.cdf(logs / sigma) + doubt * np.maximum(0.0, 1.0 - 1.0 / ends)
    work = cumulative_simpson(going * ends, x=logs, initial=0.0) + begin - done
    is_early = logs[0] < 0.0
    new_ends = ended - (ended[0] if done > 0.0 else 0.0) if is_early else going[0] - going
    later = slice(20, None)  # before it the quotient is of rounding errors; its limit is the hazard's inverse
    with np.errstate(divide="ignore"):  # to an end before which none ends
        least = float(np.min(work[later] / new_ends[later]))
    if done <= 0.0:
        return least
    density = (1.0 - doubt) * norm.pdf(logs[0] / sigma) / (sigma * done) + (doubt / done**2 if done >= 1.0 else 0.0)
    return min(least, float(going[0] / density))


@pytest.mark.parametrize("sigma", [0.02, 0.1, 0.33, 0.5, 1.0, 1.7, 2.0])
@pytest.mark.parametrize(("doubt", "tolerance"), [(0.0, 0.005), (DOUBT, 0.025)])
def test_the_table_is_the_least_work_per_end(sigma: float, doubt: float, tolerance: float) -> None:
    # Far past the median of a sure log-normal length nothing is left to integrate.
    done = np.array([share for share in SHARES_DONE if doubt or share == 0.0 or math.log(share) < 7.0 * sigma])
    found = gittins_table(doubt).remaining(np.ones_like(done), np.full_like(done, sigma), done)
    expected = [searched(sigma, float(one), doubt) for one in done]
    assert found == pytest.approx(expected, rel=tolerance)


def test_a_known_length_has_left_what_is_left_and_past_it_what_was_done() -> None:
    done = np.array([0.0, 1.0, 500.0, 999.0, 1000.0, 1001.0, 4000.0])
    found = gittins_table().remaining(np.full(7, 1000.0), np.zeros(7), done)
    assert found == pytest.approx([1000.0, 999.0, 500.0, 1.0, 1000.0, 1001.0, 4000.0])
