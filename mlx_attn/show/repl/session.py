"""A conversation: who speaks, how, and what was said. Terminals are somebody else's concern."""

import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol, runtime_checkable

from mlx_attn.errors import ConfigError
from mlx_attn.sampling import Piece, Statistics, Voice
from mlx_attn.show.repl.settings import Settings
from mlx_attn.show.repl.transcript import Answer, Transcript, Turn


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

    voice: Voice
    screen: Screen
    open_voice: Callable[[str], Voice]
    settings: Settings = field(default_factory=Settings)
    rival: Voice | None = None
    transcript: Transcript = field(default_factory=Transcript)
    written: set[Path] = field(default_factory=set)
    over: bool = False

    @property
    def voices(self) -> list[Voice]:
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

    def _begin(self, voice: Voice, prompt: str, follows: bool, seed: int) -> Iterator[Piece]:
        text = (self.transcript.story(voice.name) if follows else "") + prompt
        sampler = replace(self.settings.sampler, seed=seed)
        return voice.stream(text, sampler, self.settings.max_tokens, self.settings.stop)

    def _show_in_turn(self, answers: list[Answer], streams: list[Iterator[Piece]]) -> None:
        for answer, pieces in zip(answers, streams, strict=True):
            if len(answers) > 1:
                self.screen.heading(answer.run)
            telling = Telling(answer, pieces)
            try:
                self.screen.stream(iter(telling))
            finally:
                self.screen.note(telling.summary())

    def _show_together(self, answers: list[Answer], streams: list[Iterator[Piece]]) -> None:
        tellings = [Telling(*pair) for pair in zip(answers, streams, strict=True)]
        try:
            self.screen.columns([answer.run for answer in answers], [*map(iter, tellings)])
        finally:
            for telling in tellings:
                # They took turns, so that their tokens per second would say nothing.
                self.screen.note(f"{telling.answer.run}: {telling.summary(rate=False)}")


class Telling:
    """An answer while it comes: iterating gives its text, and writes it into the answer."""

    def __init__(self, answer: Answer, pieces: Iterator[Piece]):
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
