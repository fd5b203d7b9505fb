"""From score factors to the weights of a form: one short function per form.

Each says where it is exact; elsewhere it writes the nearest weights there are.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from jaxtyping import Float

from mlx_attn.attention import AttentionConfig
from mlx_attn.attention.algebra import balanced_factors, fit_shared_maps, shrink
from mlx_attn.errors import ConfigError
from mlx_attn.lab.convert.factors import ScoreFactors
from mlx_attn.lab.convert.layer import Weights


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
        factors = _nearest(factors, target)
    return _score_weights(factors, factors.key)


def _nearest(factors: ScoreFactors, target: AttentionConfig) -> ScoreFactors:
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
        factors = _nearest(factors, target)
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
