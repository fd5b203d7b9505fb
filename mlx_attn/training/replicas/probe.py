"""Whether replicas are faster together than one after another on this machine: a short trial."""

import time
from collections.abc import Sequence

import mlx.core as mx

from mlx_attn.text.corpus import Corpus
from mlx_attn.training.replicas.launch import Launch, Together, in_turn
from mlx_attn.training.replicas.replica import Replica, replicas_of
from mlx_attn.training.settings import Settings

ROUNDS = 5
WORTH_IT = 1.2
"""A smaller gain than this is not worth results that differ in the last digits."""


def step_times(
    settings: Sequence[Settings], corpus: Corpus, rounds: int = ROUNDS
) -> tuple[float, float]:
    """Seconds of one step of all: in turn, and together; the best of each kind.

    Trains throw-away models for a few steps. The state of MLX's random numbers is not kept, so this
    is to be called before the models of a training are made.

    Args:
        settings: Of the replicas, as for `replicas_of`.
        corpus: What they train on.
        rounds: Steps of each kind that are timed, alternating, after one that is not.
    """
    kinds: list[Launch] = [in_turn, Together()]
    pairs = [(launch, replicas_of(settings, corpus)) for launch in kinds]
    apart, together = _best_times(pairs, rounds)
    return apart, together


def step_seconds(settings: Settings, corpus: Corpus, rounds: int = ROUNDS) -> float:
    """Seconds of one step of one training alone; see `step_times`."""
    (best,) = _best_times([(in_turn, replicas_of([settings], corpus))], rounds)
    return best


def speedup(settings: Sequence[Settings], corpus: Corpus, rounds: int = ROUNDS) -> float:
    """The time of a step in turn, divided by that of one together; see `step_times`."""
    apart, together = step_times(settings, corpus, rounds)
    return apart / together


def pays_off(settings: Sequence[Settings], corpus: Corpus) -> bool:
    """Whether training these together is faster by a fifth or more; see `speedup`."""
    return len(settings) > 1 and speedup(settings, corpus) >= WORTH_IT


def _best_times(pairs: Sequence[tuple[Launch, Sequence[Replica]]], rounds: int) -> list[float]:
    """Of every kind the time of its fastest step, but for the first, which compiles."""
    times = [[_seconds(launch, group) for launch, group in pairs] for _ in range(rounds + 1)]
    return [min(column) for column in zip(*times[1:], strict=True)]


def _seconds(launch: Launch, group: Sequence[Replica]) -> float:
    """The time of one step of all."""
    start = time.perf_counter()
    for result in launch(group):
        for number in result:
            number.item()
    mx.synchronize()
    return time.perf_counter() - start
