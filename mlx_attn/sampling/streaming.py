"""The entrance: a prompt's continuation, piece by piece, with what it cost."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal

import mlx.core as mx

from mlx_attn.errors import ConfigError
from mlx_attn.model import GPT
from mlx_attn.sampling.config import SamplerConfig
from mlx_attn.sampling.samplers import Sampler
from mlx_attn.sampling.text import TextStream
from mlx_attn.sampling.window import Window, decode, fitting
from mlx_attn.text.tokenizers import Tokenizer


@dataclass(frozen=True, slots=True)
class Statistics:
    """What a continuation has cost so far.

    Attributes:
        prompt_tokens: Tokens of the prompt.
        prompt_read: How many of them, the last ones, the model has read: all that fit.
        prompt_tok_s: Tokens read per second, until the first new token.
        tokens: New tokens.
        tok_s: New tokens per second after the first; 0 while there is only one.
        peak_memory: The most bytes that this process's arrays have had at a time.
        cache_bytes_per_token: Bytes remembered for each token, all layers together.
        finish_reason: `length` or `stop` in the last piece, None before.
        seed: What makes the same text again.
    """

    prompt_tokens: int
    prompt_read: int
    prompt_tok_s: float
    tokens: int
    tok_s: float
    peak_memory: int
    cache_bytes_per_token: int
    finish_reason: Literal["length", "stop"] | None
    seed: int


@dataclass(frozen=True, slots=True)
class Piece:
    """One new token.

    Attributes:
        text: What can be shown now: whole characters, or nothing yet.
        token: The token.
        statistics: As of this token.
    """

    text: str
    token: int
    statistics: Statistics


def stream(
    model: GPT,
    tokenizer: Tokenizer,
    prompt: str,
    config: SamplerConfig | None = None,
    max_tokens: int = 200,
    stop: Sequence[str] = (),
) -> Iterator[Piece]:
    """The continuation of a prompt, one piece a token; the pieces' texts add up to it.

    An empty prompt is a newline, or token 0 where the vocabulary has none. What does not fit into
    the context is handled as `Window` says.

    Args:
        model: In evaluation mode.
        tokenizer: The one it was trained with.
        prompt: The text to go on from.
        config: How tokens are drawn; None is the default.
        max_tokens: The most new tokens.
        stop: Ends before any of these texts.

    Raises:
        ConfigError: Before the first piece: a character of the prompt is unknown to the tokenizer,
            or `max_tokens` or `stop` cannot work.
        RunError: With the first piece: the model's logits are not numbers.
    """
    if max_tokens < 1:
        raise ConfigError(f"max_tokens={max_tokens} must be at least 1")
    tokens = prompt_tokens(tokenizer, prompt)
    text = TextStream(tokenizer, stop)
    return _pieces(Window(model), tokens, Sampler(config or SamplerConfig()), text, max_tokens)


def prompt_tokens(tokenizer: Tokenizer, prompt: str) -> list[int]:
    """The tokens of a prompt, at least one.

    Raises:
        ConfigError: The tokenizer does not know a character.
    """
    if prompt:
        return tokenizer.encode(prompt).tolist()
    try:
        return tokenizer.encode("\n").tolist()
    except ConfigError:
        return [0]


def _pieces(
    window: Window, prompt: list[int], sampler: Sampler, text: TextStream, max_tokens: int
) -> Iterator[Piece]:
    read = fitting(len(prompt), window.model.config.context_length)
    clock = _Clock()
    for n, token in enumerate(islice(decode(window, prompt, sampler), max_tokens), 1):
        shown = text.push(token, last=n == max_tokens)
        clock.tick()
        statistics = Statistics(
            prompt_tokens=len(prompt),
            prompt_read=read,
            prompt_tok_s=read / clock.to_first,
            tokens=n,
            tok_s=(n - 1) / clock.since_first if n > 1 else 0.0,
            peak_memory=mx.get_peak_memory(),
            cache_bytes_per_token=window.bytes_per_token,
            finish_reason="stop" if text.stopped else "length" if n == max_tokens else None,
            seed=sampler.seed,
        )
        yield Piece(shown, token, statistics)
        if text.stopped:
            return


class _Clock:
    """Seconds until the first token, and from there to the latest one."""

    def __init__(self):
        self.start = time.perf_counter()
        self.to_first = self.since_first = 0.0

    def tick(self) -> None:
        """A token has come."""
        elapsed = time.perf_counter() - self.start
        self.to_first = self.to_first or elapsed
        self.since_first = elapsed - self.to_first
