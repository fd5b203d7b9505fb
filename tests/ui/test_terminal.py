import pytest

from mlx_attn.ui.terminal import WordWrap, age, count, duration, memory

STORY = "Anna saw a rabbit\nand  said: \u4f60\u597d\u4f60\u597d\u4f60\u597d and " + "x" * 15 + " ok"


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_a_text_that_comes_in_pieces_is_wrapped_between_words(size):
    pieces = [STORY[start : start + size] for start in range(0, len(STORY), size)]
    wrap = WordWrap(10)
    assert "".join([*map(wrap.push, pieces), wrap.rest()]).split("\n") == [
        "Anna saw a",
        "rabbit",
        "and  said:",
        "\u4f60\u597d\u4f60\u597d\u4f60",
        "\u597d and",
        "x" * 10,
        "xxxxx ok",
    ]


@pytest.mark.parametrize(
    ("shown_by", "number", "shown"),
    [
        (count, 0, "0"),
        (count, 999.4, "999"),
        (count, 9430, "9.43k"),
        (count, 94300, "94.3k"),
        (count, 999_600, "1.00M"),
        (count, 2e15, "2000T"),
        (count, -9430, "-9.43k"),
        (memory, 19_600, "20 kB"),
        (memory, 12e6, "12 MB"),
        (memory, 4e12, "4000.0 GB"),
        (duration, 7.4, "0:07"),
        (duration, 59.6, "1:00"),
        (duration, 7390, "2:03:10"),
        (duration, float("nan"), "-"),
        (age, -1, "0 s"),
        (age, 119, "119 s"),
        (age, 7199, "119 min"),
        (age, 7200, "2 h"),
        (age, 4e5, "4 days"),
    ],
)
def test_numbers_are_shown_as_people_read_them(shown_by, number, shown):
    assert shown_by(number) == shown
