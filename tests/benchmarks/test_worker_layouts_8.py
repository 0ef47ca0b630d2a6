"""Plans of five to eight ranks beside one process, every pair of features again: too slow for every change."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from arena.domain.capability import TRAINED_FAMILIES
from arena.domain.job import ModelFamily
from tests.covering_plans import Case, covering_set, possible_pairs
from tests.equivalence import References, check_case, successor
from tests.fakes.rank_launcher import RankLauncher

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(1800)]

RANKS = (5, 8)


@pytest.fixture(scope="module")
def launcher() -> Iterator[RankLauncher]:
    launcher = RankLauncher.start()
    yield launcher
    launcher.close()


@pytest.mark.parametrize("family", TRAINED_FAMILIES)
def test_layouts_of_eight_ranks(
    launcher: RankLauncher, tmp_path: Path, family: ModelFamily, capsys: pytest.CaptureFixture[str]
) -> None:
    cases = covering_set((family,), *RANKS)
    references = References(launcher=launcher, directory=tmp_path / "references")
    failed: list[str] = []
    for index, case in enumerate(cases):
        failed += failures(launcher, tmp_path / str(index), case, successor(cases, index), references)
    with capsys.disabled():
        print(f"\n{family}: {len(cases) - len(failed)} of {len(cases)} plans of {RANKS[0]} to {RANKS[1]} ranks agree")
    assert not failed, "\n".join(failed)
    assert set().union(*(case.pairs for case in cases)) >= possible_pairs(family, 1, 4)


def failures(
    launcher: RankLauncher, directory: Path, case: Case, following: Case, references: References
) -> Iterator[str]:
    """Yield what is wrong, so that one plan's failure does not hide another's."""
    try:
        check_case(launcher, directory, case, following, references.of(case))
    except AssertionError as error:
        yield f"{case} -> {following.plan}: {error}"
