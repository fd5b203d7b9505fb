"""How time and memory grow with one size: the same model at half, once, twice and four times it."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from mlx_attn.lab.bench.measure import Setup
from mlx_attn.model.config import GPTConfig, config_from
from mlx_attn.training.config import TrainConfig

FACTORS = (0.5, 1, 2, 4)
AXES = {
    "context": "context_length",
    "width": "emb_dim",
    "layers": "n_layers",
    "batch": "batch_size",
}
"""What can grow, and the setting of each."""


def scaled(model: Mapping[str, Any], training: TrainConfig, axis: str) -> dict[str, Setup]:
    """The setups to measure, from the smallest to the largest.

    Args:
        model: Keys of `GPTConfig`; sizes that it leaves out follow the others.
        training: The recipe.
        axis: A key of `AXES`.
    """
    key = AXES[axis]
    base = training.batch_size if axis == "batch" else getattr(config_from(model), key)
    sizes = sorted({max(1, round(base * factor)) for factor in FACTORS})
    return {f"{axis} {size}": _setup(model, training, key, size) for size in sizes}


def _setup(model: Mapping[str, Any], training: TrainConfig, key: str, size: int) -> Setup:
    if key == "batch_size":
        return config_from(model), replace(training, batch_size=size)
    config: GPTConfig = config_from({**model, key: size})
    return config, training
