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

from mlx_attn.attention.config import AttentionConfig
from mlx_attn.attention.heads import join_heads
from mlx_attn.attention.module import Attention
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
