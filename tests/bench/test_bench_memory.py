"""Memory of a training step: what it grows with, and what adds nothing."""

import mlx.core as mx
import numpy as np
import pytest

from mlx_attn.bench.speed import prepared
from mlx_attn.model.config import BLOCKS, config_from, find_preset
from mlx_attn.model.gpt import GPT
from mlx_attn.text.corpus import Split
from mlx_attn.training.config import TrainConfig, resolve
from mlx_attn.training.evaluation import Evaluator


def peak(batch_size: int = 8, n_layers: int = 2) -> int:
    sizes = {"vocab_size": 64, "context_length": 64, "emb_dim": 64, "n_heads": 2}
    config = config_from({**sizes, "n_layers": n_layers, **BLOCKS["modern"]})
    recipe = TrainConfig(steps=1, batch_size=batch_size, optimizer="adamw")
    return prepared("train", config, recipe)[1]


@pytest.mark.parametrize("axis", ["batch_size", "n_layers"])
def test_a_step_s_memory_grows_by_as_much_with_every_doubling(axis):
    at = {size: peak(**{axis: size}) for size in (8, 16, 32)}
    assert at[32] - at[16] == pytest.approx(2 * (at[16] - at[8]), rel=0.25)


@pytest.mark.parametrize("name", ["tiny", "macbook"])
def test_validation_needs_less_memory_than_a_step(name):
    settings = resolve({"preset": name})
    config = settings.model_config(find_preset(name).vocab_size)
    step = prepared("train", config, settings.training)[1]
    model, tokens = GPT(config), np.arange(8000, dtype=np.uint16) % config.vocab_size
    evaluator = Evaluator(Split(tokens=tokens, n_bytes=len(tokens)), config.context_length)
    mx.eval(model.parameters())
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    evaluator(model)
    assert mx.get_peak_memory() - before < step
