"""One line after the other, from a terminal or from a pipe, until the end."""

from collections.abc import Callable, Iterable

from mlx_attn.show.repl.commands import is_open, take
from mlx_attn.show.repl.session import Session


def converse(session: Session, read: Callable[[], str]) -> None:
    """A conversation at a terminal: Ctrl-C stops the answer and not the conversation.

    Args:
        session: Who speaks, and where it is shown.
        read: What is typed next; raises EOFError at the end.
    """
    while not session.over:
        try:
            take(session, read())
        except KeyboardInterrupt:
            session.screen.note("stopped; /more goes on")
        except EOFError:
            return


def read_lines(session: Session, lines: Iterable[str]) -> None:
    """A conversation from a pipe: one prompt, command or block in triple quotes after the other.

    Raises:
        KeyboardInterrupt: Ctrl-C was pressed; it ends everything.
    """
    for text in _blocks(lines):
        take(session, text)
        if session.over:
            return


def _blocks(lines: Iterable[str]) -> Iterable[str]:
    """Lines without their ends, those of an open block joined."""
    block = ""
    for line in lines:
        block += line
        if not is_open(block):
            yield block.removesuffix("\n")
            block = ""
    if block:
        yield block
