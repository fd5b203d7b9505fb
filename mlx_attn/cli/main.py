"""The command line: its group of lazily imported commands, its errors, and Ctrl-C."""

import importlib
import io
import keyword
import logging
import os
import re
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

import click

from mlx_attn.about import PREFIX, __version__
from mlx_attn.cli.output import say
from mlx_attn.errors import ConfigError, RunError, did_you_mean, one_line, printable

INTERRUPTED = 130  # exit code of a command that was interrupted

UNREAD = "mlx_attn.unread"  # key of a context: the exit code if the output is not read

_ENDING = (signal.SIGTERM, signal.SIGHUP)


@contextmanager
def graceful_interrupt(announce: Callable[[], None]) -> Iterator[Callable[[], bool]]:
    """Catch Ctrl-C, SIGTERM and a closed terminal; yield a function that returns True after one.

    The first is announced, and the second raises KeyboardInterrupt. Signals that the shell ignores
    stay ignored, such as the closed terminal under `nohup`.
    """
    signals: list[int] = []
    is_untold = False

    def note(number: int, frame: object) -> None:
        nonlocal is_untold
        signals.append(number)
        if len(signals) > 1:
            raise KeyboardInterrupt
        is_untold = True
        tell()

    def tell() -> None:
        nonlocal is_untold
        # A stream cannot be written to while it is being written to, as to a pipe that is full;
        # nor can a terminal that is closed.
        with suppress(RuntimeError, OSError):
            announce()
            is_untold = False

    def is_asked_to_end() -> bool:
        if is_untold:
            tell()
        return bool(signals)

    with _handled((signal.SIGINT, *_ENDING), note):
        yield is_asked_to_end


class OutOfTime(BaseException):
    """The time that `signals_interrupt` gives is over."""


@contextmanager
def signals_interrupt(seconds: float = 0) -> Iterator[None]:
    """Let SIGTERM and a closed terminal raise KeyboardInterrupt for a while, as Ctrl-C does.

    After `seconds`, unless they are 0, OutOfTime is raised.
    """

    def interrupt(number: int, frame: object) -> None:
        raise OutOfTime if number == signal.SIGALRM else KeyboardInterrupt

    with _handled((signal.SIGINT, *_ENDING, signal.SIGALRM), interrupt):
        signal.setitimer(signal.ITIMER_REAL, seconds)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)


@contextmanager
def _handled(signals: Sequence[int], handler: Callable[[int, Any], None]) -> Iterator[None]:
    heard = [number for number in signals if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, handler) for number in heard}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


GROUPS: dict[str, dict[str, str]] = {
    "Make": {
        "demo": "See what this is about in three minutes: train, compare, look.",
        "train": "Train a tiny GPT with any attention.",
        "data": "Show, fetch and generate the texts to train on.",
    },
    "Look": {
        "sample": "Continue a prompt with a trained model.",
        "repl": "Talk to a trained model.",
        "open": "Open a page that runs a trained model, step by step.",
        "loss": "Measure the loss of a trained model on any text.",
        "probe": "Show each head's attention and matrices in numbers.",
        "runs": "List what was trained, with its loss.",
    },
    "Compare": {
        "variants": "Show what each variant computes and costs.",
        "compare": "Say which form of attention is better, with error bars.",
        "answers": "Say what was measured about each part of attention, and how to ask again.",
        "bench": "Measure the speed and memory of every variant.",
    },
    "Move": {
        "convert": "Write a trained model in another form of attention, and measure the error.",
        "export": "Write a trained model for mlx-lm, transformers or the book.",
        "import": "Make a run of a checkpoint of the book, GPT-2 or nanoGPT.",
    },
    "Check": {
        "verify": "Say whether this machine computes the right thing.",
        "info": "Show the machine, the versions, and the fast paths available here.",
    },
}
"""Every command and its one line of help, by what it is for."""

COMMANDS = {name: line for rows in GROUPS.values() for name, line in rows.items()}
"""The module of the same name holds the command; a keyword's ends with an underscore."""

_NAME = "mlx-attn"
_ALIASES = {"chat": "repl"}
_FLAGS = {"train": "--variant", "compare": "--variants", "bench": "--variants"}
"""What a bare name is meant for."""
_NAMES = (*COMMANDS, *_ALIASES, "--help")
"""What an unknown command may be meant for."""
_CONTEXT: dict[str, Any] = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


class LazyGroup(click.Group):
    """A group whose commands are imported when they run, so that `--help` is quick."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return all names, in the order of the help."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command of that name."""
        name = _ALIASES.get(cmd_name, cmd_name)
        if name not in COMMANDS:
            return None
        from mlx_attn.cli.options import takes_device

        underscore = "_" if keyword.iskeyword(name) else ""
        module = importlib.import_module(f"mlx_attn.cli.{name}{underscore}")
        return takes_device(module.command)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that the arguments name; an error suggests the nearest name."""
        ctx.meta[_NAME], name = args, _ALIASES.get(args[0], args[0])
        if name not in COMMANDS and not name.startswith("-"):
            raise click.UsageError(f"unknown command '{args[0]}'{did_you_mean(name, _NAMES)}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands' lines of help, without importing them."""
        width = max(map(len, COMMANDS))
        for heading, rows in GROUPS.items():
            with formatter.section(heading):
                formatter.write_dl([(name.ljust(width), line) for name, line in rows.items()])

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; end in silence if the reader of its output, such as `head`, is gone."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            from mlx_attn.ui.terminal import discard_unread

            discard_unread()
            ctx.exit(ctx.meta.get(UNREAD, 0))

    def main(self, *args: Any, **extra: Any) -> Any:
        """Run the command line and exit; an error is one line, an interruption exits with 130."""
        logger = logging.getLogger("mlx_attn")
        logger.setLevel(logging.INFO)
        logger.handlers = [logging.StreamHandler()]  # to stderr: a library logs, and does not print
        try:
            code = super().main(*args, **extra, standalone_mode=False)
        except click.exceptions.NoArgsIsHelpError as error:
            error.show()
            sys.exit(error.exit_code)
        except click.Abort:
            sys.exit(INTERRUPTED)
        except (Exception, SystemExit) as error:  # a user's code may end the process
            line, code = _expected(error)
            if not line or getattr(error, "code", None) == INTERRUPTED:
                raise
            say(f"Error: {one_line(line.rstrip().rstrip('.'))}", err=True)
            _drop_unwritable()
        sys.exit(code if isinstance(code, int) else 0)


def _drop_unwritable() -> None:
    """Drop results that a full disk does not take: Python would try again, and exit with 120."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _usage(error: click.ClickException) -> str:
    """Return the line for a mistake on the command line, with the flag that a bare name needs."""
    line, more = error.format_message().rstrip(".\n "), ""
    context = error.ctx if isinstance(error, click.UsageError) else None
    if context:
        flag, extra = _FLAGS.get(context.info_name or ""), re.search(r"unexpected.+\((.+)\)", line)
        if type(error) is click.UsageError and "#" in context.meta.get(_NAME, ()):
            more = "; zsh passes comments on: 'setopt interactive_comments' ends that"
        elif flag and extra:
            names = extra[1].split()
            if Path(names[0]).exists():
                flag = "--data"
            elif context.info_name == "compare":
                names = [*dict.fromkeys(["standard", *names])]  # the first is the control
            more = f": write {flag} {','.join(names) if flag == '--variants' else names[0]}"
        more += f" (see '{context.command_path} --help')"
    return line + more


def _expected(error: BaseException) -> tuple[str, int]:
    """Return the line for a failure that is not a bug, and the exit code; "" for a bug."""
    match error:
        case click.ClickException():
            return _usage(error), error.exit_code
        case ConfigError():
            return str(error), 2
        case RunError():
            return str(error), 1
        case MemoryError() | OverflowError():  # MLX counts sizes in 32 bits
            return "out of memory: use smaller sizes", 1
        case OSError():
            return f"{error.filename or 'reading or writing failed'}: {error.strerror or error}", 1
        case RuntimeError() | ImportError():
            from mlx_attn.machine.advice import advice_about

            if line := advice_about(error):
                return line, 1
    plugins = sys.modules.get("mlx_attn.plugins")  # without a loaded plugin none can fail
    return plugins.plugin_error(error) if plugins else "", 1


@click.group(_NAME, cls=LazyGroup, context_settings=_CONTEXT, no_args_is_help=True)
@click.version_option(__version__, "-V", "--version", message=f"{_NAME} %(version)s")
@click.pass_context
def group(ctx: click.Context) -> None:
    """An attention laboratory: train a tiny GPT while one part of its attention is changed."""
    if os.environ.get("NO_COLOR"):
        ctx.color = False
    if any(name.startswith(PREFIX) for name in os.environ):
        from mlx_attn.cli.options import check_environment

        check_environment()


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line on these arguments, or the process's own, and exit."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the shell, as by `<&-`: an empty file instead
            setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w"))  # noqa: SIM115, PTH123
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A terminal that cannot show a character shows a question mark instead.
        sys.stdout.reconfigure(errors="replace")
    warnings.formatwarning = lambda message, *_, **__: printable(f"Warning: {message}\n")
    try:
        with _handled((signal.SIGINT, *_ENDING), _interrupt):
            group.main(arguments, prog_name=_NAME)
    except KeyboardInterrupt:  # before a command has begun, or after it has ended
        sys.exit(INTERRUPTED)


def _interrupt(number: int, frame: FrameType | None) -> None:
    """End the command; end the process where an import or plugin would lose that, or be broken."""
    while frame:
        if frame.f_code.co_filename.endswith(("importlib._bootstrap>", "mlx_attn/plugins.py")):
            os._exit(INTERRUPTED)
        frame = frame.f_back
    # After Ctrl-C, and nothing else, a conversation goes on.
    raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(INTERRUPTED)
