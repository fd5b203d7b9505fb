"""Measure attention maps, head statistics and spectra of a model on some texts."""

from collections.abc import Mapping
from dataclasses import dataclass

import mlx.core as mx
import numpy as np
from jaxtyping import Float, Float32, Float64, Integer
from scipy import special

from mlx_attn.activations import run_with_cache
from mlx_attn.convert import circuits
from mlx_attn.errors import ConfigError, RunError, plural
from mlx_attn.model.config import GPTConfig
from mlx_attn.model.gpt import GPT
from mlx_attn.run_directory import Run
from mlx_attn.runs import LoadedRun
from mlx_attn.sampling.generate import begin
from mlx_attn.text.corpus import Corpus
from mlx_attn.training.config import settings_from
from mlx_attn.training.evaluation import Evaluator

LONGEST = 256
"""Most tokens of a text: a map needs their square, and a reader cannot take in more."""

_Tokens = Integer[np.ndarray, "B T"]


def prompt_tokens(loaded: LoadedRun, text: str) -> _Tokens:
    """Return the last tokens of a text that fit into the run's context and into `LONGEST`.

    The document's start comes before a text that fits with it.

    Raises:
        ConfigError: The tokenizer lacks a character, or there are fewer than two tokens.
    """
    longest = min(loaded.model.config.context_length, LONGEST)
    read = begin(loaded.tokenizer.encode(text).tolist(), loaded.start_tokens, longest)
    tokens = np.array(read[-longest:])
    if len(tokens) < 2:
        raise ConfigError(
            f"the prompt is {plural(len(tokens), 'token')} long, and a single token "
            "attends only to itself: give a prompt of at least two"
        )
    return tokens[None].astype(np.int64)


def validation_windows(corpus: Corpus, context_length: int, count: int) -> _Tokens:
    """Return up to `count` evenly spread windows of a validation text, cut to `LONGEST`."""
    if count < 1:
        raise ConfigError(f"windows={count} must be at least 1")
    return Evaluator(corpus.val, context_length).texts(count)[:, :LONGEST]


def corpus_of(run: Run) -> Corpus:
    """Return the text that a run was trained on.

    Raises:
        RunError: The text can no longer be read, or has changed.
    """
    settings = settings_from(run.own_settings, {})
    if settings.text.data == "-":
        raise RunError(f"{run.path} read its text from standard input: give a prompt")
    corpus = settings.corpus()
    run.check_corpus(corpus, "give a prompt")
    return corpus


Maps = Float[np.ndarray, "*heads T T"]
_PerHead = Float64[np.ndarray, "*heads"]
Statistics = dict[str, Float64[np.ndarray, "L H"]]
"""Numbers of every head, averaged over texts, by the name of the function that computes them."""


def _head_statistics(
    maps: Float[np.ndarray, "L B H T T"], repeated: Float[np.ndarray, "L B2 H T2 T2"]
) -> Statistics:
    """Compute all statistics; each `repeated` text consists of two equal halves."""
    # Layer by layer: several float64 copies of all maps would not fit into memory.
    averages = {
        statistic.__name__: np.stack([statistic(layer).mean(0) for layer in maps])
        for statistic in (entropy, distance, previous, first)
    }
    return averages | {"induction": induction(repeated).mean(1)}


def uniform_statistics(T: int, T_repeated: int) -> dict[str, float]:
    """Return the statistics of a head with uniform attention, for comparison."""
    maps, repeated = (uniform_map(length)[None, None] for length in (T, T_repeated))
    statistics = _head_statistics(maps, repeated)
    return {name: numbers.item() for name, numbers in statistics.items()}


def entropy(maps: Maps) -> _PerHead:
    """Return -sum_j A_ij ln A_ij in nats, averaged over i > 0: e^entropy tokens are attended to."""
    rows = np.maximum(maps[..., 1:, :], 0).astype(np.float64)  # a mixing may have negative ones
    return special.entr(rows).sum(-1).mean(-1)


def distance(maps: Maps) -> _PerHead:
    """Return sum_j A_ij (i - j) in tokens, averaged over i > 0."""
    position = np.arange(maps.shape[-1])
    back = np.maximum(position[:, None] - position, 0)
    return np.sum(maps[..., 1:, :] * back[1:].astype(np.float64), axis=-1).mean(-1)


def previous(maps: Maps) -> _PerHead:
    """Return A_i,i-1 averaged over i > 0: 1 for a head that attends only to the previous token."""
    return np.diagonal(maps, -1, -2, -1).astype(np.float64).mean(-1)


def first(maps: Maps) -> _PerHead:
    """Return A_i0 averaged over i > 0: 1 for a head that attends only to the first token."""
    return maps[..., 1:, 0].astype(np.float64).mean(-1)


def induction(repeated: Maps) -> _PerHead:
    """Return the weight on the token that followed the last occurrence, in repeated texts.

    A_i,i-n+1 averaged over the second half i >= n of maps of 2 n tokens; NaN below n = 2. This is
    the prefix-matching score of Olsson et al., In-context Learning and Induction Heads,
    arXiv:2209.11895.
    """
    n = repeated.shape[-1] // 2
    if n < 2:
        return np.full(repeated.shape[:-2], np.nan)
    return np.diagonal(repeated, 1 - n, -2, -1)[..., 1:].astype(np.float64).mean(-1)


def uniform_map(T: int) -> Float64[np.ndarray, "1 T T"]:
    """Return the causal map of one head with uniform attention."""
    return np.tril(np.ones((1, T, T))) / np.arange(1, T + 1)[:, None]


def attention_maps(model: GPT, tokens: _Tokens) -> Float32[np.ndarray, "L B H T T"]:
    """Return the attention weights of every head, [i, j] of token i on token j."""
    _, activations = run_with_cache(model, mx.array(tokens))
    names = (f"trf_blocks.{layer}.att.attn_weights" for layer in range(model.config.n_layers))
    return np.stack([np.array(activations[name].astype(mx.float32)) for name in names])


def repeated_sequences(vocab_size: int, context_length: int) -> Integer[np.ndarray, "4 T"]:
    """Return four rows of n <= 64 different random tokens, repeated once.

    Only the first half predicts the second, so a model that predicts it copies: the test for
    induction heads by Olsson et al. (arXiv:2209.11895).
    """
    n = min(context_length // 2, vocab_size, 64)
    random = np.random.default_rng(0)
    once = np.stack([random.permutation(vocab_size)[:n] for _ in range(4)])
    return np.concatenate([once, once], axis=1)


@dataclass(frozen=True, slots=True)
class Probe:
    """The heads of a model that read B texts of T tokens; L layers, H heads."""

    config: GPTConfig
    tokens: _Tokens
    maps: Float32[np.ndarray, "L B H T T"]  # see `attention_maps`
    statistics: Statistics
    uniform: Mapping[str, float]  # of a head with uniform attention, for comparison
    spectra: Mapping[str, Statistics]  # of the matrices S_h, "S", and V_h O_h, "VO"
    reasons: Mapping[str, str]  # why one of them is missing

    @property
    def n_maps(self) -> int:
        """Number of attention maps of a layer: one per head, or several."""
        return self.maps.shape[2]

    @property
    def row_sums(self) -> tuple[float, float]:
        """The smallest and the largest sum of a token's weights."""
        sums = self.maps.sum(axis=-1, dtype=np.float64)
        return float(sums.min()), float(sums.max())


def probe(model: GPT, tokens: _Tokens) -> Probe:
    """Measure every head of a model in evaluation mode on texts of the same length.

    Raises:
        RunError: The model's weights are not finite.

    Example:
        >>> result = probe(loaded.model, prompt_tokens(loaded, text))
        >>> weights = result.maps[0, 0, 1]  # layer, text, head: [T, T]
    """
    config = model.config
    spectra: dict[str, Statistics] = {}
    reasons: dict[str, str] = {}
    for name, circuit in {"S": circuits.qk_circuit, "VO": circuits.ov_circuit}.items():
        try:
            spectra[name] = circuits.spectra(circuit(block.att) for block in model.trf_blocks)
        except circuits.NoMatrix as missing:
            reasons[name] = missing.reason
    maps = attention_maps(model, tokens)
    repeated = repeated_sequences(config.vocab_size, config.context_length)
    statistics = _head_statistics(maps, attention_maps(model, repeated))
    uniform = uniform_statistics(tokens.shape[1], repeated.shape[1])
    return Probe(config, tokens, maps, statistics, uniform, spectra, reasons)
