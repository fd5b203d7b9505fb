"""What a pair of maps holds twice.

Only products of two maps reach the output, W_1 W_2 = (W_1 B) (B^-1 W_2), so D^2 weights of each
head are free to choose (Wasielewski and Graef, "MatShrink"), and where the key holds all of x, the
value can be made from it (Graef and Wasielewski, arXiv:2503.05840).
"""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from mlx_attn.attention.config import AttentionConfig
from mlx_attn.attention.maps import merge_value_output
from mlx_attn.convert.collaborative import fit_shared_maps
from mlx_attn.convert.factors import (
    Layer,
    OutputFactors,
    ScoreFactors,
    Weights,
    as_numpy,
    balanced_factors,
    build_attention,
    read_scores,
)
from mlx_attn.errors import ConfigError

LARGEST_CONDITION = 1e5
"""Of an inverted matrix: float32 keeps seven digits, and such a matrix may cost five of them."""


class Shrunk(NamedTuple):
    """A matrix W = basis [I, rest], its columns taken in the order (kept, others).

    Attributes:
        basis: The kept columns of W.
        rest: What multiplies the basis to give the other columns.
        places: Where each column of W is in that order.
    """

    basis: Float[np.ndarray, "D D"]
    rest: Float[np.ndarray, "D others"]
    places: Int[np.ndarray, " C"]


def shrink(W: Float[np.ndarray, "D C"]) -> Shrunk:
    """Take D columns of a wide matrix as the basis of the others: D^2 fewer weights, same product.

    The columns are chosen by QR with column pivoting, so that the basis is well conditioned: the
    next one is always the one that the ones before explain least.

    Raises:
        ConfigError: The rank of W is below D, so that there is no such basis.
    """
    kept = _pivots(W)
    others = np.setdiff1d(np.arange(W.shape[1]), kept)
    basis = W[:, kept]
    _require_invertible(np.linalg.cond(basis), "shrunk", "convert --to separate at a lower --rank")
    places = np.argsort(np.concatenate([kept, others])).astype(np.int32)
    return Shrunk(basis, np.linalg.solve(basis, W[:, others]), places)


def _pivots(W: Float[np.ndarray, "D C"]) -> Int[np.ndarray, " D"]:
    residual, kept = W.copy(), []
    for _ in range(len(W)):
        lengths = np.linalg.norm(residual, axis=0)
        lengths[kept] = -1.0
        column = int(np.argmax(lengths))
        kept.append(column)
        direction = residual[:, column] / (lengths[column] or 1.0)
        residual -= np.outer(direction, direction @ residual)
    return np.array(kept)


def values_from_keys(
    W_key: Float[np.ndarray, "key_width C"], W_value: Float[np.ndarray, "value_width C"]
) -> Float[np.ndarray, "value_width key_width"]:
    """M with W_value = M W_key, as stored weights: v = k M^T without x.

    Args:
        W_key: Stored weight of all key heads together, at least C wide.
        W_value: Stored weight of the value map.

    Raises:
        ConfigError: The keys do not determine x, or hardly; has the condition number.
    """
    width, C = W_key.shape
    if width < C:
        raise ConfigError(
            f"{width} numbers of the key cannot give back emb_dim={C} of x: slim attention needs "
            "n_kv_heads * head_dim of at least emb_dim, so no grouped heads"
        )
    M, _, _, s = np.linalg.lstsq(W_key.T, W_value.T, rcond=None)
    _require_invertible(s[0] / max(s[-1], 1e-300), "slim", "train it longer, or keep the values")
    return M.T


def _require_invertible(condition: float, form: str, way_out: str) -> None:
    if not condition <= LARGEST_CONDITION:
        raise ConfigError(
            f"the {form} form inverts a matrix of W_key or W_value whose condition number is "
            f"{condition:.1e}, above {LARGEST_CONDITION:.0e}: {way_out}"
        )


def write_scores(factors: ScoreFactors, target: AttentionConfig) -> Weights:
    """The weights of the target's score map.

    Raises:
        ConfigError: These factors have no such form, or hardly.
    """
    return _SCORES[target.score](factors, target)


def _separate(factors: ScoreFactors, target: AttentionConfig) -> Weights:
    """Exact where the rank of S_h, with u_h as one more row, is no more than head_dim."""
    kept = (target.n_kv_heads, target.head_dim, target.d_in)
    if factors.key.shape != kept or factors.key.shape[1] == target.d_in:
        factors = _nearest_score(factors, target)
    return _score_weights(factors, factors.key)


def _nearest_score(factors: ScoreFactors, target: AttentionConfig) -> ScoreFactors:
    """The best factors of rank head_dim; query heads that share a key are decomposed together."""
    H, C, D = target.n_heads, target.d_in, target.head_dim
    query, key = balanced_factors(factors.rows.reshape(target.n_kv_heads, -1, C), D)
    query = query.reshape(H, C + 1, D).swapaxes(1, 2)
    return ScoreFactors(query[:, :, :C], query[:, :, C], key, np.zeros(key.shape[:2]))


def _merged(factors: ScoreFactors, target: AttentionConfig) -> Weights:
    """Exact: S_h = W_query_h W_key_h^T, u_h = W_key_h b_query_h."""
    C = target.d_in
    return {
        "S.weight": factors.products.reshape(-1, C),
        "S.bias": factors.key_side_vectors.reshape(-1),
    }


def _no_query(factors: ScoreFactors, target: AttentionConfig) -> Weights:
    """Exact for one head without a query bias: q = x, k = x S^T."""
    if np.abs(factors.key_side_vectors).max() > 0:
        raise ConfigError(
            "a query's bias adds u . x_j to the scores, and without W_query nothing can: "
            "convert --to no-key or --to merged, which keep it"
        )
    key = factors.products[0].T
    return {"W_key.weight": key, "W_key.bias": np.zeros(len(key))}


def _no_key(factors: ScoreFactors, target: AttentionConfig) -> Weights:
    """Exact for one head: q = x S + u, k = x."""
    return {
        "W_query.weight": factors.products[0],
        "W_query.bias": factors.key_side_vectors[0],
    }


def _collaborative(factors: ScoreFactors, target: AttentionConfig) -> Weights:
    """Exact where the rank of every S_h is no more than head_dim; else fitted."""
    maps = fit_shared_maps(factors.rows, target.n_heads * target.head_dim)
    return {
        "W_query.weight": maps.query[:-1].T,
        "W_query.bias": maps.query[-1],
        "W_key.weight": maps.key.T,
        "W_key.bias": np.zeros(len(maps.key.T)),
        "mixing": maps.mixing,
    }


def _shrunk_key(factors: ScoreFactors, target: AttentionConfig) -> Weights:
    """Exact: W_query_h takes over the basis of W_key_h."""
    if factors.key.shape != (target.n_kv_heads, target.head_dim, target.d_in):
        factors = _nearest_score(factors, target)
    shrunk = [shrink(key) for key in factors.key]
    basis = np.repeat([s.basis for s in shrunk], target.n_heads // target.n_kv_heads, axis=0)
    query = basis.swapaxes(1, 2) @ factors.query
    bias = np.einsum("hkl,hk->hl", basis, factors.query_bias)
    factors = replace(factors, query=query, query_bias=bias, key_bias=0 * factors.key_bias)
    weights = _score_weights(factors, np.stack([s.rest for s in shrunk]))
    return {**weights, "W_key.places": np.stack([s.places for s in shrunk])}


def _score_weights(factors: ScoreFactors, key: Float[np.ndarray, "kv_heads K columns"]) -> Weights:
    return {
        "W_query.weight": factors.query.reshape(-1, factors.query.shape[2]),
        "W_query.bias": factors.query_bias.reshape(-1),
        "W_key.weight": key.reshape(-1, key.shape[2]),
        "W_key.bias": factors.key_bias.reshape(-1),
    }


_SCORES: dict[str, Callable[[ScoreFactors, AttentionConfig], Weights]] = {
    "separate": _separate,
    "merged": _merged,
    "no_query": _no_query,
    "no_key": _no_key,
    "collaborative": _collaborative,
    "shrunk": _shrunk_key,
}


def write_output(factors: OutputFactors, target: AttentionConfig, layer: Layer) -> Weights:
    """The weights of the target's output map, and of a linear value map.

    Args:
        factors: What the maps compute.
        target: The form to write.
        layer: The layer that is converted.

    Raises:
        ConfigError: These factors have no such form, or no inputs of the layer are known.
    """
    return _OUTPUTS[target.output](factors, target, layer)


def write_value(weights: Weights, target: AttentionConfig, layer: Layer) -> Weights:
    """Weights with a linear value map, changed to the target's value map.

    Args:
        weights: Those of the target's score and output maps, and of a linear value map.
        target: The form to write.
        layer: The layer that is converted.

    Raises:
        ConfigError: There is no such form, or hardly; has the condition number.
    """
    return _VALUES[target.value](weights, target, layer)


def _linear_output(factors: OutputFactors, target: AttentionConfig, layer: Layer) -> Weights:
    """Exact where the rank of VO_h is no more than value_dim, else the nearest of that rank."""
    kept = (target.n_kv_heads, target.value_dim, target.d_in)
    if factors.value.shape != kept or layer.config.output == "merged":
        factors = _nearest_output(factors, target)
    return {
        "W_value.weight": factors.value.reshape(-1, target.d_in),
        "W_value.bias": factors.value_bias.reshape(-1),
        "out_proj.weight": factors.output,
        "out_proj.bias": factors.constant,
    }


def _nearest_output(factors: OutputFactors, target: AttentionConfig) -> OutputFactors:
    """The best factors of rank value_dim; heads that share a value are decomposed together."""
    KV, D, d_out = target.n_kv_heads, target.value_dim, target.d_out
    rows = factors.products.reshape(KV, -1, target.d_in)
    output, value = balanced_factors(rows, D)
    output = output.reshape(target.n_heads, d_out, D).swapaxes(0, 1).reshape(d_out, -1)
    return OutputFactors(value, np.zeros((KV, D)), output, factors.whole_constant)


def _merged_output(factors: OutputFactors, target: AttentionConfig, layer: Layer) -> Weights:
    """Exact: VO_h = W_value_h O_h, and what the values' biases add is a constant."""
    value = factors.value.reshape(-1, target.d_in)
    merged = merge_value_output(value, factors.output, target.n_heads)
    return {"VO.weight": merged, "VO.bias": factors.whole_constant}


def _no_output(factors: OutputFactors, target: AttentionConfig, layer: Layer) -> Weights:
    """Exact for one head: W_value out_proj is its value map. For several, least squares."""
    gain = np.ones(1)
    if layer.config.output == "none":
        value, bias = factors.value.reshape(-1, target.d_in), factors.value_bias.reshape(-1)
        gain = layer.weights.get("residual_gain", gain)
    elif target.n_heads == 1:
        value, bias = factors.products[0], factors.whole_constant
    else:
        value, bias = _own_coordinates(factors, target, layer)
    return {"W_value.weight": value, "W_value.bias": bias, "residual_gain": gain}


def _own_coordinates(
    factors: OutputFactors, target: AttentionConfig, layer: Layer
) -> tuple[np.ndarray, np.ndarray]:
    """The least-squares answer where head h may write no coordinates but h D..(h+1) D of y.

    What it read, z_h = softmax_h x, must give these coordinates of what all heads wrote together.
    """
    if layer.read is None:
        raise ConfigError(
            f"{target.n_heads} heads without out_proj are fitted to what the layer computes: "
            "give some tokens of the training text"
        )
    read = as_numpy(layer.read).swapaxes(0, 1).reshape(target.n_heads, -1, target.d_in)
    wrote = sum(z @ VO.T for z, VO in zip(read, factors.products, strict=True))
    wrote = (wrote + factors.whole_constant).reshape(-1, target.n_heads, target.value_dim)
    ones = np.ones((read.shape[1], int(target.qkv_bias)))
    fits = [_least_squares(np.hstack([read[h], ones]), wrote[:, h]) for h in range(target.n_heads)]
    fitted = np.concatenate([fit.T for fit in fits])
    bias = fitted[:, target.d_in :].sum(axis=1)
    return fitted[:, : target.d_in], bias


def _least_squares(
    given: Float[np.ndarray, "N columns"], wanted: Float[np.ndarray, "N D"]
) -> Float[np.ndarray, "columns D"]:
    """By the normal equations: many more rows than columns, and no need of their last digits."""
    return np.linalg.lstsq(given.T @ given, given.T @ wanted, rcond=1e-12)[0]


def _linear_value(weights: Weights, target: AttentionConfig, layer: Layer) -> Weights:
    return weights


def _shrunk_value(weights: Weights, target: AttentionConfig, layer: Layer) -> Weights:
    """Exact: out_proj takes over the basis of W_value_h."""
    H, KV, D = target.n_heads, target.n_kv_heads, target.value_dim
    shrunk = [shrink(value) for value in weights["W_value.weight"].reshape(KV, D, -1)]
    basis = np.stack([s.basis for s in shrunk])
    output = weights["out_proj.weight"].reshape(target.d_out, H, D).swapaxes(0, 1)
    output = (output @ np.repeat(basis, H // KV, axis=0)).swapaxes(0, 1).reshape(target.d_out, -1)
    bias = np.linalg.solve(basis, weights["W_value.bias"].reshape(KV, D, 1))
    return {
        **weights,
        "W_value.weight": np.concatenate([s.rest for s in shrunk]),
        "W_value.places": np.stack([s.places for s in shrunk]),
        "W_value.bias": bias.reshape(-1),
        "out_proj.weight": output,
    }


def _value_from_key(weights: Weights, target: AttentionConfig, layer: Layer) -> Weights:
    """Exact up to rounding times the condition number: W_value = M W_key."""
    if target.score == "separate" and target.position != "rope" and not target.qk_norm:
        weights = {**weights, **_with_level_keys(weights, target)}
    keys = read_scores(Layer(build_attention(replace(target, value="linear"), weights), weights))
    matrix = values_from_keys(keys.key.reshape(-1, target.d_in), weights["W_value.weight"])
    bias = weights["W_value.bias"] - matrix @ keys.key_bias.reshape(-1)
    return {**weights, "W_value.weight": matrix, "W_value.bias": bias}


def _with_level_keys(weights: Weights, target: AttentionConfig) -> Weights:
    """Exact: each head's key in an orthonormal basis, and its query in the one that goes with it.

    W_key_h = Q_h R_h gives S_h = (W_query_h R_h^T) Q_h^T. A head whose key is singular, or nearly,
    then no longer stands in the way, and values made from keys lose somewhat less to rounding. The
    key's bias, which cancels in the softmax, goes.
    """
    H, KV, D = target.n_heads, target.n_kv_heads, target.head_dim
    key = weights["W_key.weight"].reshape(KV, D, -1).swapaxes(1, 2)
    level, triangle = np.linalg.qr(key)
    triangle = np.repeat(triangle, H // KV, axis=0)
    query = triangle @ weights["W_query.weight"].reshape(H, D, -1)
    leveled = {
        "W_query.weight": query.reshape(H * D, -1),
        "W_key.weight": level.swapaxes(1, 2).reshape(KV * D, -1),
    }
    if target.qkv_bias:
        bias = np.einsum("hkl,hl->hk", triangle, weights["W_query.bias"].reshape(H, D))
        leveled |= {"W_query.bias": bias.reshape(-1), "W_key.bias": np.zeros(KV * D)}
    return leveled


_OUTPUTS: dict[str, Callable[[OutputFactors, AttentionConfig, Layer], Weights]] = {
    "linear": _linear_output,
    "merged": _merged_output,
    "none": _no_output,
}
_VALUES: dict[str, Callable[[Weights, AttentionConfig, Layer], Weights]] = {
    "linear": _linear_value,
    "shrunk": _shrunk_value,
    "from_key": _value_from_key,
}
