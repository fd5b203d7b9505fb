import gc
from collections.abc import Callable
from math import ceil

import mlx.core as mx
import numpy as np
import pytest

from mlx_attn.errors import ConfigError
from mlx_attn.machine.facts import machine_memory, usable_memory
from mlx_attn.model.config import GPTConfig
from mlx_attn.training.forecast import forecast
from mlx_attn.training.trainer import Trainer, check_memory, least_memory


def test_a_limit_of_the_shell_counts(monkeypatch, on_processor):
    assert 2**29 < usable_memory() <= machine_memory()
    monkeypatch.setattr("resource.getrlimit", lambda kind: (10**6, 10**6))
    with pytest.raises(ConfigError, match=r"needs more than .* GB and there are 0\.0 GB"):
        check_memory(GPTConfig(), 64)


# The forecast, and the memory that a training takes.


DEEP = {"batch_size": 96, "n_layers": 6, "emb_dim": 32}  # most of its memory is activations
WIDE = {"batch_size": 1, "n_layers": 4, "emb_dim": 256}  # weights
LONG = {"batch_size": 1, "n_layers": 8, "emb_dim": 32, "n_heads": 8, "context_length": 1024}
"""Most of its memory is attention weights, of which a processor stores those of earlier keys."""
SHARES = [(DEEP, 0.5), (WIDE, 0.15), (LONG, 0.3)]


def taken(make: Callable[..., Trainer], sizes: dict[str, int]) -> int:
    """The most bytes of a few steps."""
    gc.collect()
    mx.clear_cache()
    others = mx.get_active_memory()
    mx.reset_peak_memory()
    training = make(**sizes)
    for _ in range(3):
        mx.eval(*training.launch_step(), *training.step.state)
    return mx.get_peak_memory() - others


@pytest.mark.parametrize(("sizes", "share"), SHARES, ids=["deep", "wide", "long"])
def test_a_training_takes_more_than_what_it_is_refused_for(trainer, no_lookahead, sizes, share):
    bound = least_memory(trainer(**sizes).model.config, sizes["batch_size"])
    peak = taken(trainer, sizes)
    assert share * peak < bound < peak


@pytest.mark.parametrize("work", [12e9, 16e6], ids=["the whole batch", "a part of it"])
def test_the_forecast_memory_is_what_steps_take_but_for_15_percent(
    trainer, no_lookahead, monkeypatch, work
):
    monkeypatch.setattr("mlx_attn.training.forecast._WORK", work)
    expected = forecast(trainer(**DEEP))
    assert expected.peak_memory == pytest.approx(taken(trainer, DEEP), rel=0.15)


def test_the_minutes_hold_earlier_sessions_and_validations(trainer, monkeypatch):
    costs = np.array([1.0, 0.0, 8.0, 0.0, 0.0, 0.0])  # a step takes a second, a validation eight
    monkeypatch.setattr("mlx_attn.training.forecast._measure", lambda trainer: costs)
    training = trainer(steps=0, minutes=1.0, eval_every=4, accumulate=4)  # of which two are tried
    training.progress.seconds, training.progress.step = 30.0, 2
    expected = forecast(training)
    assert (expected.step_seconds, expected.steps, expected.validations) == (2, 8, 3)


def test_of_a_large_batch_each_window_takes_the_same_time_and_memory(trainer, monkeypatch):
    def measured(settings, corpus, tokens):
        windows = settings.training.batch_size
        assert 2 <= windows < 96
        return np.array([windows, 7, 8, 9, windows, 1])

    monkeypatch.setattr("mlx_attn.training.forecast.parts_take_less", lambda: True)
    monkeypatch.setattr("mlx_attn.training.forecast._WORK", 16e6)
    monkeypatch.setattr("mlx_attn.training.forecast._measure_batch", measured)
    expected = forecast(trainer(batch_size=96, n_layers=6, emb_dim=32))
    assert (expected.step_seconds, expected.validation_seconds) == (96 + 7, 8)
    assert expected.peak_memory == 9 + 96
    few = trainer(batch_size=2**16, windows="epochs", n_layers=6, emb_dim=32)  # than in a batch
    assert forecast(few).step_seconds == few.sampler.batch_size + 7


def test_of_a_model_that_is_too_large_to_try_the_time_is_counted(trainer, monkeypatch):
    """Two windows of few tokens, two layers and their share of the vocabulary are all it tries."""
    tried = []

    def measured(settings, corpus, tokens):
        sizes = settings.training.batch_size, settings.model["n_layers"]
        tried.append((*sizes, corpus.tokenizer.vocab_size))
        return np.array([1.0, 0.0, 1.0, 9e9, 9e9, 9e9])

    monkeypatch.setattr("mlx_attn.training.forecast.parts_take_less", lambda: True)
    monkeypatch.setattr("mlx_attn.training.forecast._WORK", 5e4)
    monkeypatch.setattr("mlx_attn.training.forecast._measure_batch", measured)
    small, large, batch = (
        forecast(trainer(n_layers=layers, batch_size=size))
        for layers, size in ((8, 64), (32, 64), (8, 128))
    )
    assert tried == [(2, 2, ceil(trainer().model.config.vocab_size * 2 / n)) for n in (8, 32, 8)]
    assert (small.peak_memory, batch.step_seconds) == (0, 2 * small.step_seconds)
    assert 3 < large.step_seconds / small.step_seconds < 4
    monkeypatch.setattr("mlx_attn.training.forecast.CharacterTokenizer", None)
    forecast(trainer(n_layers=2, batch_size=64))  # a whole vocabulary is not replaced
