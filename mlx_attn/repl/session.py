"""The conversation: its settings, its turns and its answers, without a terminal.

A prompt is read alone; `/more` continues the text so far. With `/vs` a second run answers every
prompt too, after the first, with the same seed. An answer ends where a document of the text that
its run learned ends, and `/more` continues from there.
"""

import math
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import Field, dataclass, field, fields, replace
from pathlib import Path
from typing import Protocol

from mlx_attn.errors import plural
from mlx_attn.keys import setting
from mlx_attn.machine.advice import translate_mlx_errors
from mlx_attn.runs import LoadedRun, text_loss
from mlx_attn.sampling.config import SamplerConfig
from mlx_attn.sampling.generate import GenerationStep, Statistics
from mlx_attn.text.sources import describe


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings(SamplerConfig):
    """How answers are sampled, and where they end."""

    max_tokens: int = setting(200, "most tokens of an answer", low=1, high=2**31 - 1)
    stop: tuple[str, ...] = setting((), r"text that ends an answer, \n is a newline; none")
    ignore_eos: bool = setting(False, "go on where a document, such as a story, ends; on, off")


_SHORT = {"repetition_penalty": "penalty", "max_tokens": "max"}
SETTINGS: dict[str, Field] = {
    _SHORT.get(key.name, key.name): key for key in fields(Settings) if key.metadata
}
"""The fields of `Settings` by the names they are typed with."""


def plain_name(name: str) -> str:
    """Return a name without case, hyphens and underscores."""
    return name.lower().replace("-", "").replace("_", "")


@dataclass(slots=True)
class Answer:
    """A run's answer; it grows while the run writes."""

    run: str
    text: str = ""
    cost: Statistics | None = None  # None before the first token

    @property
    def stop_text(self) -> str:
        """The text that ended it, if any."""
        return self.cost.stop_text if self.cost else ""


@dataclass(slots=True)
class Turn:
    """A prompt and its answers."""

    prompt: str
    answers: list[Answer]  # one of each run that was asked
    follows: bool = False  # whether the prompt continues the text of the turn before
    attempt: int = 0  # how many answers of this turn were thrown away


class Screen(Protocol):
    """The display of a conversation."""

    def say(self, text: str, quiet: bool = False) -> None:
        """Show a message, or a quiet remark on an answer."""

    def table(self, rows: Sequence[tuple[str, str]]) -> None:
        """Show names and their meanings."""

    def stream(self, texts: Iterator[str], heading: str = "") -> None:
        """Show an answer as it comes, below the name of its run if two answer."""

    def clear(self) -> None:
        """Remove the shown answer, if possible."""


@dataclass
class Session:
    """One conversation."""

    run: LoadedRun
    screen: Screen
    list_runs: Callable[[], list[tuple[str, str]]]  # the runs that could answer, with their facts
    # Makes a page of what these runs attend to in a text, and returns its place.
    make_page: Callable[[list[LoadedRun], str], Path]
    settings: Settings = field(default_factory=Settings)
    other_run: LoadedRun | None = None  # a second run that answers too
    turns: list[Turn] = field(default_factory=list)
    numbered: list[str] = field(default_factory=list)  # the runs as they were listed last
    over: bool = False

    @property
    def runs(self) -> list[LoadedRun]:
        """The runs that answer."""
        return [self.run] if self.other_run is None else [self.run, self.other_run]

    def story(self, run: str, turns: Sequence[Turn] = ()) -> str:
        """Return the text so far, or that of other turns: the last, with those that it follows.

        It has a run's words, or the first run's where it gave none.
        """
        text, end = "", ""
        for turn in turns or self.turns:
            if not turn.follows:
                text, end = "", ""
            answers = turn.answers or [Answer(run)]
            answer = next((answer for answer in answers if answer.run == run), answers[0])
            # A turn without a prompt goes on beyond the text that ended the last answer.
            text += (turn.prompt or end) + answer.text
            end = answer.stop_text
        return text

    @translate_mlx_errors()
    def ask(self, prompt: str, follows: bool = False, attempt: int = 0) -> None:
        """Let every run continue the prompt, and keep the answers, even if interrupted.

        A further attempt replaces the last turn. What cannot be read changes nothing.
        """
        seed = self.settings.seed
        seed = secrets.randbits(32) if seed is None else (seed + attempt) % 2**64
        settings = replace(self.settings, seed=seed)
        turn = Turn(prompt, [], follows, attempt)
        turns, streams = [*(self.turns[:-1] if attempt else self.turns), turn], []
        for run in self.runs:
            text = self.story(run.name, turns)  # whose last turn still lacks an answer
            stop = settings.stop + (() if settings.ignore_eos else run.document_ends)
            streams.append(run.stream(text, settings, settings.max_tokens, stop))
        self.turns = turns
        if not follows:  # a text that a model cannot know is told in one line
            for line in filter(None, dict.fromkeys(_unfamiliar(run, prompt) for run in self.runs)):
                self.screen.say(line, quiet=True)
        turn.answers = [Answer(run.name) for run in self.runs]
        for answer, steps in zip(turn.answers, streams, strict=True):
            self._show(answer, steps, answer.run if len(turn.answers) > 1 else "")

    def _show(self, answer: Answer, steps: Iterator[GenerationStep], heading: str) -> None:
        def texts() -> Iterator[str]:
            for step in steps:
                answer.text += step.text
                answer.cost = step.statistics
                yield step.text

        try:
            self.screen.stream(texts(), heading)
        finally:
            self.screen.say(_summary(answer.cost), quiet=True)
            if answer.stop_text and not answer.text:
                self.screen.say("the text ends there; /more goes on beyond", quiet=True)


def _unfamiliar(loaded: LoadedRun, text: str) -> str:
    """Return one line if a text costs the model more than guessing would, otherwise ""."""
    context = loaded.model.config.context_length
    # Only the end of a long text fits into the context.
    tokens = loaded.tokenizer.encode(text).tolist()[-context:]
    loss = text_loss(loaded, tokens) if tokens else 0.0
    # A uniform guess over V tokens costs ln V nats.
    guessing = math.log(loaded.model.config.vocab_size)
    if not loss > guessing + 0.005:  # what two decimals show
        return ""
    return (
        f"this model has only read {describe(loaded.run.corpus)}: your text costs it {loss:.2f} "
        f"nats per token, and guessing would cost {guessing:.2f}; train on your own: mlx-attn "
        "train --data notes/"
    )


def _summary(cost: Statistics | None) -> str:
    """Return the cost of an answer in one line."""
    if cost is None:
        return "0 tokens"
    parts = [plural(cost.tokens, "token")]
    if cost.tok_s:
        parts.append(f"{cost.tok_s:,.0f} tok/s")
    if cost.prompt_read < cost.prompt_tokens:
        parts.append(f"read the last {cost.prompt_read:,} of {cost.prompt_tokens:,} prompt tokens")
    return " · ".join(parts)
