"""A terminal or a pipe as the screen, the prompt, and the input loops."""

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter
from prompt_toolkit.document import Document
from prompt_toolkit.enums import DEFAULT_BUFFER
from prompt_toolkit.filters import has_focus
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.input import Input
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.output import Output
from rich.console import Console
from rich.table import Table
from rich.text import Text

from mlx_attn.errors import RunError, printable
from mlx_attn.files import make_directory
from mlx_attn.machine.facts import user_directory
from mlx_attn.repl import commands
from mlx_attn.repl.session import SETTINGS, Screen, Session, plain_name
from mlx_attn.run_directory import open_run
from mlx_attn.runs import RUNS, run_names
from mlx_attn.ui.terminal import WordWrap


class TerminalScreen(Screen):
    """A terminal, of any width; without colour or weight where NO_COLOR is set."""

    def __init__(self, console: Console):
        self._console = console
        self._line_is_open = False

    def say(self, text: str) -> None:
        self._print(text)

    def note(self, text: str) -> None:
        self._print(text, "dim")

    def table(self, rows: Sequence[tuple[str, str]]) -> None:
        grid = Table.grid(padding=(0, 2, 0, 0))
        for name, meaning in rows:
            grid.add_row(Text(name), Text(meaning))
        self._console.print(grid)

    def heading(self, text: str) -> None:
        self._print(text, "bold")

    def stream(self, texts: Iterator[str]) -> None:
        """Show a text as it comes, word by word: a line ends between two of them."""
        wrap = WordWrap(self._console.width)
        self._line_is_open = True
        try:
            for text in texts:
                self._console.out(wrap.push(printable(text)), end="", highlight=False)
        finally:
            self._console.out(wrap.rest(), end="", highlight=False)
            self._end_line()

    def clear(self) -> None:
        """Clear the terminal."""
        self._console.clear()

    def _end_line(self) -> None:
        """End the line of an answer, if that has not been done: Ctrl-C may have come in between."""
        if self._line_is_open:
            self._line_is_open = False
            self._console.out()

    def _print(self, text: str, style: str = "") -> None:
        self._end_line()
        self._console.print(Text(text, style))


def terminal_screen() -> TerminalScreen:
    """Return the screen of this process's terminal."""
    plain = bool(os.environ.get("NO_COLOR"))
    return TerminalScreen(Console(color_system=None if plain else "auto", highlight=False))


PROMPT = "> "
HINT = "Ctrl-D or /quit leaves"


class Prompt:
    """The input line: one prompt or command at a time.

    Enter sends, but not inside an open block in triple quotes; Alt-Enter is a newline; pasted
    newlines stay; a menu completes commands; the up arrow and Ctrl-R search earlier lines.
    """

    def __init__(
        self,
        hint: Callable[[str], None],
        history: History | None = None,
        input: Input | None = None,
        output: Output | None = None,
    ):
        self._hint = hint
        self._session: PromptSession[str] = PromptSession(
            PROMPT,
            multiline=True,
            prompt_continuation=" " * len(PROMPT),
            key_bindings=_keys(),
            history=history or InMemoryHistory(),
            completer=CommandCompleter(),
            complete_while_typing=True,
            enable_suspend=True,
            input=input,
            output=output,
        )

    def read(self) -> str:
        """Return the next input; Ctrl-C clears the line and explains how to leave.

        Raises:
            EOFError: Ctrl-D was pressed on an empty line.
        """
        while True:
            try:
                return self._session.prompt()
            except KeyboardInterrupt:
                self._hint(HINT)


def _keys() -> KeyBindings:
    keys, typing = KeyBindings(), has_focus(DEFAULT_BUFFER)

    @keys.add("enter", filter=typing)
    def enter(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if commands.is_open(buffer.text):
            buffer.insert_text("\n")
        else:
            buffer.validate_and_handle()

    @keys.add("escape", "enter", filter=typing)
    def newline(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    return keys


class CommandCompleter(Completer):
    """Completes commands, settings, names of runs and of files; never a prompt."""

    def __init__(self):
        self._paths = PathCompleter(expanduser=True)

    def get_completions(
        self, document: Document, complete_event: CompleteEvent
    ) -> Iterable[Completion]:
        """Yield completions of the word before the cursor."""
        line = document.text_before_cursor
        if not commands.is_command(line):
            return
        name, space, argument = line[1:].partition(" ")
        command = commands.COMMANDS.get(plain_name(name))
        if not space:
            yield from _beginning(name, _command_words())
        elif command and command.completes == "file":
            # No file has a name with a NUL in it, and no folder may be listed without permission.
            with contextlib.suppress(OSError, ValueError):
                yield from self._paths.get_completions(Document(argument), complete_event)
        else:
            yield from _beginning(argument, _WORDS[command.completes if command else ""]())


def _setting_words() -> dict[str, str]:
    return {name: key.metadata["help"] for name, key in SETTINGS.items()}


def _command_words() -> dict[str, str]:
    words = {command.name: command.help for command in commands.COMMANDS.values()}
    return words | {plain_name(name): help for name, help in _setting_words().items()}


@lru_cache
def _variant_of(run: str) -> str:
    """Return the variant of a run; "" if it cannot be read."""
    try:
        return str(open_run(RUNS / run).settings.get("variant", "custom"))
    except RunError:
        return ""


_WORDS: dict[str, Callable[[], dict[str, str]]] = {
    "": dict,
    "setting": _setting_words,
    "run": lambda: {name: _variant_of(name) for name in run_names()},
}
"""What a word of each kind may be, and what the menu says of it."""


def _beginning(typed: str, words: Mapping[str, str]) -> Iterable[Completion]:
    return (
        Completion(word, -len(typed), display_meta=meta)
        for word, meta in words.items()
        if word.startswith(typed)
    )


class ForgivingHistory(FileHistory):
    """A history in a file, which does without when the disk is full or a text is not UTF-8."""

    def store_string(self, string: str) -> None:
        """Write a line if possible."""
        with contextlib.suppress(OSError, UnicodeError):
            super().store_string(string)


def open_history(directory: Path | None = None) -> History:
    """Earlier lines, in a file that only the user can read; in memory where that cannot be."""
    directory = directory or user_directory("state")
    path = directory / "repl_history"
    try:
        make_directory(directory, mode=0o700)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        with os.fdopen(descriptor):
            os.fchmod(descriptor, 0o600)
    except (OSError, RunError):
        return InMemoryHistory()
    return ForgivingHistory(str(path))


def interactive_loop(session: Session, read: Callable[[], str]) -> None:
    """A conversation at a terminal: Ctrl-C stops the answer and not the conversation."""
    while not session.over:
        try:
            text = read()
        except EOFError:
            return
        try:
            commands.handle_input(session, text)
        except KeyboardInterrupt:
            session.screen.note("stopped; /more continues")
        except Exception as error:  # a bug of ours must not lose a conversation
            session.screen.say(f"that failed ({type(error).__name__}: {error}); nothing is lost")


def read_lines(session: Session, lines: Iterable[str]) -> None:
    """A conversation from a pipe: one prompt, command or block in triple quotes after the other."""
    for text in _blocks(lines):
        commands.handle_input(session, text)
        if session.over:
            return


def _blocks(lines: Iterable[str]) -> Iterable[str]:
    """Yield lines without their ends, and the lines of an open block as one."""
    block = ""
    for line in lines:
        block += line
        if not commands.is_open(block):
            yield block.removesuffix("\n")
            block = ""
    if block:
        yield block
