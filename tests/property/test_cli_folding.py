"""Folded texts and tables keep every word whole and in order, whatever is in them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from arena.cli.folding import GAP, column_widths, folded, row_lines, text_width

words = st.text(alphabet="ab.-7 ", max_size=70)
tables = st.integers(1, 4).flatmap(
    lambda count: st.lists(st.lists(words, min_size=count, max_size=count), min_size=1, max_size=4)
)


@given(text=st.text(alphabet="ab7 \n", max_size=300), width=st.integers(1, 40), hanging=st.integers(0, 8))
def test_a_folded_text_has_the_same_words(text: str, width: int, hanging: int) -> None:
    lines = folded(text, width, hanging)
    assert " ".join(lines).split() == text.split()
    assert all(text_width(line) <= width or len(line.split()) <= 1 for line in lines)


def test_many_blanks_at_the_end_are_no_trouble() -> None:
    """Of a million, not of so few that the square of them could be waited for."""
    assert folded("a" + " " * 1_000_000, 80) == ["a"]


@given(rows=tables, width=st.integers(20, 120))
def test_a_table_that_fits_cuts_no_name_of_up_to_sixty_columns(rows: list[list[str]], width: int) -> None:
    columns, *others = rows
    widths = column_widths(columns, others, width)
    if widths is None:
        told = [line for row in others for line in row_lines(columns, row, width)]
        assert " ".join(told).split() == [
            word
            for row in others
            for name, cell in zip(columns, row, strict=True)
            if cell
            for word in (name, cell)
            for word in word.split()
        ]
        return
    assert sum(widths) + len(GAP) * (len(widths) - 1) <= width
    for row in rows:
        for cell, size in zip(row, widths, strict=True):
            assert all(text_width(word) <= max(size, 60) for word in cell.split())
            assert all(text_width(word) <= size for word in cell.split() if text_width(word) <= 60)
