"""Whatever an id or a name holds, a terminal is not steered by it and a shell reads it as one word."""

from __future__ import annotations

import json
import shlex
import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from arena.cli.json_form import dumps
from arena.cli.quoting import escaped, quoted

anything = st.text(st.characters(), max_size=20)


@given(anything)
def test_no_control_reaches_the_terminal(text: str) -> None:
    for shown in (escaped(text), quoted(text)):
        assert not [char for char in shown if unicodedata.category(char) in {"Cc", "Cs", "Co", "Cn", "Zl", "Zp"}]
        assert not {"\u202e", "\u2066", "\u200f"} & set(shown)
        shown.encode()


@given(anything)
def test_a_shell_reads_one_word(text: str) -> None:
    assert shlex.split(quoted(text)) == [escaped(text)]


@given(st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1))
def test_text_without_controls_is_shown_as_it_is(text: str) -> None:
    assert escaped(text) == text


@given(st.dictionaries(anything, anything | st.floats() | st.none() | st.booleans() | st.integers()))
def test_json_is_valid_whatever_it_holds(value: dict[str, object]) -> None:
    read = json.loads(dumps(value), parse_constant=lambda name: 1 / 0)
    assert set(read) == set(value)
