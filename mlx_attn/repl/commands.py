"""The commands of the REPL: one table, and the input that runs them."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from mlx_attn.cost import model_cost
from mlx_attn.errors import ConfigError, RunError, did_you_mean, one_line
from mlx_attn.keys import from_text, keys_of
from mlx_attn.repl.session import SETTINGS, Session, Settings, plain_name
from mlx_attn.runs import LoadedRun, load_run

_QUOTES = '"""'
_BARE = ("help", "exit", "quit", "?")
"""Words that people type for a command, and seldom for a text to continue."""


def handle_input(session: Session, text: str) -> None:
    """Run a command, or answer a prompt; blank input does nothing. Failures become messages."""
    try:
        if is_command(text):
            _run_command(session, text[1:])
        elif (word := text.strip().lower()) in _BARE:
            quoted = f"{_QUOTES}{word}{_QUOTES}"
            session.screen.say(f"commands start with /: /{word}; for the word itself type {quoted}")
        elif text.strip():
            session.ask(_parse_prompt(text))
    except (ConfigError, RunError) as error:
        session.screen.say(one_line(error))
    except OSError as error:
        if not error.filename:  # the answers themselves cannot be written, or nobody reads them
            raise
        session.screen.say(f"{error.filename}: {error.strerror}")


def print_banner(session: Session) -> None:
    """Show the run that answers, and how to find the rest."""
    session.screen.table(_facts(session.run))
    such_as = ", such as One rainy day" if session.run.run.corpus == "tales" else ""
    hint = f"Type a text to continue{such_as}; /help lists the commands."
    session.screen.say(hint, quiet=True)


def is_command(text: str) -> bool:
    """Return True if a text is a command and not a prompt."""
    return text.startswith("/") and not text.startswith("//") and "\n" not in text


def _parse_prompt(text: str) -> str:
    """Return the prompt without its quotes or doubled slash, and without lines of only quotes."""
    if text.startswith(_QUOTES):
        inside = text.removeprefix(_QUOTES).rstrip().removesuffix(_QUOTES)
        return inside.removeprefix("\n").removesuffix("\n")
    return text[1:] if text.startswith("//") else text


def is_open(text: str) -> bool:
    """Return True if a text is a block in triple quotes that is still open."""
    inside = text.removeprefix(_QUOTES)
    return inside != text and not inside.rstrip().endswith(_QUOTES)


@dataclass(frozen=True, slots=True)
class Command:
    """A command."""

    name: str  # without the slash
    help: str  # one line
    run: Callable[[Session, str], None]  # called with the session and the text after the name
    argument: str = ""
    needs_text: bool = False  # whether there must be a text that it is about


def _run_command(session: Session, line: str) -> None:
    name, _, argument = line.partition(" ")
    plain, argument = ALIASES.get(name, plain_name(name)), argument.strip()
    if plain.partition("=")[0] in map(plain_name, SETTINGS):
        _set(session, f"{name} {argument}")
    elif plain not in COMMANDS:
        names = [f"/{name}" for name in (*COMMANDS, *map(plain_name, SETTINGS))]
        raise ConfigError(f"unknown command '/{name}'{did_you_mean(f'/{name}', names)}")
    elif COMMANDS[plain].needs_text and not session.turns:
        raise ConfigError("there is no text to continue yet: type one")
    else:
        COMMANDS[plain].run(session, argument)


def _help(session: Session, argument: str) -> None:
    session.screen.say("Type a text, and the model continues it. Earlier texts are not read.")
    rows = [(f"/{row.name} {row.argument}".strip(), row.help) for row in COMMANDS.values()]
    session.screen.table(rows)
    session.screen.say("Settings, for /set NAME VALUE or short /temp 0.5, /topk 40, ...:")
    session.screen.table([(name, key.metadata["help"]) for name, key in SETTINGS.items()])
    session.screen.say(
        'Start a block of several lines with """ and end it with """, or press Esc, Enter for a '
        "new line. A prompt that starts with a slash is typed with two."
    )


def _set(session: Session, argument: str) -> None:
    name, _, value = argument.replace("=", " ", 1).partition(" ")
    # top_k, top-k and TopK are the same.
    names = [one for one in SETTINGS if not name or plain_name(one) == plain_name(name)]
    if not names:
        raise ConfigError(f"unknown setting '{name}'{did_you_mean(name, SETTINGS)}")
    if value.strip():
        changed = {SETTINGS[names[0]].name: _parse_setting(names[0], value.strip())}
        session.settings = replace(session.settings, **changed)
    _show_settings(session, names)


def _parse_setting(name: str, text: str) -> Any:
    """Return the value that was typed for a setting, of the type of its default."""
    default = SETTINGS[name].default
    if default in (None, ()) and text.lower() in ("none", "random"):
        return default
    if default == ():
        return (text.replace("\\n", "\n"),)
    return from_text(name, text, {name: keys_of(Settings)[SETTINGS[name].name]})


def _shown_setting(value: Any) -> str:
    """Return a setting's value, as it would be typed."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if value is None or value == ():
        return "none"
    if isinstance(value, tuple):
        return " ".join(repr(stop)[1:-1] for stop in value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def _show_settings(session: Session, names: Iterable[str]) -> None:
    values = ((name, getattr(session.settings, SETTINGS[name].name)) for name in names)
    session.screen.table([(name, _shown_setting(value)) for name, value in values])


def _more(session: Session, argument: str) -> None:
    session.ask(argument, follows=True)


def _retry(session: Session, argument: str) -> None:
    turn = session.turns[-1]
    session.ask(turn.prompt, turn.follows, turn.attempt + 1)


def _reset(session: Session, argument: str) -> None:
    session.turns.clear()
    session.screen.say("forgot the conversation; settings and runs stay")


def _attn(session: Session, argument: str) -> None:
    path = session.make_page(session.runs, session.story(session.run.name))
    session.screen.say(f"what the heads attend to in the last text: {path}")


def _runs(session: Session, argument: str) -> None:
    rows = session.list_runs()
    session.numbered = [name for name, _ in rows]
    if rows:
        session.screen.table([(f"{n:<2} {name}", facts) for n, (name, facts) in enumerate(rows, 1)])
    _say_who_answers(session)


def _model(session: Session, argument: str) -> None:
    if not argument:
        _runs(session, argument)
        return
    session.run = _find(session, argument, session.other_run)
    _say_who_answers(session)


def _vs(session: Session, argument: str) -> None:
    if argument.lower() == "off":
        session.other_run = None
    elif argument:
        session.other_run = _find(session, argument, session.run)
    _say_who_answers(session)


def _find(session: Session, name: str, present: LoadedRun | None) -> LoadedRun:
    """Return another run than the present one, by name or by its number in the list."""
    names = session.numbered or [name for name, _ in session.list_runs()]
    is_number = name.isdecimal() and 1 <= int(name) <= len(names)
    run = load_run(names[int(name) - 1] if is_number else name)
    if present and run.name == present.name:
        raise ConfigError(f"{run.name} answers already: name another run")
    return run


def _say_who_answers(session: Session) -> None:
    against = f" against {session.other_run.name}" if session.other_run else ""
    session.screen.say(f"{session.run.name} answers{against}")


def _info(session: Session, argument: str) -> None:
    for run in session.runs:
        session.screen.table(_facts(run))
    _show_settings(session, SETTINGS)


def _facts(loaded: LoadedRun) -> list[tuple[str, str]]:
    config, settings = loaded.model.config, loaded.run.settings
    maps = f"score {config.score}, value {config.value}, output {config.output}"
    maps = f"layers {config.pattern}" if config.pattern else maps
    return [
        ("run", str(loaded.run.path)),
        ("variant", f"{settings.get('variant', 'custom')} ({maps}, position {config.position})"),
        ("model", f"{model_cost(config).parameters:,} parameters, {config.sizes}"),
        ("vocabulary", f"{config.vocab_size:,} tokens ({loaded.tokenizer.kind})"),
    ]


def _quit(session: Session, argument: str) -> None:
    session.over = True


COMMANDS: dict[str, Command] = {
    row.name: row
    for row in (
        Command("help", "show this", _help),
        Command("set", "show or change settings", _set, "[NAME [VALUE]]"),
        Command("more", "continue the text so far, with TEXT added to it", _more, "[TEXT]", True),
        Command("retry", "answer the last prompt again, with another seed", _retry, "", True),
        Command("attn", "what the heads attend to in the last text, as a page", _attn, "", True),
        Command("clear", "clear the screen", lambda session, _: session.screen.clear()),
        Command("reset", "forget the conversation", _reset),
        Command("runs", "list the runs, numbered", _runs),
        Command("model", "let another run answer: a name or a number", _model, "[RUN]"),
        Command("vs", "let a second run answer too; off ends it", _vs, "RUN|off"),
        Command("info", "show the run and the settings", _info),
        Command("quit", "leave (or Ctrl-D)", _quit),
    )
}
"""All commands, by name."""

ALIASES = {"?": "help", "h": "help", "q": "quit", "exit": "quit", "bye": "quit"}
"""What else people type."""
