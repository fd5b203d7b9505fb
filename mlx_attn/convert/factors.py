"""A matrix as a product of two thin ones."""

from collections.abc import Mapping
from dataclasses import dataclass

import mlx.core as mx
import numpy as np
from jaxtyping import Float

from mlx_attn.arrays import named_arrays
from mlx_attn.attention.attention import Attention
from mlx_attn.attention.config import AttentionConfig
from mlx_attn.attention.maps import join_heads, merge_query_key, merge_value_output, split_heads
from mlx_attn.errors import RunError
from mlx_attn.model.config import GPTConfig
from mlx_attn.model.gpt import GPT


def balanced_factors(
    matrix: Float[np.ndarray, "*heads rows columns"], rank: int
) -> tuple[Float[np.ndarray, "*heads rows rank"], Float[np.ndarray, "*heads rank columns"]]:
    """The best product A B of that rank, with both factors equally large.

    With the singular value decomposition M = U diag(s) V, A = U sqrt(s) and B = sqrt(s) V, cut to
    the largest singular values, which come first. No matrix of that rank is nearer to M in the
    Frobenius norm (Eckart and Young, 1936); at full rank the product is M.
    """
    U, s, V = np.linalg.svd(matrix, full_matrices=False)
    root = np.sqrt(s[..., :rank])
    return U[..., :rank] * root[..., None, :], root[..., :, None] * V[..., :rank, :]


def relative_error(
    exact: Float[np.ndarray, "*shape"], approximate: Float[np.ndarray, "*shape"]
) -> float:
    """|exact - approximate| / |exact| in the Frobenius norm; 0 where both are 0."""
    size = np.linalg.norm(exact)
    return float(np.linalg.norm(exact - approximate) / size) if size else 0.0


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


@dataclass(frozen=True, slots=True)
class ScoreFactors:
    """score_h(i, j) = scale * (query_h x_i + query_bias_h) . (key_g x_j + key_bias_g).

    Matrices are (out, in), as stored. The bias of the key adds the same number to all scores of a
    query and cancels in the softmax: no form needs it, but a value made from the key.
    """

    query: Float[np.ndarray, "H K C"]
    query_bias: Float[np.ndarray, "H K"]
    key: Float[np.ndarray, "kv_heads K C"]
    key_bias: Float[np.ndarray, "kv_heads K"]

    @property
    def products(self) -> Float[np.ndarray, "H C C"]:
        """S_h of every head, as stored: the query's side in the columns."""
        H, C = len(self.query), self.query.shape[2]
        merged = merge_query_key(self.query.reshape(-1, C), self.key.reshape(-1, C), H)
        return merged.reshape(H, C, C)

    @property
    def key_side_vectors(self) -> Float[np.ndarray, "H C"]:
        """u_h = W_key_h b_query_h, so that a query's bias adds scale * u_h . x_j."""
        key = np.repeat(self.key, len(self.query) // len(self.key), axis=0)
        return np.einsum("hkc,hk->hc", key, self.query_bias)

    @property
    def rows(self) -> Float[np.ndarray, "H C_1 C"]:
        """All of the score map, (x_i, 1) [S_h; u_h] x_j^T: the vector is one more row of S_h."""
        S = self.products.swapaxes(1, 2)
        return np.concatenate([S, self.key_side_vectors[:, None]], axis=1)


@dataclass(frozen=True, slots=True)
class OutputFactors:
    """y = sum_h output_h (value_g (softmax_h x) + value_bias_g) + constant.

    Matrices are (out, in), as stored.
    """

    value: Float[np.ndarray, "kv_heads D C"]
    value_bias: Float[np.ndarray, "kv_heads D"]
    output: Float[np.ndarray, "d_out width"]
    constant: Float[np.ndarray, " d_out"]

    @property
    def n_heads(self) -> int:
        """Query heads."""
        return self.output.shape[1] // self.value.shape[1]

    @property
    def products(self) -> Float[np.ndarray, "H d_out C"]:
        """VO_h of every head, as stored."""
        merged = merge_value_output(
            self.value.reshape(-1, self.value.shape[2]), self.output, self.n_heads
        )
        return merged.reshape(len(merged), self.n_heads, -1).swapaxes(0, 1)

    @property
    def whole_constant(self) -> Float[np.ndarray, " d_out"]:
        """The constant with the values' biases in it: the weights of a softmax add up to 1."""
        biases = np.repeat(self.value_bias, self.n_heads // len(self.value), axis=0)
        return self.constant + self.output @ biases.reshape(-1)


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
