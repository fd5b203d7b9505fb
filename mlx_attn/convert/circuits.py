"""The matrices of an attention layer, whatever its form: S_h and V_h O_h of every head.

    score_h(i, j) = scale * x_i S_h x_j^T        a head moves x_j V_h O_h to token i

These are the QK and OV circuits of Elhage et al. (A Mathematical Framework for Transformer
Circuits, 2021). The maps are affine, so their matrices and biases are read off by applying them to
the rows of the identity and to 0: no form needs a case of its own. `probe`, `convert` and
`train --track` all read layers here, in float64.
"""

import copy
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np
from jaxtyping import Float, Float64

from mlx_attn.arrays import named_arrays
from mlx_attn.attention.attention import Attention
from mlx_attn.attention.config import AttentionConfig
from mlx_attn.attention.layer import split_heads
from mlx_attn.errors import ConfigError, RunError
from mlx_attn.machine.device import float64


def to_numpy(array: mx.array) -> np.ndarray:
    """Return a copy in float64; integers keep their type."""
    if not mx.issubdtype(array.dtype, mx.floating):
        return np.array(array)
    # NumPy has no bfloat16.
    wide = array.astype(mx.float32) if array.dtype == mx.bfloat16 else array
    return np.array(wide).astype(np.float64)


def layer_weights(attention: Attention) -> dict[str, np.ndarray]:
    """Return the weights of a layer by name, such as "W_query.weight", in float64."""
    weights = {name: to_numpy(array) for name, array in named_arrays(attention).items()}
    for name, array in weights.items():
        if not np.isfinite(array).all():
            raise RunError(
                f"{name} holds numbers that are not finite: the training diverged, train again"
            )
    return weights


@dataclass(frozen=True, slots=True)
class ScoreFactors:
    """score_h(i, j) = scale * (query_h x_i + query_bias_h) . (key_g x_j + key_bias_g).

    Matrices are (out, in), as stored. The key's bias adds the same number to all scores of a query
    and cancels in the softmax; only values made from keys need it.
    """

    query: Float[np.ndarray, "H K C"]
    query_bias: Float[np.ndarray, "H K"]
    key: Float[np.ndarray, "kv_heads K C"]
    key_bias: Float[np.ndarray, "kv_heads K"]

    @property
    def products(self) -> Float[np.ndarray, "H C C"]:
        """S_h of every head: x_i S_h x_j^T is the score without biases."""
        return self.query.swapaxes(1, 2) @ repeated(self.key, len(self.query))

    @property
    def key_side_vectors(self) -> Float[np.ndarray, "H C"]:
        """u_h = W_key_h b_query_h: a query's bias adds scale * u_h . x_j."""
        return np.einsum("hkc,hk->hc", repeated(self.key, len(self.query)), self.query_bias)

    @property
    def products_with_bias(self) -> Float[np.ndarray, "H C_1 C"]:
        """The whole score map, (x_i, 1) [S_h; u_h] x_j^T: the vector is one more row of S_h."""
        return np.concatenate([self.products, self.key_side_vectors[:, None]], axis=1)

    @property
    def weights(self) -> dict[str, np.ndarray]:
        """W_query and W_key as a layer stores them."""
        C = self.query.shape[2]
        return {
            "W_query.weight": self.query.reshape(-1, C),
            "W_query.bias": self.query_bias.reshape(-1),
            "W_key.weight": self.key.reshape(-1, C),
            "W_key.bias": self.key_bias.reshape(-1),
        }

    @property
    def singular_values(self) -> Float64[np.ndarray, "H rank"]:
        """Of every S_h, the largest first."""
        return _singular_values(self.query.swapaxes(1, 2), repeated(self.key, len(self.query)))


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
        """Query heads H."""
        return self.output.shape[1] // self.value.shape[1]

    @property
    def products(self) -> Float[np.ndarray, "H C d_out"]:
        """V_h O_h of every head."""
        return repeated(self.value, self.n_heads).swapaxes(1, 2) @ self.heads.swapaxes(1, 2)

    @property
    def total_constant(self) -> Float[np.ndarray, " d_out"]:
        """The constant with the values' biases in it: the weights of a softmax add up to 1."""
        return self.constant + self.output @ repeated(self.value_bias, self.n_heads).reshape(-1)

    @property
    def weights(self) -> dict[str, np.ndarray]:
        """W_value and out_proj as a layer stores them."""
        return {
            "W_value.weight": self.value.reshape(-1, self.value.shape[2]),
            "W_value.bias": self.value_bias.reshape(-1),
            "out_proj.weight": self.output,
            "out_proj.bias": self.constant,
        }

    @property
    def heads(self) -> Float[np.ndarray, "H d_out D"]:
        """O_h of every head, its columns of out_proj."""
        return self.output.reshape(len(self.output), self.n_heads, -1).swapaxes(0, 1)

    @property
    def singular_values(self) -> Float64[np.ndarray, "H rank"]:
        """Of every V_h O_h, the largest first."""
        output = self.heads.swapaxes(1, 2)
        return _singular_values(repeated(self.value, self.n_heads).swapaxes(1, 2), output)


def qk_circuit(attention: Attention) -> ScoreFactors:
    """Return the score map of a layer: queries and keys before normalisation and rotation.

    See `why_not_one_matrix` for when there is more to the scores.
    """
    with float64():
        exact = _in_float64(attention, "score")
        # x = I gives the rows of the matrices, and x = 0 the biases: [1, C + 1, C].
        q, k = exact.score(_basis(exact.config.d_in)[None])
        (query, query_bias), (key, key_bias) = _affine(q), _affine(k)
    return ScoreFactors(query, query_bias, key, key_bias)


def ov_circuit(attention: Attention) -> OutputFactors:
    """Return the value and output maps of a layer; its values may read only affine keys."""
    with float64():
        keys = ("score",) if attention.maps.value.reads_keys else ()
        exact = _in_float64(attention, "value", "output", *keys)
        config, x = exact.config, _basis(exact.config.d_in)[None]
        value, bias = _affine(exact.value(x, exact.score(x)[1]))
        # The identity over all heads: each row is one coordinate of one head.
        heads = split_heads(_basis(config.n_heads * value.shape[1])[None], config.n_heads)
        output, constant = _affine(exact.output(heads)[:, None])
    return OutputFactors(value, bias, output[0], constant[0])


def why_not_one_matrix(config: AttentionConfig) -> str:
    """Return why the scores are not x_i S_h x_j^T for one S_h; empty if they are.

    ALiBi's bias and the biases of the maps are added to that form and leave S_h as it is.
    """
    turns = "RoPE turns" if config.position == "rope" else f"position={config.position} changes"
    reasons = {
        f"{turns} queries and keys by their positions, so there is one matrix per distance: "
        "S_h is the one of distance 0": config.rotates,
        "queries and keys are divided by their lengths, which depend on the token: "
        "S_h is the matrix before that": config.qk_norm,
    }
    for hook in config.choices("logits"):
        reason = f"the logits are changed afterwards, {hook.formula}: S_h is the matrix before"
        reasons[reason] = True
    mixing = config.choice("mixing")
    reason = f"mixing={mixing.name} reads queries and keys themselves, {mixing.formula}"
    reasons[reason] = mixing.reads_keys
    return "; ".join(reason for reason, applies in reasons.items() if applies)


class NoMatrix(ConfigError):
    """A map of a layer is not linear up to a bias; `reason` names it."""

    def __init__(self, reason: str):
        self.reason = reason
        super().__init__(
            f"{reason}, so its heads have no matrices to track or convert: train, sample and probe "
            "it, without --track"
        )


def check_affine(attention: Attention, *maps: str) -> None:
    """Refuse a layer without matrices for its heads, before any reading or training."""
    if (convolution := attention.config.short_conv) != "none":
        raise NoMatrix(f"short_conv={convolution} mixes the queries, keys and values of 4 tokens")
    if attention.config.cross_layer == "reader":
        raise NoMatrix("kv_sharing lets a layer read keys and values of another layer's x")
    if (queries := attention.maps.score.queries_per_head) > 1:
        raise NoMatrix(f"score={attention.config.score} has {queries} queries for each head")
    for key in maps:
        if not getattr(attention.maps, key).affine:
            raise NoMatrix(f"{key}={getattr(attention.config, key)} is not affine in x")


def _in_float64(attention: Attention, *maps: str) -> Attention:
    """Copy a layer in float64; refuse weights that are not finite and maps without a matrix."""
    check_affine(attention, *maps)
    layer_weights(attention)
    exact = copy.deepcopy(attention)
    exact.set_dtype(mx.float64)
    exact.eval()
    return exact


def _basis(width: int) -> Float[mx.array, "rows width"]:
    """Return the rows of the identity, and 0 to read a bias by."""
    return mx.concatenate([mx.eye(width, dtype=mx.float64), mx.zeros((1, width), mx.float64)])


def _affine(
    y: Float[mx.array, "1 heads rows D"],
) -> tuple[Float[np.ndarray, "heads D columns"], Float[np.ndarray, "heads D"]]:
    """Return the stored matrix and the bias of a map, from its values on the basis."""
    # [heads, C + 1, D]; the last row is f(0), the bias.
    values = np.array(y[0])
    bias = values[:, -1]
    # Contiguous, because NumPy multiplies stacks of transposed views a thousand times slower.
    return np.ascontiguousarray((values[:, :-1] - bias[:, None]).swapaxes(1, 2)), bias


def repeated(parts: np.ndarray, n_heads: int) -> np.ndarray:
    """Repeat every key or value for each of the heads that share it."""
    return np.repeat(parts, n_heads // len(parts), axis=0)


def padded(parts: np.ndarray, axis: int, width: int) -> np.ndarray:
    """Add zeros at the end of an axis, up to a width."""
    missing = np.zeros((parts.ndim, 2), int)
    missing[axis, 1] = max(0, width - parts.shape[axis])
    return np.pad(parts, missing)


def _singular_values(
    left: Float64[np.ndarray, "H C D"], right: Float64[np.ndarray, "H D d_out"]
) -> Float64[np.ndarray, "H rank"]:
    """Return the singular values of left_h right_h, as many as can differ from 0.

    With left = Q_1 R_1 and right^T = Q_2 R_2, the small R_1 R_2^T has the same values.
    """
    if left.shape[2] >= left.shape[1]:  # QR would save nothing
        return np.linalg.svd(left @ right, compute_uv=False)
    R_left: Any = np.linalg.qr(left, mode="r")
    R_right: Any = np.linalg.qr(right.swapaxes(1, 2), mode="r")
    return np.linalg.svd(R_left @ R_right.swapaxes(1, 2), compute_uv=False)


def spectra(
    layers: Iterable[ScoreFactors | OutputFactors],
) -> dict[str, Float64[np.ndarray, "L H *sizes"]]:
    """Return numbers by name of one kind of matrix, S_h or V_h O_h, of the heads of some layers.

    These are the singular values [L, H, rank], the largest first, which end with zeros in a layer
    of lower rank; [L, H] the effective rank (Roy and Vetterli, The Effective Rank, 2007), the
    stable rank (Rudelson and Vershynin, Sampling from Large Matrices, 2007), the Frobenius norm and
    the symmetry; and the alignment [L, H, H] of any two heads.
    """
    of_layers, symmetries, alignments = [], [], []
    for factors in layers:
        matrices = factors.products
        of_layers.append(factors.singular_values)
        symmetries.append(symmetry(matrices))
        alignments.append(alignment(matrices))
    rank = max(values.shape[-1] for values in of_layers)
    # [L, H, rank]; zeros add nothing to any measure.
    values = np.stack([padded(values, 1, rank) for values in of_layers])
    return {
        "effective_rank": effective_rank(values),
        "stable_rank": stable_rank(values),
        "norm": np.linalg.norm(values, axis=-1),
        "symmetry": np.stack(symmetries),
        "singular_values": values,
        "alignment": np.stack(alignments),
    }


def effective_rank(
    singular_values: Float[np.ndarray, "*heads rank"],
) -> Float64[np.ndarray, "*heads"]:
    """Return exp(-sum_k p_k ln p_k), p_k = s_k / sum(s): from 1 to the rank; 0 for the 0 matrix."""
    from scipy import special  # takes longer to import than MLX, and trainings need none of it

    total = singular_values.sum(-1, keepdims=True)
    entropy = special.entr(_ratio(singular_values, total)).sum(-1)
    return np.where(total[..., 0] > 0, np.exp(entropy), 0.0)


def stable_rank(
    singular_values: Float[np.ndarray, "*heads rank"],
) -> Float64[np.ndarray, "*heads"]:
    """Return |S|_F^2 / |S|_2^2: from 1 to the rank, blind to small values; 0 for the 0 matrix."""
    squares = singular_values**2
    return _ratio(squares.sum(-1), squares[..., 0])


def symmetry(matrices: Float[np.ndarray, "H C C"]) -> Float64[np.ndarray, " H"]:
    """Return <S, S^T> / |S|_F^2: 1 if symmetric, -1 if antisymmetric, 0 in between (and for 0)."""
    # [H]: tr(S S), the inner product of S and S^T.
    inner = np.einsum("hij,hji->h", matrices, matrices)
    return _ratio(inner, np.sum(matrices**2, axis=(1, 2)))


def alignment(matrices: Float[np.ndarray, "H rows columns"]) -> Float64[np.ndarray, "H H"]:
    """Return |<S_g, S_h>| / (|S_g|_F |S_h|_F) of all pairs: 1 if equal up to a factor."""
    flat = matrices.reshape(len(matrices), -1)
    norms = np.linalg.norm(flat, axis=1)
    return _ratio(np.abs(flat @ flat.T), np.outer(norms, norms))


def _ratio(above: np.ndarray, below: np.ndarray) -> np.ndarray:
    """Divide in float64; return 0 where `below` is 0."""
    above, below = np.broadcast_arrays(np.asarray(above, np.float64), below)
    return np.divide(above, below, out=np.zeros(above.shape), where=below > 0)
