"""The table of commands, and what a typed line means.

A base model goes on from any text, so a bare word is never a command: commands begin with a slash
and are one line; `//` says a slash; a block in triple quotes is always said.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from mlx_attn.errors import ConfigError, RunError, nearest
from mlx_attn.model import model_cost
from mlx_attn.sampling import Voice
from mlx_attn.show.repl.session import Session
from mlx_attn.show.repl.settings import (
    SETTINGS,
    Setting,
    change,
    find_setting,
    plain_name,
    shown,
)
from mlx_attn.show.repl.transcript import load_transcript

QUOTES = '"""'


@dataclass(frozen=True, slots=True)
class Command:
    """One row of the table of commands.

    Attributes:
        name: How it is typed, without the slash.
        help: What it does.
        run: Does it, given what was typed after the name.
        argument: What may be typed after the name.
        required: Whether it must be.
        completes: What the tab key offers after the name.
    """

    name: str
    help: str
    run: Callable[[Session, str], None]
    argument: str = ""
    required: bool = False
    completes: Literal["", "setting", "run", "file"] = ""

    @property
    def usage(self) -> str:
        """The command as typed."""
        return f"/{self.name} {self.argument}".strip()


def take(session: Session, text: str) -> None:
    """Do what a typed text says: a command, or a prompt to go on from. Nothing is for nothing.

    Expected failures become messages.
    """
    try:
        if is_command(text):
            _command(session, text[1:])
        elif text.strip():
            session.ask(said(text))
    except (ConfigError, RunError) as error:
        session.screen.say(" ".join(str(error).split()))


def greet(session: Session) -> None:
    """Say who answers, and how to find the rest."""
    session.screen.table(_facts(session.voice))
    session.screen.note("Type a text to go on from; /help shows the commands.")


def is_command(text: str) -> bool:
    """Whether a text is a command and not a prompt."""
    return text.startswith("/") and not text.startswith("//") and "\n" not in text


def said(text: str) -> str:
    """The prompt that a text stands for; quotes on lines of their own leave no empty lines."""
    if text.startswith(QUOTES):
        inside = text.removeprefix(QUOTES).rstrip().removesuffix(QUOTES)
        return inside.removeprefix("\n").removesuffix("\n")
    return text[1:] if text.startswith("//") else text


def is_open(text: str) -> bool:
    """Whether a text is a block in triple quotes whose end has not come."""
    inside = text.removeprefix(QUOTES)
    return inside != text and not inside.rstrip().endswith(QUOTES)


def _command(session: Session, line: str) -> None:
    name, _, argument = line.partition(" ")
    plain, argument = ALIASES.get(name, plain_name(name)), argument.strip()
    if plain in SETTINGS:
        _set(session, f"{name} {argument}")
    elif plain not in COMMANDS:
        known = [f"/{name}" for name in (*COMMANDS, *SETTINGS)]
        raise ConfigError(f"unknown command '/{name}'{nearest(f'/{name}', known)}")
    elif COMMANDS[plain].required and not argument:
        raise ConfigError(f"usage: {COMMANDS[plain].usage}")
    else:
        COMMANDS[plain].run(session, argument)


def _help(session: Session, argument: str) -> None:
    session.screen.say("Type a text, and the model goes on from it. Only that text is read.")
    session.screen.table([(command.usage, command.help) for command in COMMANDS.values()])
    session.screen.say("Settings, for /set NAME VALUE or short /temp 0.5, /topk 40, ...:")
    session.screen.table([(setting.name, setting.help) for setting in SETTINGS.values()])
    session.screen.say(
        'Start a block of several lines with """ and end it with """, or press Alt-Enter for a '
        "new line. A prompt that starts with a slash is typed with two."
    )


def _set(session: Session, argument: str) -> None:
    name, _, value = argument.replace("=", " ", 1).partition(" ")
    if value.strip():
        session.settings = change(session.settings, name, value.strip())
    _tell(session, [find_setting(name)] if name else list(SETTINGS.values()))


def _tell(session: Session, settings: list[Setting]) -> None:
    session.screen.table([(row.name, shown(session.settings, row)) for row in settings])


def _more(session: Session, argument: str) -> None:
    if not session.transcript.turns:
        raise ConfigError("there is no text to go on with yet: type one")
    session.ask(argument, follows=True)


def _retry(session: Session, argument: str) -> None:
    session.retry()


def _undo(session: Session, argument: str) -> None:
    session.screen.say(f"forgot '{_short(session.undo().prompt)}'")


def _reset(session: Session, argument: str) -> None:
    session.transcript.turns.clear()
    session.screen.say("forgot everything that was said; settings and runs stay")


def _save(session: Session, argument: str) -> None:
    path = Path(argument).expanduser().absolute()
    if path.exists() and path not in session.written:
        raise RunError(f"{argument} exists: choose another name, or delete it first")
    session.transcript.save(path)
    session.written.add(path)
    session.screen.say(f"saved {_turns(session)} to {argument}")


def _load(session: Session, argument: str) -> None:
    session.transcript = load_transcript(Path(argument).expanduser())
    session.screen.say(f"loaded {_turns(session)}; /more goes on with the last")


def _model(session: Session, argument: str) -> None:
    if argument:
        session.voice = _other(session.rival, session.open_voice(argument))
    _tell_voices(session)


def _vs(session: Session, argument: str) -> None:
    if argument == "off":
        session.rival = None
    elif argument:
        session.rival = _other(session.voice, session.open_voice(argument))
    _tell_voices(session)


def _tell_voices(session: Session) -> None:
    rival = f" against {session.rival.name}" if session.rival else ""
    session.screen.say(f"{session.voice.name} answers{rival}")


def _other(present: Voice | None, wanted: Voice) -> Voice:
    if present and wanted.name == present.name:
        raise ConfigError(f"{wanted.name} answers already: name another run")
    return wanted


def _info(session: Session, argument: str) -> None:
    for voice in session.voices:
        session.screen.table(_facts(voice))
    _tell(session, list(SETTINGS.values()))


def _facts(voice: Voice) -> list[tuple[str, str]]:
    config, settings = voice.model.config, voice.run.settings
    cost = model_cost(config)
    maps = f"score {config.score}, value {config.value}, output {config.output}"
    sizes = f"{config.n_layers} layers, {config.n_heads} heads, {config.emb_dim} wide"
    return [
        ("run", str(voice.run.path)),
        ("variant", f"{settings.get('variant', 'custom')} ({maps}, position {config.position})"),
        ("model", f"{cost.parameters:,} parameters, {sizes}"),
        ("context", f"{config.context_length} tokens"),
        ("vocabulary", f"{config.vocab_size} tokens ({voice.tokenizer.kind})"),
    ]


def _quit(session: Session, argument: str) -> None:
    session.over = True


def _short(text: str, width: int = 30) -> str:
    line = " ".join(text.split())
    return line if len(line) <= width else f"{line[: width - 3]}..."


def _turns(session: Session) -> str:
    n = len(session.transcript.turns)
    return f"{n} turn{'' if n == 1 else 's'}"


_ROWS = (
    Command("help", "show this", _help),
    Command("set", "show or change settings", _set, "[NAME [VALUE]]", completes="setting"),
    Command("more", "go on with the text so far, and TEXT after it", _more, "[TEXT]"),
    Command("retry", "answer the last prompt again, with another seed", _retry),
    Command("undo", "forget the last prompt and its answer", _undo),
    Command("reset", "forget all that was said", _reset),
    Command("save", "keep what was said (.json loads again)", _save, "FILE", True, "file"),
    Command("load", "go back to what was saved", _load, "FILE", True, "file"),
    Command("model", "let another run answer", _model, "RUN", completes="run"),
    Command("vs", "let a second run answer too; off ends it", _vs, "RUN|off", completes="run"),
    Command("info", "show the run and the settings", _info),
    Command("quit", "leave (or Ctrl-D)", _quit),
)

COMMANDS: dict[str, Command] = {row.name: row for row in _ROWS}
"""All commands, by name."""

ALIASES = {"?": "help", "h": "help", "q": "quit", "exit": "quit", "bye": "quit"}
"""What else people type."""
