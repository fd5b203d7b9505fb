"""Memory of a training step: what it grows with, and what adds nothing."""

import pytest

from mlx_attn.lab.bench.measure import prepared
from mlx_attn.model.config import BLOCKS, config_from
from mlx_attn.training.config import TrainConfig


def peak(batch_size: int = 8, n_layers: int = 2) -> int:
    sizes = {"vocab_size": 64, "context_length": 64, "emb_dim": 64, "n_heads": 2}
    config = config_from({**sizes, "n_layers": n_layers, **BLOCKS["modern"]})
    recipe = TrainConfig(steps=1, batch_size=batch_size, optimizer="adamw")
    return prepared("train", config, recipe)[1]


@pytest.mark.parametrize("axis", ["batch_size", "n_layers"])
def test_a_step_s_memory_grows_by_as_much_with_every_doubling(axis):
    at = {size: peak(**{axis: size}) for size in (4, 8, 16)}
    assert at[16] - at[8] == pytest.approx(2 * (at[8] - at[4]), rel=0.25)
