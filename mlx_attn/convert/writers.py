"""Every form of attention, written from the factors of any other.

The algebra is NumPy's, in float64. A table for each map has the function that writes each choice.
At the end are the best products of a given rank.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np
from jaxtyping import Float

from mlx_attn.arrays import named_arrays
from mlx_attn.attention.attention import Attention
from mlx_attn.attention.config import AttentionConfig
from mlx_attn.attention.forms.merged_output import merge_value_output
from mlx_attn.attention.layer import Inputs
from mlx_attn.convert import circuits, conversions
from mlx_attn.errors import ConfigError

Weights = dict[str, np.ndarray]
"""The weights of a layer by name, such as "W_query.weight", in float64."""

_TOKENS_PER_UNKNOWN = 2
"""Of a fit, at least: with as many tokens as unknowns, weights were up to 4,500, with two 12."""


def rewrite(attention: Attention, target: AttentionConfig, x: Inputs | None = None) -> Weights:
    """Return the weights of a layer in the target's form; a map that stays is copied.

    A form that is fitted to the layer's outputs needs some of its inputs x.
    """
    changes_scores = conversions.changes_scores(attention.config, target)
    changes_output = conversions.changes_output(attention.config, target)
    tables: dict[str, Iterable[str]] = {"score": _SCORES} if changes_scores else {}
    tables |= {"value": ("linear",), "output": _OUTPUTS} if changes_output else {}
    for key, table in tables.items():
        if getattr(target, key) not in {*table, "latent"}:
            raise ConfigError(
                f"{key}={getattr(target, key)} cannot be written from the matrices of another "
                "form: train that form from the start"
            )
    weights, written = circuits.layer_weights(attention), {}
    if (changes_scores or changes_output) and target.score == "latent":
        written |= _latent(attention, target)
    elif changes_scores:
        written |= _SCORES[target.score](circuits.qk_circuit(attention), target)
    if changes_output and target.value != "latent":
        written |= _OUTPUTS[target.output](attention, target, x)
    complete = completed(weights | written, target)
    for name in written.keys() - complete.keys() - {"W_key.bias"}:  # which cancels in the softmax
        if name.endswith(".bias") and np.abs(written[name]).max() > 1e-9:
            raise ConfigError(
                f"the converted layer needs {name} for a constant, and bias={target.out_bias}, "
                f"qkv_bias={target.qkv_bias} leave no place for it: train with both"
            )
    return complete


def completed(weights: Weights, config: AttentionConfig) -> Weights:
    """Return the weights that a layer of this configuration has; missing biases are 0."""
    arrays = named_arrays(Attention(config)).items()
    zeros = {name: np.zeros(array.shape) for name, array in arrays if name.endswith(".bias")}
    return {name: {**zeros, **weights}[name] for name, _ in arrays}


def _separate(factors: circuits.ScoreFactors, target: AttentionConfig) -> Weights:
    """Factor S_h: exact if, with u_h as one more row, its rank is at most head_dim."""
    C, D = target.d_in, target.head_dim
    if factors.key.shape == (target.n_kv_heads, D, C) and D < C:
        return factors.weights
    # [H, C + 1, K]: the bias is one more row, as if x had a coordinate that is always 1.
    queries = np.concatenate([factors.query.swapaxes(1, 2), factors.query_bias[:, None]], axis=1)
    query, key = nearest_factors(queries, factors.key, target.n_kv_heads, D)
    query = query.swapaxes(1, 2)
    # The key's bias is dropped: it cancels in the softmax.
    no_bias = np.zeros(key.shape[:2])
    return circuits.ScoreFactors(query[:, :, :C], query[:, :, C], key, no_bias).weights


def _merged(factors: circuits.ScoreFactors, target: AttentionConfig) -> Weights:
    """Multiply, exactly: S_h = W_query_h W_key_h^T, u_h = W_key_h b_query_h."""
    C = target.d_in
    return {
        "S.weight": factors.products.swapaxes(1, 2).reshape(-1, C),
        "S.bias": factors.key_side_vectors.reshape(-1),
    }


def _no_query(factors: circuits.ScoreFactors, target: AttentionConfig) -> Weights:
    """Move S into the key, exactly for one head without a query bias: q = x, k = x S^T."""
    if np.abs(factors.key_side_vectors).max() > 0:
        raise ConfigError(
            "a query's bias adds u . x_j to the scores, and without W_query nothing can: "
            "convert --to no-key or --to merged, which keep it"
        )
    key = factors.products[0]
    return {"W_key.weight": key, "W_key.bias": np.zeros(len(key))}


def _no_key(factors: circuits.ScoreFactors, target: AttentionConfig) -> Weights:
    """Move S into the query, exactly for one head: q = x S + u, k = x."""
    return {
        "W_query.weight": factors.products[0].T,
        "W_query.bias": factors.key_side_vectors[0],
    }


_SCORES: dict[str, Callable[[circuits.ScoreFactors, AttentionConfig], Weights]] = {
    "separate": _separate,
    "merged": _merged,
    "no_query": _no_query,
    "no_key": _no_key,
}


def _linear_output(attention: Attention, target: AttentionConfig, x: Inputs | None) -> Weights:
    """Factor VO_h: exact if its rank is at most value_dim, otherwise the nearest of that rank."""
    factors, KV, D = circuits.ov_circuit(attention), target.n_kv_heads, target.value_dim
    if factors.value.shape == (KV, D, target.d_in) and attention.config.output != "merged":
        return factors.weights
    output, value = nearest_factors(factors.heads, factors.value, KV, D)
    # [H, d_out, D] -> [d_out, H D]
    output = output.swapaxes(0, 1).reshape(target.d_out, -1)
    no_bias = np.zeros(value.shape[:2])
    return circuits.OutputFactors(value, no_bias, output, factors.total_constant).weights


def _merged_output(attention: Attention, target: AttentionConfig, x: Inputs | None) -> Weights:
    """Multiply, exactly: VO_h = W_value_h O_h; the values' biases become a constant."""
    factors = circuits.ov_circuit(attention)
    value = factors.weights["W_value.weight"]
    merged = merge_value_output(value, factors.output, target.n_heads)
    return {"VO.weight": merged, "VO.bias": factors.total_constant}


def _no_output(attention: Attention, target: AttentionConfig, x: Inputs | None) -> Weights:
    """Move out_proj into W_value: exactly for one head, by least squares for several."""
    factors, gain = circuits.ov_circuit(attention), np.ones(1)
    if attention.config.output == "none":
        value, bias = factors.value.reshape(-1, target.d_in), factors.value_bias.reshape(-1)
        gain = circuits.layer_weights(attention).get("residual_gain", gain)
    elif target.n_heads == 1:
        value, bias = factors.products[0].T, factors.total_constant
    elif x is None:
        raise ConfigError(
            f"{target.n_heads} heads without out_proj are fitted to what the layer computes: "
            "give some tokens of the training text"
        )
    else:
        value, bias = _fit_slices(
            factors, target, circuits.to_numpy(attention.weights(x) @ x[:, None])
        )
    return {"W_value.weight": value, "W_value.bias": bias, "residual_gain": gain}


def _fit_slices(
    factors: circuits.OutputFactors, target: AttentionConfig, mixed: Float[np.ndarray, "B H T C"]
) -> tuple[np.ndarray, np.ndarray]:
    """Fit the value map by which head h writes only the coordinates h D..(h+1) D of y.

    From its z_h = softmax_h x, `mixed`, it must give these coordinates of the sum of all heads.

    Raises:
        ConfigError: There are so few tokens that weights would be as large as rounding allows.
    """
    H, C = target.n_heads, target.d_in
    # [H, N, C] with N = B T: each head's own weighted sum of the tokens.
    z = mixed.swapaxes(0, 1).reshape(H, -1, C)
    # [N, d_out]: the output that the new heads have to write, slice by slice.
    y = sum(z_h @ VO for z_h, VO in zip(z, factors.products, strict=True)) + factors.total_constant
    slices = y.reshape(-1, H, target.value_dim)
    ones = np.ones((z.shape[1], int(target.qkv_bias)))
    unknowns = C + ones.shape[1]
    if len(ones) < _TOKENS_PER_UNKNOWN * unknowns:
        raise ConfigError(
            f"{len(ones)} tokens are too few to fit heads without out_proj: each number of a head "
            f"has {unknowns} unknown weights, so give at least {_TOKENS_PER_UNKNOWN * unknowns} "
            "tokens of the training text"
        )
    fits = []
    for h in range(H):
        # Normal equations: many more rows than columns, and no need of their last digits.
        inputs = np.hstack([z[h], ones])
        gram = inputs.T @ inputs
        right = inputs.T @ slices[:, h]
        # [D, C] or, with a bias, [D, C + 1]
        fits.append(np.linalg.lstsq(gram, right, rcond=1e-12)[0].T)
    fitted = np.concatenate(fits)
    return fitted[:, :C], fitted[:, C:].sum(axis=1)


def _latent(attention: Attention, target: AttentionConfig) -> Weights:
    """Return the nearest latent of keys and values together, from one decomposition of both."""
    plain = replace(target, score="separate", value="linear")
    weights = _separate(circuits.qk_circuit(attention), plain)
    weights |= _linear_output(attention, plain, None)
    # One latent for both: rows of all keys and all values, [H K + H D, C].
    both = np.concatenate([weights["W_key.weight"], weights["W_value.weight"]])
    up, latent = balanced_factors(both, target.latent_dim)
    # Without biases: the values' bias becomes a constant, and the keys' bias cancels.
    constant = weights["out_proj.bias"] + weights["out_proj.weight"] @ weights["W_value.bias"]
    return {
        **{name: weights[name] for name in ("W_query.weight", "W_query.bias", "out_proj.weight")},
        "out_proj.bias": constant,
        "W_latent.weight": latent,
        "W_up_key.weight": up[: target.n_heads * target.head_dim],
        "W_up_value.weight": up[target.n_heads * target.head_dim :],
    }


_OUTPUTS: dict[str, Callable[[Attention, AttentionConfig, Inputs | None], Weights]] = {
    "linear": _linear_output,
    "merged": _merged_output,
    "none": _no_output,
}


def balanced_factors(
    matrix: Float[np.ndarray, "*heads rows columns"], rank: int
) -> tuple[Float[np.ndarray, "*heads rows rank"], Float[np.ndarray, "*heads rank columns"]]:
    """Return the best product A B of that rank, with both factors equally large.

    With the singular value decomposition M = U diag(s) V, A = U sqrt(s) and B = sqrt(s) V, cut to
    the largest singular values, which come first. No matrix of that rank is nearer to M in the
    Frobenius norm (Eckart and Young, 1936); at full rank the product is M. Beyond the number of
    rows or columns of M, both factors hold zeros.
    """
    U, s, V = np.linalg.svd(matrix, full_matrices=False)
    # [..., rank]: half of each singular value goes to each factor.
    root = np.sqrt(s[..., :rank])
    left, right = U[..., :rank] * root[..., None, :], root[..., :, None] * V[..., :rank, :]
    return circuits.padded(left, -1, rank), circuits.padded(right, -2, rank)


def nearest_factors(
    left: Float[np.ndarray, "H rows D"],
    right: Float[np.ndarray, "heads D columns"],
    n_right: int,
    rank: int,
) -> tuple[Float[np.ndarray, "H rows rank"], Float[np.ndarray, "n_right rank columns"]]:
    """Return factors of the nearest products of this rank; neighbouring heads share a right one.

    With left = Q_1 R_1, right^T = Q_2 R_2 and R_1 R_2^T = U diag(s) V, the singular value
    decomposition of the product is (Q_1 U) diag(s) (V Q_2^T): it takes a matrix of D x D instead of
    one of C x C, if D and the rank are small.
    """
    H, rows, D = left.shape
    if len(right) <= n_right:
        # Rows of all heads that read one right factor: [n_right, H / n_right * rows, D].
        left, right = left.reshape(n_right, -1, D), circuits.repeated(right, n_right)
    if len(right) == n_right and min(left.shape[1], right.shape[2]) > D:
        Q_left, R_left = np.linalg.qr(left)
        Q_right, R_right = np.linalg.qr(right.swapaxes(1, 2))
        # [D, D]; the orthonormal Q keep its singular values.
        A, B = balanced_factors(R_left @ R_right.swapaxes(1, 2), rank)
        A, B = Q_left @ A, B @ Q_right.swapaxes(1, 2)
    else:
        products = left @ circuits.repeated(right, len(left))
        A, B = balanced_factors(products.reshape(n_right, -1, right.shape[2]), rank)
    return A.reshape(H, rows, rank), B
