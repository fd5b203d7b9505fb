"""What a layer's weights amount to, whatever its form: S_h and V_h O_h of every head.

    score_h(i, j) = scale * x_i S_h x_j^T        a head moves x_j V_h O_h to token i

These are the QK and OV circuits of Elhage et al. (A Mathematical Framework for Transformer
Circuits, 2021). Every map of attention is linear up to a bias, so its matrix is read off by
applying it to the rows of the identity: no form needs a case of its own. Biases are no part of
these matrices.
"""

from dataclasses import dataclass

import mlx.core as mx
import numpy as np
from jaxtyping import Float, Float64

from mlx_attn.arrays import named_arrays
from mlx_attn.attention.attention import Attention
from mlx_attn.attention.config import AttentionConfig
from mlx_attn.attention.maps import SCORES, join_heads, value_of
from mlx_attn.errors import RunError


@dataclass(frozen=True, slots=True)
class HeadProducts:
    """The matrices left_h right_h of all heads, kept as their factors.

    Attributes:
        left: W_query_h or W_value_h, S_h itself where it is one matrix.
        right: W_key_h^T or O_h, the identity where it is one matrix.
    """

    left: Float64[np.ndarray, "H C D"]
    right: Float64[np.ndarray, "H D d_out"]

    def matrices(self) -> Float64[np.ndarray, "H C d_out"]:
        """The products, multiplied out."""
        return self.left @ self.right

    def singular_values(self) -> Float64[np.ndarray, "H rank"]:
        """Of every product, the largest first; no more than the factors allow to be other than 0.

        With left = Q_1 R_1 and right^T = Q_2 R_2, the values are those of the small R_1 R_2^T.
        """
        if self.left.shape[2] >= self.left.shape[1]:
            return np.linalg.svd(self.matrices(), compute_uv=False)
        R_left = np.linalg.qr(self.left, mode="r")
        R_right = np.linalg.qr(np.swapaxes(self.right, 1, 2), mode="r")
        return np.linalg.svd(R_left @ np.swapaxes(R_right, 1, 2), compute_uv=False)


def score_products(attention: Attention) -> HeadProducts:
    """S_h as W_query_h W_key_h^T; see `why_not_one_matrix` for when there is more to scores.

    Raises:
        RunError: The weights are not finite.
    """
    with mx.stream(mx.cpu):  # Apple's newest GPUs would round the matrices to TF32
        q, k = attention.score(attention, _basis(attention.config.d_in)[None])
        query, key = (_per_head(y, attention.config.n_heads) for y in (q, k))
    # Contiguous, because NumPy multiplies stacks of transposed views a thousand times slower.
    return HeadProducts(query, np.ascontiguousarray(key.swapaxes(1, 2)))


def value_output_products(attention: Attention) -> HeadProducts:
    """V_h O_h as its factors: W_value_h and the rows of out_proj that read head h.

    Raises:
        RunError: The weights are not finite.
    """
    config = attention.config
    with mx.stream(mx.cpu):
        x = _basis(config.d_in)[None]
        _, k = attention.score(attention, x)
        read = join_heads(k) if config.value == "from_key" else x
        value = _per_head(attention.value(attention, read, k), config.n_heads)
        basis = _basis(value.shape[2])
        alone = [_only(basis, h, config.n_heads) for h in range(config.n_heads)]
        rows = [_per_head(attention.output(attention, heads)[:, None], 1)[0] for heads in alone]
    return HeadProducts(value, np.stack(rows))


def score_matrices(attention: Attention) -> Float64[np.ndarray, "H C C"]:
    """S_h of every head, for every form of attention: x_i S_h x_j^T is the score but for biases."""
    return score_products(attention).matrices()


def value_output_matrices(attention: Attention) -> Float64[np.ndarray, "H C d_out"]:
    """V_h O_h of every head, for every form of attention."""
    return value_output_products(attention).matrices()


def why_not_one_matrix(config: AttentionConfig) -> str:
    """Why the scores are not x_i S_h x_j^T for one S_h, and what S_h is then; empty where they are.

    ALiBi's bias and the biases of the maps are added to that form and leave S_h as it is.
    """
    reasons = {
        "RoPE turns queries and keys by their positions, so there is one matrix per distance: "
        "S_h is the one of distance 0": config.position == "rope",
        "queries and keys are divided by their lengths, which depend on the token: "
        "S_h is the matrix before that": config.qk_norm,
    }
    return "; ".join(reason for reason, applies in reasons.items() if applies)


def raw_scores(attention: Attention, x: Float[mx.array, "B T C"]) -> Float[mx.array, "B H T T"]:
    """The scores before mask and ALiBi, scale * x_i S_h x_j^T where that is all there is."""
    q, k = attention.score(attention, x)
    keys = attention.memory.keys(attention, attention.memory.write(attention, x, k, 0))
    keys = mx.repeat(keys, q.shape[1] // keys.shape[1], axis=1)
    return attention.config.scale * (attention.place(q, 0) @ keys.swapaxes(2, 3))


def _basis(width: int) -> Float[mx.array, "rows width"]:
    """The rows of the identity, and 0 to tell a bias by."""
    return mx.concatenate([mx.eye(width), mx.zeros((1, width))])


def _only(basis: mx.array, head: int, n_heads: int) -> Float[mx.array, "1 H rows D"]:
    """The heads' outputs where all heads but one are silent."""
    return (mx.arange(n_heads) == head)[None, :, None, None] * basis


def _per_head(y: Float[mx.array, "1 heads rows D"], n_heads: int) -> np.ndarray:
    """What a map made of the basis, less its bias; a head that serves several is repeated."""
    made = np.array(y[0].astype(mx.float64))
    if not np.isfinite(made).all():
        raise RunError("the attention weights are not finite: the training diverged; train again")
    return np.repeat(made[:, :-1] - made[:, -1:], n_heads // len(made), axis=0)


@dataclass(frozen=True, slots=True)
class Spectrum:
    """The matrices of one layer's heads, in numbers.

    Attributes:
        singular_values: Largest first.
        effective_rank: See `effective_rank`.
        stable_rank: See `stable_rank`.
        norm: Frobenius norm.
        symmetry: See `symmetry`.
    """

    singular_values: Float64[np.ndarray, "H rank"]
    effective_rank: Float64[np.ndarray, " H"]
    stable_rank: Float64[np.ndarray, " H"]
    norm: Float64[np.ndarray, " H"]
    symmetry: Float64[np.ndarray, " H"]


def spectrum(products: HeadProducts) -> Spectrum:
    """The spectrum of every head's matrix, which must be square."""
    values = products.singular_values()
    return Spectrum(
        values,
        effective_rank(values),
        stable_rank(values),
        np.linalg.norm(values, axis=-1),
        symmetry(products.matrices()),
    )


def effective_rank(
    singular_values: Float[np.ndarray, "H rank"],
) -> Float64[np.ndarray, " H"]:
    """exp(-sum_k p_k ln p_k) with p_k = s_k / sum(s): between 1 and the rank; 0 for the 0 matrix.

    Source: Roy and Vetterli, The Effective Rank, EUSIPCO 2007.
    """
    total = singular_values.sum(-1, keepdims=True)
    p = _ratio(singular_values, total)
    entropy = -np.sum(p * np.log(np.where(p > 0, p, 1)), axis=-1)
    return np.where(total[..., 0] > 0, np.exp(entropy), 0.0)


def stable_rank(
    singular_values: Float[np.ndarray, "H rank"],
) -> Float64[np.ndarray, " H"]:
    """|S|_F^2 / |S|_2^2: between 1 and the rank, and blind to small values; 0 for the 0 matrix.

    Source: Rudelson and Vershynin, Sampling from Large Matrices, J. ACM 2007.
    """
    squares = singular_values**2
    return _ratio(squares.sum(-1), squares[..., 0])


def symmetry(
    matrices: Float[np.ndarray, "H C C"],
) -> Float64[np.ndarray, " H"]:
    """<S, S^T> / |S|_F^2: 1 if symmetric, -1 if antisymmetric, 0 in between (and for 0)."""
    inner = np.einsum("hij,hji->h", matrices, matrices)
    return _ratio(inner, np.sum(matrices**2, axis=(1, 2)))


def alignment(matrices: Float[np.ndarray, "H rows columns"]) -> Float64[np.ndarray, "H H"]:
    """|<S_g, S_h>| / (|S_g|_F |S_h|_F) of every two heads: 1 for the same matrix up to a factor."""
    flat = matrices.reshape(len(matrices), -1)
    norms = np.linalg.norm(flat, axis=1)
    return _ratio(np.abs(flat @ flat.T), np.outer(norms, norms))


def _ratio(above: np.ndarray, below: np.ndarray) -> np.ndarray:
    """Above / below in float64, and 0 where below is 0."""
    above, below = np.broadcast_arrays(np.asarray(above, np.float64), below)
    return np.divide(above, below, out=np.zeros(above.shape), where=below > 0)


@dataclass(frozen=True, slots=True)
class AttentionCost:
    """The cost of one layer.

    Attributes:
        parameters: Trained numbers.
        multiply_adds: Per token, at full context, in the form used for training.
        cache_floats: Numbers remembered per token when decoding.
    """

    parameters: int
    multiply_adds: int
    cache_floats: int


def attention_cost(config: AttentionConfig) -> AttentionCost:
    """Count one layer of this configuration, from the shapes of its maps."""
    matrices, others = _weights(config)
    value_heads, value_width = value_of(config).shape(config)
    key_heads, key_width = SCORES[config.score].key_shape(config)
    per_token = config.n_heads * config.context_length * (key_width + value_width)
    key_floats, value_floats = key_heads * key_width, value_heads * value_width
    remembers_value = config.score != "merged" and config.value not in ("key", "from_key")
    return AttentionCost(
        parameters=matrices + others,
        multiply_adds=matrices + per_token,
        cache_floats=key_floats + (value_floats if remembers_value else 0),
    )


def _weights(config: AttentionConfig) -> tuple[int, int]:
    """Numbers in matrices that multiply a token, and in everything else."""
    sizes = {name: array.size for name, array in _trained(config).items()}
    matrices = sum(size for name, size in sizes.items() if name.endswith("weight"))
    return matrices, sum(sizes.values()) - matrices


def _trained(config: AttentionConfig) -> dict[str, mx.array]:
    return named_arrays(Attention(config).trainable_parameters())
