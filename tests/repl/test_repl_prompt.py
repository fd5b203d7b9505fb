import stat

import pytest
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput

from mlx_attn.repl.screen import (
    HINT,
    CommandCompleter,
    Prompt,
    open_history,
)

ALT_ENTER, CTRL_C, CTRL_D = "\x1b\r", "\x03", "\x04"


def read(keys: str, n: int = 1, history=None) -> tuple[list[str], list[str]]:
    """What n prompts give for these keys, and the hints that were shown."""
    hints: list[str] = []
    with create_pipe_input() as keyboard:
        keyboard.send_text(keys)
        prompt = Prompt(hints.append, history, keyboard, DummyOutput())
        return [prompt.read() for _ in range(n)], hints


@pytest.mark.parametrize(
    ("keys", "lines", "hints"),
    [
        ("once\rupon\r", ["once", "upon"], []),
        (f"once{ALT_ENTER}upon\r", ["once\nupon"], []),
        ('"""once\rupon\r"""\r', ['"""once\nupon\n"""'], []),
        ("\x1b[200~once\nupon\n\x1b[201~a\r", ["once\nupon\na"], []),
        (f"once{CTRL_C}upon\r", ["upon"], [HINT]),
    ],
    ids=[
        *("enter sends", "alt-enter is a newline", "so is enter in an open block"),
        *("pasted newlines stay", "Ctrl-C clears the line and tells how to leave"),
    ],
)
def test_keys_make_lines(keys, lines, hints):
    assert read(keys, len(lines)) == (lines, hints)


def test_ctrl_d_on_an_empty_line_is_the_end():
    with pytest.raises(EOFError):
        read(CTRL_D)


def completed(line: str) -> list[str]:
    found = CommandCompleter().get_completions(Document(line), CompleteEvent())
    return [line[: len(line) + c.start_position] + c.text for c in found]


def test_commands_and_settings_complete():
    assert completed("/te") == ["/temp"]
    assert completed("/set top") == ["/set top_k", "/set top_p"]


@pytest.mark.parametrize("line", ["", "re", "//re", "a /re", "/re\n/re", "/retry x", "/nothing x"])
def test_nothing_else_completes(line):
    assert completed(line) == []


def test_history_is_kept_in_a_file_for_the_user_alone(tmp_path):
    directory = tmp_path / "state"
    read("once\r", history=open_history(directory))
    assert list(open_history(directory).load_history_strings()) == ["once"]
    path = directory / "repl_history"
    assert [stat.S_IMODE(p.stat().st_mode) for p in (directory, path)] == [0o700, 0o600]
