"""From value and output factors to the weights of a form: one short function per form.

Each says where it is exact; elsewhere it writes the nearest weights there are.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from jaxtyping import Float

from mlx_attn.attention import AttentionConfig
from mlx_attn.attention.algebra import (
    balanced_factors,
    merge_value_output,
    shrink,
    values_from_keys,
)
from mlx_attn.errors import ConfigError
from mlx_attn.lab.convert.factors import OutputFactors
from mlx_attn.lab.convert.layer import Layer, Weights, as_numpy, build_attention
from mlx_attn.lab.convert.readers import read_scores


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
        factors = _nearest(factors, target)
    return {
        "W_value.weight": factors.value.reshape(-1, target.d_in),
        "W_value.bias": factors.value_bias.reshape(-1),
        "out_proj.weight": factors.output,
        "out_proj.bias": factors.constant,
    }


def _nearest(factors: OutputFactors, target: AttentionConfig) -> OutputFactors:
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
