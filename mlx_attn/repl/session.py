"""The settings of a session, and how each is typed."""

import json
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

from mlx_attn.errors import ConfigError, RunError, did_you_mean
from mlx_attn.files import write_text
from mlx_attn.model.gpt import model_cost
from mlx_attn.sampling.generate import GenerationStep, LoadedRun, Statistics
from mlx_attn.sampling.samplers import SamplerConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How answers are made.

    Attributes:
        sampler: How tokens are drawn.
        max_tokens: The most tokens of an answer.
        stop: Texts that end an answer.

    Raises:
        ConfigError: A value is out of its range.
    """

    sampler: SamplerConfig = field(default_factory=SamplerConfig)
    max_tokens: int = 200
    stop: tuple[str, ...] = ()

    def __post_init__(self):
        if self.max_tokens < 1:
            raise ConfigError(f"max={self.max_tokens} must be at least 1")


@dataclass(frozen=True, slots=True)
class Setting:
    """One row of the table of settings.

    Attributes:
        name: How it is typed.
        help: What it does.
        parse: The value of a typed text; raises ValueError.
        takes: What `parse` understands.
        get: Its value in settings.
        put: Settings with another value.
    """

    name: str
    help: str
    parse: Callable[[str], Any]
    takes: str
    get: Callable[[Settings], Any]
    put: Callable[[Settings, Any], Settings]


def change(settings: Settings, name: str, text: str) -> Settings:
    """Settings with one value as typed.

    Raises:
        ConfigError: The setting is unknown, or the value does not fit it.
    """
    setting = find_setting(name)
    try:
        value = setting.parse(text)
    except ValueError as error:
        raise ConfigError(f"{setting.name} takes {setting.takes}, not '{text}'") from error
    return setting.put(settings, value)


def find_setting(name: str) -> Setting:
    """The setting of that name; top_k, top-k and topk are the same.

    Raises:
        ConfigError: There is none; the nearest name is suggested.
    """
    plain = plain_name(name)
    if plain not in SETTINGS:
        names = [setting.name for setting in SETTINGS.values()]
        raise ConfigError(f"unknown setting '{name}'{did_you_mean(name, names)}")
    return SETTINGS[plain]


def plain_name(name: str) -> str:
    """A name without case, hyphens and underscores."""
    return name.lower().replace("-", "").replace("_", "")


def shown(settings: Settings, setting: Setting) -> str:
    """A setting's value, as it would be typed."""
    value = setting.get(settings)
    if value is None:
        return "none"
    if isinstance(value, tuple):
        return " ".join(repr(stop)[1:-1] for stop in value) or "none"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _seed(text: str) -> int | None:
    return None if text.lower() in ("none", "random") else int(text)


def _stop(text: str) -> tuple[str, ...]:
    """One stop text; a typed backslash and n is a newline."""
    return () if text.lower() == "none" else (text.replace("\\n", "\n"),)


def _sampler(
    name: str, help: str, parse: Callable[[str], Any], takes: str, key: str = ""
) -> Setting:
    """A setting that is a key of the sampler's configuration."""
    key = key or name
    return Setting(
        name,
        help,
        parse,
        takes,
        lambda settings: getattr(settings.sampler, key),
        lambda settings, value: replace(
            settings, sampler=replace(settings.sampler, **{key: value})
        ),
    )


_NUMBER, _WHOLE = "a number", "a whole number"
_SETTING_ROWS = (
    _sampler("temp", "temperature; 0 takes the likeliest token", float, _NUMBER),
    _sampler("top_k", "only the k likeliest tokens; 0 is all", int, _WHOLE),
    _sampler("top_p", "only the likeliest, of this probability together; 1 is all", float, _NUMBER),
    _sampler("min_p", "only those this fraction as likely as the likeliest", float, _NUMBER),
    _sampler("penalty", "for repetition; 1 is none", float, _NUMBER, "repetition_penalty"),
    _sampler(
        "seed", "the same seed, the same text; none is random", _seed, "a whole number or none"
    ),
    Setting(
        "max",
        "most tokens of an answer",
        int,
        _WHOLE,
        lambda settings: settings.max_tokens,
        lambda settings, value: replace(settings, max_tokens=value),
    ),
    Setting(
        "stop",
        r"text that ends an answer, \n is a newline; none",
        _stop,
        "a text or none",
        lambda settings: settings.stop,
        lambda settings, value: replace(settings, stop=value),
    ),
)

SETTINGS: dict[str, Setting] = {plain_name(row.name): row for row in _SETTING_ROWS}
"""All settings, by plain name."""


@dataclass(slots=True)
class Answer:
    """What one run said; it grows while the run speaks.

    Attributes:
        run: The run's name.
        seed: What makes the same text again.
        text: The continuation.
        tokens: Its tokens.
        finish_reason: `length`, `stop`, or `interrupted`.
    """

    run: str
    seed: int
    text: str = ""
    tokens: int = 0
    finish_reason: str = "interrupted"


@dataclass(slots=True)
class Turn:
    """A prompt and its answers.

    Attributes:
        prompt: What was typed.
        answers: One of each run that was asked.
        follows: Whether the prompt goes on where the last turn ended.
        attempt: How many answers of this turn were thrown away.
    """

    prompt: str
    answers: list[Answer] = field(default_factory=list)
    follows: bool = False
    attempt: int = 0

    def text(self, run: str) -> str:
        """The prompt and the run's answer, or the first answer where the run gave none."""
        said = {answer.run: answer.text for answer in reversed(self.answers)}
        first = self.answers[0].text if self.answers else ""
        return self.prompt + said.get(run, first)


@dataclass(slots=True)
class Transcript:
    """Turns, the oldest first."""

    turns: list[Turn] = field(default_factory=list)

    def story(self, run: str) -> str:
        """The text so far, as the run has it: the last turn, with those that it follows."""
        return _joined(self._stories()[-1], run) if self.turns else ""

    def _stories(self) -> list[list[Turn]]:
        """The turns, grouped with those that follow them."""
        stories: list[list[Turn]] = []
        for turn in self.turns:
            if not (turn.follows and stories):
                stories.append([])
            stories[-1].append(turn)
        return stories

    def as_text(self) -> str:
        """All stories, for reading."""
        return "\n\n---\n\n".join(map(_readable, self._stories())) + "\n"

    def save(self, path: Path) -> None:
        """Write to a file: JSON if its name ends in .json, text otherwise.

        Raises:
            RunError: It cannot be written.
        """
        as_json = json.dumps({"turns": [asdict(turn) for turn in self.turns]}, indent=1) + "\n"
        write_text(path, as_json if path.suffix == ".json" else self.as_text())


def load_transcript(path: Path) -> Transcript:
    """A transcript that was saved as JSON.

    Raises:
        RunError: The file is missing, or is no transcript.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        return Transcript([_turn(turn) for turn in data["turns"]])
    except OSError as error:
        raise RunError(f"{path}: cannot be read ({error.strerror or error})") from error
    except (ValueError, KeyError, TypeError) as error:
        raise RunError(
            f"{path}: not a transcript; load one that was saved under a name ending in .json"
        ) from error


def _turn(data: Mapping[str, Any]) -> Turn:
    answers = [Answer(**answer) for answer in data["answers"]]
    texts = [data["prompt"], *(text for answer in answers for text in (answer.run, answer.text))]
    if not all(isinstance(text, str) for text in texts):
        raise TypeError("a prompt, a run or an answer that is no text")
    return Turn(**{**data, "answers": answers})


def _joined(story: list[Turn], run: str) -> str:
    return "".join(turn.text(run) for turn in story)


def _readable(story: list[Turn]) -> str:
    runs = list(dict.fromkeys(answer.run for turn in story for answer in turn.answers))
    if len(runs) < 2:
        return _joined(story, runs[0] if runs else "")
    return "\n\n".join(f"[{run}]\n{_joined(story, run)}" for run in runs)


@runtime_checkable
class Screen(Protocol):
    """Where a conversation is shown."""

    @property
    def wide(self) -> bool:
        """Whether two texts fit side by side."""
        ...

    def say(self, text: str) -> None:
        """Show a message."""
        ...

    def table(self, rows: Sequence[tuple[str, str]]) -> None:
        """Show names and what they mean."""
        ...

    def heading(self, text: str) -> None:
        """Say whose text follows."""
        ...

    def stream(self, pieces: Iterator[str]) -> None:
        """Show a text as it comes."""
        ...

    def columns(self, headings: Sequence[str], streams: Sequence[Iterator[str]]) -> None:
        """Show texts side by side as they come, in turns."""
        ...

    def note(self, text: str) -> None:
        """Show a remark on what was said."""
        ...


@dataclass
class Session:
    """One conversation; its methods are what commands are made of.

    Attributes:
        voice: The run that answers.
        screen: Where answers go.
        open_voice: Loads a run by name.
        settings: How answers are made.
        rival: A second run that answers too.
        transcript: What was said.
        written: The files written so far, which may be written again.
        over: Whether the conversation is at its end.
    """

    voice: LoadedRun
    screen: Screen
    open_voice: Callable[[str], LoadedRun]
    settings: Settings = field(default_factory=Settings)
    rival: LoadedRun | None = None
    transcript: Transcript = field(default_factory=Transcript)
    written: set[Path] = field(default_factory=set)
    over: bool = False

    @property
    def voices(self) -> list[LoadedRun]:
        """Those who answer."""
        return [self.voice] if self.rival is None else [self.voice, self.rival]

    def ask(self, prompt: str, follows: bool = False, attempt: int = 0) -> None:
        """Let every voice go on with the prompt, and keep what they say, even if interrupted.

        Args:
            prompt: What to go on from; nothing else is read unless it follows.
            follows: Go on from the text so far and the prompt.
            attempt: Counts up the seed, so that another try is another text.

        Raises:
            ConfigError: A voice's tokenizer does not know a character; nothing is kept.
        """
        seed = self._seed(attempt)
        answers = [Answer(voice.name, seed) for voice in self.voices]
        streams = [self._begin(voice, prompt, follows, seed) for voice in self.voices]
        self.transcript.turns.append(Turn(prompt, answers, follows, attempt))
        together = len(answers) > 1 and self.screen.wide
        show = self._show_together if together else self._show_in_turn
        show(answers, streams)

    def retry(self) -> None:
        """Answer the last prompt again; the answer that was there is gone.

        Raises:
            ConfigError: Nothing was said yet, or a character is unknown.
        """
        turn = self.undo()
        try:
            self.ask(turn.prompt, turn.follows, turn.attempt + 1)
        except ConfigError:
            self.transcript.turns.append(turn)
            raise

    def undo(self) -> Turn:
        """Forget the last turn, and return it.

        Raises:
            ConfigError: Nothing was said yet.
        """
        if not self.transcript.turns:
            raise ConfigError("nothing was said yet: type a text to go on from")
        return self.transcript.turns.pop()

    def _seed(self, attempt: int) -> int:
        seed = self.settings.sampler.seed
        return secrets.randbits(32) if seed is None else (seed + attempt) % 2**64

    def _begin(
        self, voice: LoadedRun, prompt: str, follows: bool, seed: int
    ) -> Iterator[GenerationStep]:
        text = (self.transcript.story(voice.name) if follows else "") + prompt
        sampler = replace(self.settings.sampler, seed=seed)
        return voice.stream(text, sampler, self.settings.max_tokens, self.settings.stop)

    def _show_in_turn(self, answers: list[Answer], streams: list[Iterator[GenerationStep]]) -> None:
        for answer, pieces in zip(answers, streams, strict=True):
            if len(answers) > 1:
                self.screen.heading(answer.run)
            telling = Telling(answer, pieces)
            try:
                self.screen.stream(iter(telling))
            finally:
                self.screen.note(telling.summary())

    def _show_together(
        self, answers: list[Answer], streams: list[Iterator[GenerationStep]]
    ) -> None:
        tellings = [Telling(*pair) for pair in zip(answers, streams, strict=True)]
        try:
            self.screen.columns([answer.run for answer in answers], [*map(iter, tellings)])
        finally:
            for telling in tellings:
                # They took turns, so that their tokens per second would say nothing.
                self.screen.note(f"{telling.answer.run}: {telling.summary(rate=False)}")


class Telling:
    """An answer while it comes: iterating gives its text, and writes it into the answer."""

    def __init__(self, answer: Answer, pieces: Iterator[GenerationStep]):
        self.answer = answer
        self._pieces = pieces
        self._statistics: Statistics | None = None

    def __iter__(self) -> Iterator[str]:
        for piece in self._pieces:
            self._statistics = piece.statistics
            self.answer.text += piece.text
            self.answer.tokens = piece.statistics.tokens
            self.answer.finish_reason = piece.statistics.finish_reason or "interrupted"
            yield piece.text

    def summary(self, rate: bool = True) -> str:
        """What the answer cost, in one line."""
        cost = self._statistics
        if cost is None:
            return "0 tokens"
        parts = [_counted(cost.tokens, "token")]
        if rate and cost.tok_s:
            parts.append(f"{cost.tok_s:,.0f} tok/s")
        parts.append(f"cache {cost.cache_bytes_per_token:,} B/token")
        if cost.prompt_read < cost.prompt_tokens:
            parts.append(f"read the last {cost.prompt_read} of {cost.prompt_tokens} prompt tokens")
        return " · ".join(parts)


def _counted(n: int, word: str) -> str:
    return f"{n} {word}{'' if n == 1 else 's'}"


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


def banner(session: Session) -> None:
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
        raise ConfigError(f"unknown command '/{name}'{did_you_mean(f'/{name}', known)}")
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


def _other(present: LoadedRun | None, wanted: LoadedRun) -> LoadedRun:
    if present and wanted.name == present.name:
        raise ConfigError(f"{wanted.name} answers already: name another run")
    return wanted


def _info(session: Session, argument: str) -> None:
    for voice in session.voices:
        session.screen.table(_facts(voice))
    _tell(session, list(SETTINGS.values()))


def _facts(voice: LoadedRun) -> list[tuple[str, str]]:
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
