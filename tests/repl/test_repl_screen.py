import io

from rich.console import Console

from mlx_attn.repl.screen import TerminalScreen
from mlx_attn.repl.session import Screen


def terminal(width: int) -> tuple[TerminalScreen, io.StringIO]:
    file = io.StringIO()
    return TerminalScreen(Console(file=file, width=width, color_system=None)), file


def test_a_pipe_gets_answers_and_messages_apart_and_tables_aligned():
    answers: list[str] = []
    messages: list[str] = []
    screen = Screen(answers.append, messages.append)
    screen.stream(iter(["once ", "upon"]))
    screen.note("2 tokens")
    screen.table([("/x", "one"), ("/long", "two")])
    screen.clear()
    assert "".join(answers) == "once upon\n"
    assert "".join(messages) == "2 tokens\n/x     one\n/long  two\n"


def test_an_answer_is_shown_as_it_is_but_for_control_characters():
    screen, file = terminal(40)
    screen.stream(iter(["[bold]:smile:\x1b ", "x" * 60]))
    assert file.getvalue() == "[bold]:smile:␛\n" + "x" * 40 + "\n" + "x" * 20 + "\n"
