"""From arrays back to a model."""

from collections.abc import Mapping

import mlx.core as mx
import numpy as np

from mlx_attn.lab.convert.layer import as_mlx
from mlx_attn.model import GPT, GPTConfig


def build_model(
    config: GPTConfig, arrays: Mapping[str, mx.array | np.ndarray], dtype: mx.Dtype
) -> GPT:
    """A model of these arrays, in evaluation mode; those that come from NumPy get the type."""
    model = GPT(config)
    model.load_weights(
        [
            (name, as_mlx(array, dtype) if isinstance(array, np.ndarray) else array)
            for name, array in arrays.items()
        ]
    )
    model.eval()
    return model
