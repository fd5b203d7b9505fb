"""One attention layer as numbers: in float64, so that an exact conversion is exact."""

from collections.abc import Mapping
from dataclasses import dataclass

import mlx.core as mx
import numpy as np
from jaxtyping import Float

from mlx_attn.attention import Attention, AttentionConfig
from mlx_attn.errors import RunError
from mlx_attn.trees import named_arrays

Weights = Mapping[str, np.ndarray]


@dataclass(frozen=True, slots=True)
class Layer:
    """An attention layer.

    Attributes:
        attention: The layer, its weights in float64.
        weights: These weights by name, such as "W_query.weight".
        read: What its heads read of some text, softmax_h x, where that is known; lazily.
    """

    attention: Attention
    weights: Weights
    read: Float[mx.array, "B H T C"] | None = None

    @property
    def config(self) -> AttentionConfig:
        """The layer's sizes and choices."""
        return self.attention.config


def read_layer(attention: Attention, x: Float[mx.array, "B T C"] | None = None) -> Layer:
    """A copy of a layer in float64, and what its heads read of x.

    Raises:
        RunError: Its weights are not finite: the training diverged.
    """
    weights = {name: as_numpy(array) for name, array in named_arrays(attention).items()}
    for name, array in weights.items():
        if not np.isfinite(array).all():
            raise RunError(f"{name} holds numbers that are not finite: train the model again")
    exact = build_attention(attention.config, weights)
    return Layer(exact, weights, None if x is None else attention.weights(x) @ x[:, None])


def completed(weights: Weights, config: AttentionConfig) -> Weights:
    """Those of the weights that a layer of this configuration has; a bias that is missing is 0."""
    shapes = {name: array.shape for name, array in named_arrays(Attention(config)).items()}
    zeros = {name: np.zeros(shape) for name, shape in shapes.items() if name.endswith(".bias")}
    return {name: {**zeros, **weights}[name] for name in shapes}


def build_attention(config: AttentionConfig, weights: Weights) -> Attention:
    """A layer of these weights, in float64 and in evaluation mode."""
    attention = Attention(config)
    arrays = completed(weights, config).items()
    attention.load_weights([(name, as_mlx(array)) for name, array in arrays])
    attention.eval()
    return attention


def as_numpy(array: mx.array) -> np.ndarray:
    """A copy in float64; integers stay what they are."""
    if not mx.issubdtype(array.dtype, mx.floating):
        return np.array(array)
    exact = array.astype(mx.float32) if array.dtype == mx.bfloat16 else array
    return np.array(exact).astype(np.float64)


def as_mlx(array: np.ndarray, dtype: mx.Dtype = mx.float64) -> mx.array:
    """The same numbers of that type; integers stay what they are."""
    return mx.array(array, dtype) if array.dtype == np.float64 else mx.array(array)
