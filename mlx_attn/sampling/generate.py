"""A model continues a prompt: whole characters, stop texts, statistics."""

import codecs
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal

from mlx_attn.errors import ConfigError
from mlx_attn.sampling.decoding import DecodingState, decode, tokens_that_fit
from mlx_attn.sampling.samplers import Sampler
from mlx_attn.text.tokenizers import Tokenizer


class StreamingDetokenizer:
    """Joins the bytes of tokens and releases text as soon as it is certain.

    Bytes wait for the rest of their character; bytes that can be no character become U+FFFD. Text
    that may be the beginning of a stop text waits too; a stop text itself never comes out.
    """

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str] = ()):
        self._stop = (stop,) if isinstance(stop, str) else tuple(stop or ())
        if "" in self._stop:
            raise ConfigError("a stop text is empty: give at least one character, or leave it out")
        self.stop_text = ""  # the one that was found
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._pending = ""

    def push(self, token: int, last: bool = False) -> str:
        """Return the text that `token` makes certain; with `last`, all the rest."""
        # The decoder keeps the first bytes of a character until its last one has come.
        text = self._pending + self._decoder.decode(self._tokenizer.token_bytes(token), last)
        found = [stop for stop in self._stop if stop in text]
        # The stop text that begins first ends the text.
        self.stop_text = min(found, key=text.index, default="")
        # The longest end of the text that a stop text begins with is uncertain.
        starts = (stop[:size] for stop in self._stop for size in range(1, len(stop)))
        waiting = max((len(start) for start in starts if text.endswith(start)), default=0)
        certain = len(text) - (0 if last else waiting)
        certain = text.index(self.stop_text) if found else certain
        self._pending = text[certain:]
        return text[:certain]


@dataclass(frozen=True, slots=True)
class Statistics:
    """The cost of a continuation so far."""

    prompt_tokens: int
    prompt_read: int  # how many of them, the last ones, the model has read: all that fit
    tokens: int
    tok_s: float  # new tokens per second after the first; 0 while there is only one
    finish_reason: Literal["length", "stop"] | None  # None before the last step
    stop_text: str  # the stop text that ended it; "" where none did
    seed: int  # reproduces the text


@dataclass(frozen=True, slots=True)
class GenerationStep:
    """One new token of a text."""

    number: int  # of the text, among those of one batch
    text: str  # the text that is certain now: whole characters, or none yet
    token: int
    statistics: Statistics


def begin(tokens: list[int], start: list[int], longest: int) -> list[int]:
    """Return tokens after the start of a document, if they lack it and it fits.

    A model that has only seen stories after a line break expects one before a text. But it would
    not see the beginning of a text that is longer than `longest`.
    """
    if tokens[: len(start)] == start or len(start) + len(tokens) > longest:
        return tokens
    return start + tokens


def prompt_tokens(tokenizer: Tokenizer, prompt: str, start: list[int], longest: int) -> list[int]:
    """Return the tokens of a prompt after the document's start; at least one."""
    tokens = begin(tokenizer.encode(prompt).tolist() if prompt else [], start, longest)
    if tokens:
        return tokens
    try:
        return tokenizer.encode("\n").tolist()
    except ConfigError:
        return [0]


def stream_generate(
    state: DecodingState,
    prompt: Sequence[int],
    sampler: Sampler,
    detokenizers: list[StreamingDetokenizer],
    max_tokens: int,
) -> Iterator[GenerationStep]:
    """Yield the tokens after a prompt, with the texts of each that its detokenizer releases.

    Raises:
        RunError: The model's logits are not numbers.
    """
    read = tokens_that_fit(len(prompt), state.model.config.context_length)
    unfinished = dict(enumerate(detokenizers))  # by the number of the text
    first = 0.0
    for n, tokens in enumerate(islice(decode(state, prompt, sampler), max_tokens), 1):
        now = time.perf_counter()
        # The time before the first token went into reading the prompt.
        first = now if n == 1 else first
        last = n == max_tokens
        for k, detokenizer in list(unfinished.items()):
            # Finished texts stay in the batch, because removing a row would need another graph.
            text = detokenizer.push(tokens[k], last)
            statistics = Statistics(
                prompt_tokens=len(prompt),
                prompt_read=read,
                tokens=n,
                tok_s=(n - 1) / (now - first) if n > 1 else 0.0,
                finish_reason="stop" if detokenizer.stop_text else "length" if last else None,
                stop_text=detokenizer.stop_text,
                seed=sampler.seeds[k],
            )
            yield GenerationStep(k, text, tokens[k], statistics)
            if detokenizer.stop_text:
                del unfinished[k]
        if not unfinished:
            return
