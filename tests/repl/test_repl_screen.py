import io

import pytest
from rich.console import Console

from mlx_attn.repl.screen import TerminalScreen
from mlx_attn.ui.terminal import WordWrap


def test_an_answer_is_shown_as_it_is_but_for_control_characters():
    file = io.StringIO()
    screen = TerminalScreen(Console(file=file, width=40, color_system=None))
    screen.stream(iter(["[bold]:smile:\x1b ", "x" * 60]))
    assert file.getvalue() == "[bold]:smile:␛\n" + "x" * 40 + "\n" + "x" * 20 + "\n"


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_a_text_that_comes_in_pieces_is_wrapped_between_words(size):
    story = "Anna saw a rabbit\nand  said: 你好你好你好 ok"
    pieces = [story[start : start + size] for start in range(0, len(story), size)]
    wrap = WordWrap(10)
    lines = "".join([*map(wrap.push, pieces), wrap.rest()]).split("\n")
    assert lines == ["Anna saw a", "rabbit", "and  said:", "你好你好你", "好 ok"]
