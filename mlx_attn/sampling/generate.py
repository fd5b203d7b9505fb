"""A model continues a prompt: whole characters, stop texts, statistics, a run by its name."""

import codecs
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Literal

import mlx.core as mx

from mlx_attn.errors import ConfigError
from mlx_attn.model.gpt import GPT
from mlx_attn.run_directory import Run
from mlx_attn.runs import RUNS, find_run
from mlx_attn.sampling.config import SamplerConfig
from mlx_attn.sampling.decoding import DecodingState, TokenStep, decode, tokens_that_fit
from mlx_attn.sampling.documents import begin, document_ends, start_tokens, text_loss
from mlx_attn.sampling.samplers import Sampler
from mlx_attn.text.sources import describe
from mlx_attn.text.tokenizers import Tokenizer

MOST_TEXTS = 4096
"""Texts of one batch, at most."""


class StreamingDetokenizer:
    """Joins the bytes of tokens and releases text as soon as it is certain.

    Bytes wait for the rest of their character; bytes that can be no character become U+FFFD. Text
    that may be the beginning of a stop text waits too; a stop text itself never comes out.
    """

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str] = ()):
        if "" in stop:
            raise ConfigError("a stop text is empty: give at least one character, or leave it out")
        self.stop_text = ""  # the one that was found
        self._tokenizer = tokenizer
        self._stop = tuple(stop)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._pending = ""

    def push(self, token: int, last: bool = False) -> str:
        """Return the text that `token` makes certain; with `last`, all the rest."""
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
    prompt_tok_s: float  # tokens read per second, until the first new token
    tokens: int
    tok_s: float  # new tokens per second after the first; 0 while there is only one
    peak_memory: int  # the most bytes of this process's arrays at a time
    cache_bytes_per_token: int  # cached bytes per token, all layers together
    finish_reason: Literal["length", "stop"] | None  # None before the last step
    stop_text: str  # the stop text that ended it; "" where none did
    seed: int  # reproduces the text


@dataclass(frozen=True, slots=True)
class GenerationStep:
    """One new token."""

    text: str  # the text that is certain now: whole characters, or none yet
    token: int
    statistics: Statistics


def stream_generate(
    model: GPT,
    tokenizer: Tokenizer,
    prompt: str,
    config: SamplerConfig | None = None,
    max_tokens: int = 200,
    stop: Sequence[str] = (),
    step: TokenStep | None = None,
    start: Sequence[int] = (),
) -> Iterator[GenerationStep]:
    """Return the continuation of a prompt, one step a token; the steps' texts add up to it.

    An empty prompt without a start becomes a newline, or token 0 in a vocabulary without one.
    See `DecodingState` for texts longer than the context.

    Args:
        model: In evaluation mode.
        tokenizer: The one it was trained with.
        prompt: The text to continue.
        config: How tokens are drawn.
        max_tokens: The most new tokens.
        stop: Texts before which it ends.
        step: The decoding step of this model, shared with other texts; None makes one.
        start: Tokens that come before a document; they are read before the prompt.

    Raises:
        ConfigError: Before the first step: a character of the prompt is unknown to the tokenizer,
            or `max_tokens` or `stop` cannot work.
        RunError: With the first step: the model's logits are not numbers.
    """
    steps = stream_batch(model, tokenizer, prompt, 1, config, max_tokens, stop, step, start)
    return (generated for _, generated in steps)


def stream_batch(
    model: GPT,
    tokenizer: Tokenizer,
    prompt: str,
    count: int,
    config: SamplerConfig | None = None,
    max_tokens: int = 200,
    stop: Sequence[str] = (),
    step: TokenStep | None = None,
    start: Sequence[int] = (),
) -> Iterator[tuple[int, GenerationStep]]:
    """Yield several continuations of a prompt, decoded in one batch: (number of the text, step).

    Text k draws with the seed `config.seed + k`, like a single text with this seed; it ends by
    itself. For arguments and errors see `stream_generate`.
    """
    limits = (("max_tokens", max_tokens, 2**31 - 1), ("num_samples", count, MOST_TEXTS))
    for name, value, most in limits:
        if not 1 <= value <= most:
            raise ConfigError(f"{name}={value} must be at least 1 and at most {most}")
    tokens = prompt_tokens(tokenizer, prompt, start, model.config.context_length)
    detokenizers = [StreamingDetokenizer(tokenizer, stop) for _ in range(count)]
    sampler = Sampler(config or SamplerConfig(), count)
    return _steps(DecodingState(model, step), tokens, sampler, detokenizers, max_tokens)


def prompt_tokens(
    tokenizer: Tokenizer, prompt: str, start: Sequence[int], longest: int
) -> list[int]:
    """Return the tokens of a prompt after the document's start; at least one."""
    tokens = begin(tokenizer.encode(prompt).tolist() if prompt else [], start, longest)
    if tokens:
        return tokens
    try:
        return tokenizer.encode("\n").tolist()
    except ConfigError:
        return [0]


def _steps(
    state: DecodingState,
    prompt: list[int],
    sampler: Sampler,
    detokenizers: list[StreamingDetokenizer],
    max_tokens: int,
) -> Iterator[tuple[int, GenerationStep]]:
    read = tokens_that_fit(len(prompt), state.model.config.context_length)
    unfinished = dict(enumerate(detokenizers))
    start = first = time.perf_counter()
    for n, tokens in enumerate(islice(decode(state, prompt, sampler), max_tokens), 1):
        now = time.perf_counter()
        # The time until the first token is spent reading the prompt.
        first = now if n == 1 else first
        last = n == max_tokens
        for k, detokenizer in list(unfinished.items()):
            # Finished texts stay in the batch, because removing a row would need another graph.
            text = detokenizer.push(tokens[k], last)
            statistics = Statistics(
                prompt_tokens=len(prompt),
                prompt_read=read,
                prompt_tok_s=read / (first - start),
                tokens=n,
                tok_s=(n - 1) / (now - first) if n > 1 else 0.0,
                peak_memory=mx.get_peak_memory(),
                cache_bytes_per_token=sum(cache.bytes_per_token for cache in state.caches),
                finish_reason="stop" if detokenizer.stop_text else "length" if last else None,
                stop_text=detokenizer.stop_text,
                seed=sampler.seeds[k],
            )
            yield k, GenerationStep(text, tokens[k], statistics)
            if detokenizer.stop_text:
                del unfinished[k]
        if not unfinished:
            return


@dataclass(frozen=True, slots=True)
class LoadedRun:
    """A run, its best weights and its tokenizer."""

    run: Run
    model: GPT
    tokenizer: Tokenizer
    step: TokenStep = field(init=False, repr=False, compare=False)  # shared by all its texts

    def __post_init__(self):
        object.__setattr__(self, "step", TokenStep(self.model))

    @property
    def name(self) -> str:
        """The run's name."""
        return self.run.name

    @property
    def _corpus(self) -> str:
        return str(self.run.settings.get("corpus", ""))

    @property
    def document_ends(self) -> tuple[str, ...]:
        """Texts at which a document ends, by its tokenizer and the corpus that it learned."""
        return document_ends(self.tokenizer, self._corpus)

    @property
    def start_tokens(self) -> list[int]:
        """The tokens before each document of the text that it learned, and before a prompt."""
        return start_tokens(self.tokenizer, self._corpus)

    def unfamiliar(self, text: str) -> str:
        """Return one line if a text costs the model more than guessing would, otherwise ""."""
        context = self.model.config.context_length
        # Only the end of a long text fits into the context.
        own = self.tokenizer.encode(text).tolist()[-context:]
        tokens = begin(own, self.start_tokens, context)
        loss = text_loss(self.model, tokens, len(own)) if own else 0.0
        # A uniform guess over V tokens costs ln V nats.
        guessing = math.log(self.model.config.vocab_size)
        if not loss > guessing + 0.005:  # what two decimals show
            return ""
        return (
            f"this model has only read {describe(self._corpus)}: your text costs it {loss:.2f} "
            f"nats per token, and guessing would cost {guessing:.2f}; train on your own: mlx-attn "
            "train --data notes/"
        )

    def stream(
        self,
        prompt: str,
        config: SamplerConfig | None = None,
        max_tokens: int = 200,
        stop: Sequence[str] = (),
    ) -> Iterator[GenerationStep]:
        """Return the continuation of a prompt; see `stream_generate`."""
        return (step for _, step in self.stream_batch(prompt, 1, config, max_tokens, stop))

    def stream_batch(
        self,
        prompt: str,
        count: int,
        config: SamplerConfig | None = None,
        max_tokens: int = 200,
        stop: Sequence[str] = (),
    ) -> Iterator[tuple[int, GenerationStep]]:
        """Yield several continuations of a prompt as one batch; see the function `stream_batch`."""
        arguments = (prompt, count, config, max_tokens, stop, self.step, self.start_tokens)
        return stream_batch(self.model, self.tokenizer, *arguments)


def load_run(name: str | None = None, runs: Path = RUNS) -> LoadedRun:
    """Return a run by its directory or its name in `runs`; None is the latest finished one."""
    run = find_run(name, runs)
    return LoadedRun(run, run.load_model(), run.load_tokenizer())
