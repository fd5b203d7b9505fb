"""From a layer of any form to its factors, exactly.

Every map of attention is affine, so its matrix and its bias are read off by applying it to the rows
of the identity and to 0: no form needs a case of its own.
"""

import mlx.core as mx
import numpy as np
from jaxtyping import Float

from mlx_attn.attention.heads import join_heads, split_heads
from mlx_attn.lab.convert.factors import OutputFactors, ScoreFactors
from mlx_attn.lab.convert.layer import Layer


def read_scores(layer: Layer) -> ScoreFactors:
    """The score map of a layer: queries and keys before normalisation and rotation."""
    with mx.stream(mx.cpu):  # Metal has no float64
        q, k = layer.attention.score(layer.attention, _basis(layer.config.d_in)[None])
        (query, query_bias), (key, key_bias) = _affine(q), _affine(k)
    return ScoreFactors(query, query_bias, key, key_bias)


def read_output(layer: Layer) -> OutputFactors:
    """The value and output maps of a layer."""
    attention, config = layer.attention, layer.config
    with mx.stream(mx.cpu):
        x = _basis(config.d_in)[None]
        _, k = attention.score(attention, x)
        read = join_heads(k) if config.value == "from_key" else x
        value, bias = _affine(attention.value(attention, read, k))
        heads = split_heads(_basis(config.n_heads * value.shape[1])[None], config.n_heads)
        output, constant = _affine(attention.output(attention, heads)[:, None])
    return OutputFactors(value, bias, output[0], constant[0])


def _basis(width: int) -> Float[mx.array, "rows width"]:
    """The rows of the identity, and 0."""
    return mx.concatenate([mx.eye(width, dtype=mx.float64), mx.zeros((1, width), mx.float64)])


def _affine(
    y: Float[mx.array, "1 heads rows D"],
) -> tuple[Float[np.ndarray, "heads D columns"], Float[np.ndarray, "heads D"]]:
    """The stored matrix and the bias of a map, from what it makes of the basis."""
    made = np.array(y[0])
    bias = made[:, -1]
    return (made[:, :-1] - bias[:, None]).swapaxes(1, 2), bias
