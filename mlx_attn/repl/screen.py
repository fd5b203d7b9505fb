"""A terminal or a pipe as the screen, the prompt, and the input loops."""

import sys
import termios
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion, WordCompleter
from prompt_toolkit.document import Document
from prompt_toolkit.enums import DEFAULT_BUFFER
from prompt_toolkit.filters import Condition, has_focus
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from rich.text import Text

from mlx_attn.errors import RunError
from mlx_attn.files import make_directory
from mlx_attn.repl import commands
from mlx_attn.repl.session import SETTINGS, Screen, Session, plain_name
from mlx_attn.runs import run_names
from mlx_attn.ui.terminal import (
    print_rows,
    print_stream,
    print_text,
    stderr_console,
    stdout_console,
)


class ConsoleScreen(Screen):
    """A console for answers, and one for everything else; at a terminal they are the same."""

    def __init__(self, at_terminal: bool):
        self._answers = stdout_console()
        self._messages = self._answers if at_terminal else stderr_console()

    def say(self, text: str, quiet: bool = False) -> None:
        print_text(Text(text, "dim" if quiet else ""), self._messages)

    def table(self, rows: Sequence[tuple[str, str]]) -> None:
        print_rows(rows, self._messages)

    def stream(self, texts: Iterator[str], heading: str = "") -> None:
        if heading:
            print_text(Text(f"[{heading}]", "bold"), self._answers)
        print_stream(texts, self._answers)

    def clear(self) -> None:
        self._answers.clear()


PROMPT = "> "
HINT = "Ctrl-D or /quit leaves"


def prompt_reader(hint: Callable[[str], None], history: History) -> Callable[[], str]:
    """Return a function that reads one prompt or command, and raises EOFError at Ctrl-D.

    Enter sends, but not inside an open block in triple quotes; Esc, Enter is a newline, as is
    Alt-Enter in terminals where Alt sends Esc; pasted newlines stay; a menu completes commands; the
    up arrow recalls earlier lines, Ctrl-R searches; Ctrl-C clears the line and says how to leave.
    """
    keys = KeyBindings()

    @keys.add("escape", "enter", filter=has_focus(DEFAULT_BUFFER))
    def newline(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    session: PromptSession[str] = PromptSession(
        PROMPT,
        multiline=Condition(lambda: commands.is_open(session.default_buffer.text)),
        prompt_continuation=" " * len(PROMPT),
        key_bindings=keys,
        history=history,
        completer=CommandCompleter(),
        complete_while_typing=True,
        enable_suspend=True,
    )

    def read() -> str:
        while True:
            try:
                return session.prompt()
            except KeyboardInterrupt:
                hint(HINT)

    return read


class CommandCompleter(Completer):
    """Completes commands, settings, and names of runs; never a prompt."""

    def get_completions(
        self, document: Document, complete_event: CompleteEvent
    ) -> Iterable[Completion]:
        """Yield completions of the word before the cursor."""
        line = document.text_before_cursor
        if not commands.is_command(line):
            return
        name, space, _ = line[1:].partition(" ")
        command = commands.COMMANDS.get(plain_name(name))
        takes = command.argument if command else ""
        words = _words(takes if space else None)
        completer = WordCompleter([*words], meta_dict=words, WORD=bool(space))
        yield from completer.get_completions(document, complete_event)


def _words(argument: str | None) -> dict[str, str]:
    """Return the words of an argument, or of a command's name, with their meanings."""
    settings = {name: key.metadata["help"] for name, key in SETTINGS.items()}
    if argument is None:
        words = {command.name: command.help for command in commands.COMMANDS.values()}
        return words | {plain_name(name): meaning for name, meaning in settings.items()}
    if "RUN" in argument:
        return dict.fromkeys(run_names(), "")
    return settings if "NAME" in argument else {}


def open_history(directory: Path) -> History:
    """Return earlier lines, from a file that only the user can read, or else in memory."""
    path = directory / "repl_history"
    try:
        make_directory(path.parent, mode=0o700)
        path.touch(mode=0o600)
        path.open("r+b").close()
    except (OSError, RunError):
        return InMemoryHistory()
    return _FileHistory(str(path))


class _FileHistory(FileHistory):
    def store_string(self, string: str) -> None:
        with suppress(OSError):  # a full disk loses the line, and not the conversation
            super().store_string(string)


def interactive_loop(session: Session, read: Callable[[], str]) -> None:
    """Hold a conversation at a terminal; Ctrl-C stops the answer and not the conversation."""
    while not session.over:
        try:
            text = read()
        except EOFError:
            return
        try:
            with _without_echo():
                commands.handle_input(session, text)
        except KeyboardInterrupt:
            session.screen.say("stopped; /more continues", quiet=True)
        except Exception as error:  # a bug of ours must not lose a conversation
            session.screen.say(f"that failed ({type(error).__name__}: {error}); nothing is lost")


@contextmanager
def _without_echo() -> Iterator[None]:
    """Let keys that are typed during an answer wait for the prompt, and not land in the answer."""
    if not sys.stdin.isatty():
        yield
        return
    before = termios.tcgetattr(sys.stdin)
    silent = [*before]
    silent[3] &= ~termios.ECHO
    termios.tcsetattr(sys.stdin, termios.TCSANOW, silent)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSANOW, before)


def read_lines(session: Session, lines: Iterable[str]) -> None:
    """Answer the prompts, commands and blocks in triple quotes that come through a pipe."""
    block = ""
    for line in lines:
        block += line
        if not commands.is_open(block):
            commands.handle_input(session, block.removesuffix("\n"))
            if session.over:
                return
            block = ""
    commands.handle_input(session, block)
