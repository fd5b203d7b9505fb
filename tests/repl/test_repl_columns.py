from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from mlx_attn.repl.screen import Column, cut_row, padded, side_by_side

LAWS = settings(deadline=None, max_examples=100)
PIECES = st.lists(st.text("ab 龍é\n", max_size=8), max_size=12)


def rows_of(pieces: list[str], width: int) -> list[str]:
    column = Column(width)
    for piece in pieces:
        column.push(piece)
    column.close()
    return list(column.rows)


@LAWS
@given(PIECES, st.integers(2, 12))
def test_rows_fit_and_hold_every_letter(pieces, width):
    rows = rows_of(pieces, width)
    assert all(cell_len(row) <= width for row in rows)
    assert "".join("".join(rows).split()) == "".join("".join(pieces).split())


@LAWS
@given(PIECES, st.integers(2, 12))
def test_rows_are_the_same_however_the_text_came(pieces, width):
    assert rows_of(pieces, width) == rows_of(["".join(pieces)], width)


def test_rows_are_cut_at_spaces():
    assert rows_of(["once upon a time"], 9) == ["once upon", "a time"]


def test_a_word_longer_than_a_row_is_cut():
    assert rows_of(["abcdefg"], 3) == ["abc", "def", "g"]


def test_a_row_waits_while_a_word_may_still_grow():
    assert cut_row("once up", 8) is None
    assert cut_row("once upon", 8) == ("once", "upon")


def test_a_character_of_two_cells_makes_progress_in_one():
    assert rows_of(["龍龍"], 1) == ["龍", "龍"]


def test_two_texts_come_row_by_row():
    streams = [iter(["one\n", "two\n"]), iter(["ten\n"])]
    assert list(side_by_side(streams, [Column(5), Column(5)])) == [("one", "ten"), ("two", "")]


def test_a_column_that_ended_does_not_hold_up_the_other():
    rows = side_by_side([iter(["a"]), iter(["1\n", "2\n", "3"])], [Column(5), Column(5)])
    assert list(rows) == [("a", "1"), ("", "2"), ("", "3")]


def test_padding_counts_cells():
    assert padded("龍", 4) == "龍  "
