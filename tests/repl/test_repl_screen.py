import io
from collections.abc import Callable

import pytest
from rich.console import Console

from mlx_attn.errors import printable
from mlx_attn.repl.screen import TerminalScreen
from mlx_attn.repl.session import Screen
from mlx_attn.ui.terminal import WordWrap


def terminal(width: int) -> tuple[TerminalScreen, io.StringIO]:
    file = io.StringIO()
    return TerminalScreen(Console(file=file, width=width, color_system=None)), file


def piped(show: Callable[[Screen], None]) -> tuple[str, str]:
    """What a pipe gets on its two streams."""
    answers: list[str] = []
    messages: list[str] = []
    show(Screen(answers.append, messages.append))
    return "".join(answers), "".join(messages)


def test_a_pipe_gets_answers_and_messages_apart():
    def show(screen: Screen):
        screen.stream(iter(["once ", "upon"]))
        screen.note("2 tokens")
        screen.say("hello")

    assert piped(show) == ("once upon\n", "2 tokens\nhello\n")


def test_a_table_in_a_pipe_is_aligned():
    _, messages = piped(lambda screen: screen.table([("/x", "one"), ("/long", "two")]))
    assert messages == "/x     one\n/long  two\n"


def test_a_stopped_answer_ends_its_line():
    def stopped():
        yield "half"
        raise KeyboardInterrupt

    screen, file = terminal(40)
    with pytest.raises(KeyboardInterrupt):
        screen.stream(stopped())
    assert file.getvalue() == "half\n"


def test_a_message_has_a_line_of_its_own_even_where_an_answer_could_not_end_its_line(monkeypatch):
    def failing():
        yield "half "
        monkeypatch.setattr(WordWrap, "rest", pressed)
        raise RuntimeError

    def pressed(wrap: WordWrap):
        raise KeyboardInterrupt

    screen, file = terminal(40)
    with pytest.raises(KeyboardInterrupt):
        screen.stream(failing())
    screen.note("1 token")
    screen.note("stopped")
    assert file.getvalue() == "half\n1 token\nstopped\n"


def test_messages_and_tables_fit_a_narrow_terminal():
    screen, file = terminal(40)
    screen.say("word " * 30)
    screen.table([("/command ARGUMENT", "what it does, in a long sentence " * 3)])
    assert max(map(len, file.getvalue().splitlines())) <= 40


def test_an_answer_is_shown_as_it_is():
    screen, file = terminal(40)
    screen.stream(iter(["[bold]:smile: ", "x" * 60]))
    assert file.getvalue() == "[bold]:smile:\n" + "x" * 40 + "\n" + "x" * 20 + "\n"


def test_clear_does_nothing_in_a_pipe():
    assert piped(lambda screen: screen.clear()) == ("", "")


def test_a_model_cannot_steer_the_terminal():
    assert printable("a\x1b[2Jb\x07\r\x7f\x9b\n\t") == "a␛[2Jb␇␍␡\ufffd\n\t"
