import pytest

from tests.selection import is_as_it_says, leaves_nothing

FAST, SLOW = "not slow and not benchmark", "slow and not benchmark"
PLAIN = "def test_it():\n    assert True\n"
ALL_SLOW = f"pytestmark = pytest.mark.slow\n\n{PLAIN}"
ALSO_SLOW = f"pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]\n\n{PLAIN}"
ONE_SLOW = f"{PLAIN}\n@pytest.mark.slow\ndef test_other():\n    assert True\n"
BENCHMARK = f"pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(600)]\n\n{PLAIN}"
SPOKEN_OF = f'"""Not like pytest.mark.slow, nor @pytest.mark.slow."""\n\n{PLAIN}'


@pytest.mark.parametrize(
    ("expression", "needless"),
    [
        (FAST, [ALL_SLOW, ALSO_SLOW, BENCHMARK]),
        (SLOW, [PLAIN, BENCHMARK, SPOKEN_OF]),
        ("benchmark", [PLAIN, ALL_SLOW, ALSO_SLOW, ONE_SLOW, SPOKEN_OF]),
        ("not benchmark", [BENCHMARK]),
        ("", []),
        ("slow or benchmark", []),
        ("timeout", []),
    ],
)
def test_a_file_is_passed_over_where_no_test_of_it_is_left(expression: str, needless: list[str]) -> None:
    files = [PLAIN, ALL_SLOW, ALSO_SLOW, ONE_SLOW, BENCHMARK, SPOKEN_OF]
    assert [text for text in files if leaves_nothing(expression, text)] == needless


def test_a_mark_that_no_file_would_be_kept_for_is_found() -> None:
    assert is_as_it_says(["slow", "timeout"], ALSO_SLOW)
    assert is_as_it_says(["slow"], ONE_SLOW)
    assert is_as_it_says(["asyncio"], ONE_SLOW)
    assert not is_as_it_says(["slow"], PLAIN), "the slow run would never see it"
    assert not is_as_it_says([], ALL_SLOW), "the fast run would never see it"
