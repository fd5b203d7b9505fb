"""Input from a terminal or a pipe, and its output."""

import os
import stat
import termios
from dataclasses import dataclass

import pytest
from prompt_toolkit.application import create_app_session
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document
from prompt_toolkit.history import InMemoryHistory
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput

from mlx_attn.repl.screen import (
    HINT,
    CommandCompleter,
    ConsoleScreen,
    _without_echo,
    interactive_loop,
    open_history,
    prompt_reader,
    read_lines,
)
from mlx_attn.ui.terminal import WordWrap

ALT_ENTER, CTRL_C = "\x1b\r", "\x03"


def read(keys: str, n: int = 1, history=None) -> tuple[list[str], list[str]]:
    """What n prompts give for these keys, and the hints that were shown."""
    hints: list[str] = []
    with create_pipe_input() as keyboard, create_app_session(keyboard, DummyOutput()):
        keyboard.send_text(keys)
        read_one = prompt_reader(hints.append, history or InMemoryHistory())
        return [read_one() for _ in range(n)], hints


@pytest.mark.parametrize(
    ("keys", "lines", "hints"),
    [
        ("once\rupon\r", ["once", "upon"], []),
        (f"once{ALT_ENTER}upon\r", ["once\nupon"], []),
        ('"""once\rupon\r"""\r', ['"""once\nupon\n"""'], []),
        ("\x1b[200~once\nupon\n\x1b[201~a\r", ["once\nupon\na"], []),
        (f"once{CTRL_C}upon\r", ["upon"], [HINT]),
    ],
)
def test_keys_make_lines(keys, lines, hints):
    assert read(keys, len(lines)) == (lines, hints)


def test_commands_and_settings_complete():
    found = CommandCompleter().get_completions(Document("/set top"), CompleteEvent())
    assert [completion.text for completion in found] == ["top_k", "top_p"]


def test_history_is_kept_in_a_file_for_the_user_alone_or_else_in_memory(tmp_path):
    directory = tmp_path / "state"
    read("once\r", history=(history := open_history(directory)))
    assert list(open_history(directory).load_history_strings()) == ["once"]
    path = directory / "repl_history"
    assert [stat.S_IMODE(p.stat().st_mode) for p in (directory, path)] == [0o700, 0o600]
    directory.rename(tmp_path / "moved")
    history.append_string("upon")
    assert history.get_strings() == ["once", "upon"]


def test_keys_typed_during_an_answer_are_not_echoed_and_wait(monkeypatch):
    master, slave = os.openpty()
    with os.fdopen(slave) as keyboard:
        monkeypatch.setattr("sys.stdin", keyboard)
        with _without_echo():
            os.write(master, b"typed\n")
            assert not termios.tcgetattr(slave)[3] & termios.ECHO
        assert termios.tcgetattr(slave)[3] & termios.ECHO
        assert keyboard.readline() == "typed\n"
    os.close(master)


@dataclass
class Fingers:
    """Types lines, and then presses Ctrl-D."""

    lines: list[str]

    def __call__(self) -> str:
        if not self.lines:
            raise EOFError
        return self.lines.pop(0)


def test_ctrl_c_stops_the_answer_keeps_the_text_and_shows_what_it_cost(session, page, monkeypatch):
    def stream(pieces, heading):
        shown = [next(pieces) for _ in range(3)]
        page.answers.append("".join(shown))
        raise KeyboardInterrupt

    monkeypatch.setattr(page, "stream", stream)
    interactive_loop(session, Fingers(["a", "/more"]))
    assert page.answers == ["bcd", "efg"]
    assert session.turns[0].answers[0].cost.finish_reason is None
    assert page.messages[0].startswith("3 tokens")
    assert page.messages[1] == "stopped; /more continues"
    assert session.story("alpha") == "abcdefg"


def test_a_bug_does_not_end_the_conversation(session, page, monkeypatch):
    def broken(session, text):
        raise KeyError("nothing")

    monkeypatch.setattr("mlx_attn.repl.commands.handle_input", broken)
    interactive_loop(session, Fingers(["a", "x"]))
    assert page.messages == ["that failed (KeyError: 'nothing'); nothing is lost"] * 2


def test_ctrl_d_ends_the_conversation_and_nothing_is_read_after_quit(session, page):
    interactive_loop(session, Fingers([]))
    assert page.messages == []
    fingers = Fingers(["/quit", "a"])
    interactive_loop(session, fingers)
    assert fingers.lines == ["a"]


def test_a_pipe_holds_prompts_commands_and_blocks_which_its_end_closes(session, page):
    read_lines(session, ['"""a\n', "x"])
    assert session.turns[0].prompt == "a\nx"
    page.answers.clear()
    read_lines(session, ["/max 2\n", "\n", "a\n", '"""\n', "/x\n", '"""\n', "/quit\n", "b\n"])
    assert page.answers == ["bc", "yz"]


def test_answers_and_messages_are_shown_as_they_are_but_for_control_characters(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    screen = ConsoleScreen(at_terminal=True)
    screen.stream(iter(["[bold]:smile:\x1b ", "x" * 60]))
    screen.table([("/runs", "a\x1b[31m")])
    lines = "[bold]:smile:␛\n" + "x" * 40 + "\n" + "x" * 20 + "\n/runs  a␛[31m\n"
    assert capsys.readouterr().out == lines


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_a_text_that_comes_in_pieces_is_wrapped_between_words(size):
    family = "👩\u200d👩\u200d👧"  # one character of three
    story = f"Anna saw a rabbit\nand  said: 你好你好{family}你 ok"
    pieces = [story[start : start + size] for start in range(0, len(story), size)]
    wrap = WordWrap(10)
    lines = "".join([*map(wrap.push, pieces), wrap.rest()]).split("\n")
    assert lines == ["Anna saw a", "rabbit", "and  said:", f"你好你好{family}", "你 ok"]
