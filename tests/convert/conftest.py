from collections.abc import Callable
from functools import cache
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from mlx_attn.convert.measure import float64_logits
from mlx_attn.convert.model import convert
from mlx_attn.machine.device import float64
from mlx_attn.model.gpt import GPT
from mlx_attn.run_directory import Run
from mlx_attn.training.config import Settings, resolve
from mlx_attn.training.trainer import Trainer
from tests.runs import create_run

STEPS = 12
SIZES: dict[str, Any] = {
    "preset": "tiny",
    "block": "book",
    "tokenizer": "char",
    "emb_dim": 32,
    "n_heads": 4,
    "n_layers": 2,
    "context_length": 32,
    "batch_size": 8,
    "steps": STEPS,
    "warmup": 5,
    "lr": 1e-2,
    "drop_rate": 0.0,
    "compile": "off",
}
Trained = Callable[..., GPT]


@pytest.fixture(scope="session")
def settings_of(corpus) -> Callable[..., Settings]:
    """The settings of a tiny model on that text."""
    return lambda **changes: resolve({**SIZES, "data": corpus.name, **changes})


@pytest.fixture(scope="session")
def trained(corpus, settings_of) -> Trained:
    """A model trained for a few steps, once for each kind."""

    @cache
    def train(**changes) -> GPT:
        trainer = Trainer(settings_of(**changes), corpus)
        for _ in range(STEPS):
            trainer.launch_step()
        mx.eval(trainer.model.parameters())
        trainer.model.eval()
        return trainer.model

    return train


@pytest.fixture
def run(trained, settings_of, corpus, tmp_path) -> Run:
    """The run directory of a trained standard model."""
    model, settings = trained(qkv_bias=True), settings_of(qkv_bias=True)
    record = settings.record(model.config, digest=corpus.digest)
    run = create_run(tmp_path / "runs" / "nano", record, tokenizer=corpus.tokenizer)
    run.save_model(model)
    return run


@pytest.fixture(scope="session")
def windows(corpus) -> mx.array:
    """Four windows of the validation text."""
    return mx.array(corpus.val.tokens[: 4 * 32].reshape(4, 32))


@pytest.fixture(scope="session")
def exact_difference(windows) -> Callable[[GPT, GPT], float]:
    """The largest difference between the logits of two models computed in float64."""

    def difference(before: GPT, after: GPT) -> float:
        return np.abs(float64_logits(before, windows) - float64_logits(after, windows)).max()

    return difference


def of_type(model: GPT, dtype: mx.Dtype) -> GPT:
    """A copy of another type; in float64 a conversion's own rounding shows."""
    with float64():
        copy = GPT(model.config)
        copy.update(model.parameters())
        copy.set_dtype(dtype)
        return copy


def convert_exactly(model: GPT, to: str, **options: Any) -> GPT:
    """Convert a copy in float64, if the device has it."""
    with float64():
        return convert(of_type(model, mx.float64), to, **options)
