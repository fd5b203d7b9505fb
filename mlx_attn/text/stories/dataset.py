"""Tales told: one at a time with every span explained, or a stream of them as a training text.

A tale is one paragraph of plain ASCII, so that characters are bytes, followed by one newline. The
same seed gives the same text on every platform and version of Python: all that is used of a random
generator is `random.Random(seed).random()`.
"""

import random
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Float64, Int64, UInt8

from mlx_attn.errors import ConfigError
from mlx_attn.text.stories.english import GRAMMAR
from mlx_attn.text.stories.grammar import ABILITIES, COPY, Fragment

_LONGEST = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Span:
    """Bytes `start` to `end` of a tale, which call for one ability.

    `log_probability` (nats) is that of the free choice made here, and 0 where the text before
    decides. `distance` counts the bytes back to the last mention of what the span refers to; it is
    None where the span refers to nothing that was mentioned before.
    """

    start: int
    end: int
    ability: str
    log_probability: float
    distance: int | None


@dataclass(frozen=True, slots=True)
class Tale:
    """One story, the spans that tile it, and the log-probability of its whole text in nats."""

    text: str
    spans: tuple[Span, ...]
    log_probability: float


@dataclass(frozen=True)
class TalesText:
    """Tales in a row.

    Attributes:
        text: the tales; plain ASCII.
        abilities: for each byte, what it takes to predict it, an index into `ABILITIES`.
        story_starts: the byte at which each tale begins.
        ability_log_probability: nats by ability, negative where there are free choices.
    """

    text: str
    abilities: UInt8[np.ndarray, " bytes"]
    story_starts: Int64[np.ndarray, " stories"]
    ability_log_probability: Float64[np.ndarray, " abilities"]

    @property
    def log_probability(self) -> float:
        """The exact log-probability of the text, in nats."""
        return float(self.ability_log_probability.sum())

    @property
    def bits_per_byte(self) -> float:
        """The floor: the loss of a model that knows the grammar; none can expect less."""
        return -self.log_probability / np.log(2) / len(self.text)


def tell(random: random.Random) -> Tale:
    """Tell one story.

    Args:
        random: where the choices come from; only its method `random()` is used.
    """
    fragments = GRAMMAR.tell(random.random)
    text = "".join([said.text for said in fragments])
    return Tale(text, _spans(text, fragments), sum(said.log_probability for said in fragments))


def parse(text: str) -> float:
    r"""The log-probability of one tale, "\n" included, in nats; -inf if no tale reads so."""
    return GRAMMAR.parse(text)


def tales(n_bytes: int, seed: int = 0, split: Literal["train", "val"] = "train") -> TalesText:
    """Whole tales of at least `n_bytes` bytes together.

    Args:
        n_bytes: where to stop; the last tale is told to its end.
        seed: not negative.
        split: the two splits of a seed, and of all seeds, come from different random streams.

    Raises:
        ConfigError: if `n_bytes` or `seed` is out of range, or there is no such split.
    """
    draw = random.Random(_stream(n_bytes, seed, split)).random
    texts: list[str] = []
    marks: list[bytes] = []
    starts: list[int] = []
    nats = [0.0] * len(ABILITIES)
    length = 0
    while length < n_bytes:
        starts.append(length)
        fragments = GRAMMAR.tell(draw)
        for text, ability, mark, log_probability, _ in fragments:
            texts.append(text)
            marks.append(mark)
            nats[ability] += log_probability
            length += len(text)
    abilities = np.frombuffer(b"".join(marks), dtype=np.uint8)
    return TalesText("".join(texts), abilities, np.array(starts, np.int64), np.array(nats))


def _stream(n_bytes: int, seed: int, split: str) -> int:
    """The seed of the random stream: even for training, odd for validation."""
    if not 0 < n_bytes <= _LONGEST:
        raise ConfigError(f"n_bytes is {n_bytes}; choose 1 to {_LONGEST}")
    if seed < 0:
        raise ConfigError(f"the seed of the tales is {seed}; choose 0 or more")
    if split not in ("train", "val"):
        raise ConfigError(f"the tales have no split {split!r}; choose train or val")
    return 2 * seed + (split == "val")


def _spans(text: str, fragments: list[Fragment]) -> tuple[Span, ...]:
    """The fragments with their places, and how far back each one's referent was last mentioned."""
    spans: list[Span] = []
    mentioned: dict[str, int] = {}
    start = 0
    for said in fragments:
        end = start + len(said.text)
        if said.ability == COPY:
            mentioned[said.referent] = text.rindex(said.text, 0, start)
        distance = start - mentioned[said.referent] if said.referent in mentioned else None
        if said.referent:
            mentioned[said.referent] = start
        spans.append(Span(start, end, ABILITIES[said.ability], said.log_probability, distance))
        start = end
    return tuple(spans)
