"""Generated stories: one at a time with every span explained, or many as a training text.

A story is one paragraph of plain ASCII, so that characters are bytes, followed by one newline. The
same seed gives the same text on every platform and version of Python: of a random generator, only
`random.Random(seed).random()` is used.
"""

import random
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Float64, Int64, UInt8

from mlx_attn.text.stories import grammar


@dataclass(frozen=True, slots=True)
class Span:
    """Bytes `start` to `end` of a story, which call for one ability.

    `log_probability` (nats) belongs to the free choice made here; it is 0 if the text before
    decides. `distance` counts the bytes back to the last mention of the span's referent; it is None
    if the span refers to nothing that was mentioned before.
    """

    start: int
    end: int
    ability: str
    log_probability: float
    distance: int | None


@dataclass(frozen=True, slots=True)
class Story:
    """One story, the spans that tile it, and the log-probability of its whole text in nats."""

    text: str
    spans: tuple[Span, ...]
    log_probability: float


@dataclass(frozen=True)
class StoryCorpus:
    """Stories in a row."""

    text: str  # the stories; plain ASCII
    # The ability that predicting each byte takes, as an index into `ABILITIES`.
    abilities: UInt8[np.ndarray, " bytes"]
    story_starts: Int64[np.ndarray, " stories"]  # the byte at which each story begins
    # Nats by ability, negative where there are free choices.
    ability_log_probability: Float64[np.ndarray, " abilities"]

    @property
    def log_probability(self) -> float:
        """The exact log-probability of the text, in nats."""
        return float(self.ability_log_probability.sum())


def generate_story(random: random.Random) -> Story:
    """Return one story, from a generator of which only the method `random()` is used."""
    fragments = grammar.sample(random.random)
    text = "".join([fragment.text for fragment in fragments])
    nats = sum(fragment.log_probability for fragment in fragments)
    spans: list[Span] = []
    mentioned: dict[str, int] = {}  # where each referent was mentioned last
    start = 0
    for piece, ability, log_probability, referent in fragments:
        end = start + len(piece)
        # A copy repeats text that was mentioned word for word: look for that text itself.
        if ability == grammar.COPY:
            mentioned[referent] = text.rindex(piece, 0, start)
        distance = start - mentioned[referent] if referent in mentioned else None
        if referent:
            mentioned[referent] = start
        spans.append(Span(start, end, grammar.ABILITIES[ability], log_probability, distance))
        start = end
    return Story(text, tuple(spans), nats)


def generate_stories(
    n_bytes: int, seed: int = 0, split: Literal["train", "val"] = "train"
) -> StoryCorpus:
    """Return whole stories of at least `n_bytes` bytes; each split of a seed has its own stream."""
    draw = random.Random(2 * seed + (split == "val")).random
    texts: list[str] = []
    abilities: list[int] = []  # of each text
    starts: list[int] = []
    nats = [0.0] * len(grammar.ABILITIES)
    length = 0
    while length < n_bytes:
        starts.append(length)
        for text, ability, log_probability, _ in grammar.sample(draw):
            texts.append(text)
            abilities.append(ability)
            nats[ability] += log_probability
            length += len(text)
    by_byte = np.repeat(np.array(abilities, np.uint8), [*map(len, texts)])
    return StoryCorpus("".join(texts), by_byte, np.array(starts, np.int64), np.array(nats))
