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

ALT_ENTER, CTRL_C = "\x1b\r", "\x03"


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
)
def test_keys_make_lines(keys, lines, hints):
    assert read(keys, len(lines)) == (lines, hints)


def test_commands_and_settings_complete():
    found = CommandCompleter().get_completions(Document("/set top"), CompleteEvent())
    assert [completion.text for completion in found] == ["top_k", "top_p"]


def test_history_is_kept_in_a_file_for_the_user_alone(tmp_path):
    directory = tmp_path / "state"
    read("once\r", history=open_history(directory))
    assert list(open_history(directory).load_history_strings()) == ["once"]
    path = directory / "repl_history"
    assert [stat.S_IMODE(p.stat().st_mode) for p in (directory, path)] == [0o700, 0o600]
