"""Caches smaller than keys and values: only keys, of which values are computed, or a state.

Merged scores cache x, which is the one key of all heads, and latent attention its latent. The value
map then reads the cached keys, before or after the weighted sum: with P_h the attention weights of
head h,

    P_h (x W_value_h) = (P_h x) W_value_h

Delta rules cache no tokens, and go on from the state of the text so far.
"""

from collections.abc import Callable
from typing import Any, cast

import mlx.core as mx

from mlx_attn.attention.cache import KVCache
from mlx_attn.attention.layer import Heads, Keys, MapWeights, Values, merge_heads
from mlx_attn.machine.operations import fuses


def values_of_keys(
    layer: MapWeights, keys: Keys, T_q: int
) -> tuple[Values, Callable[[MapWeights, Heads], Heads]]:
    """Return what the attention weights of T_q queries sum up, and what is applied to the sums.

    The value map reads the keys before rotation side by side; for merged scores they are x itself.
    """
    inputs = merge_heads(keys)  # [B, key_heads, T_k, K] -> [B, T_k, key_heads K]
    after = layer.maps.value.after
    if after is None or project_values_first(layer, T_q, keys.shape[2]):
        return layer.value(inputs, keys), lambda layer, heads: heads
    # One value for all heads, [B, 1, T_k, C]; then `after` maps [B, H, T_q, C] -> [B, H, T_q, D].
    return inputs[:, None], after


def project_values_first(layer: MapWeights, T_q: int, T_k: int) -> bool:
    """Return True if values are computed before the weighted sum of cached keys.

    After the scores, values first cost T_k C H_kv D + H T_q T_k D multiply-adds. Values after the
    sum cost H T_q T_k C + H T_q C D; then x is the only key and value, which one kernel may fuse,
    and decoding computes no value of an old token.

    On a GPU x is chosen if it has a fused kernel, elsewhere if the count is smaller; likewise keys
    in place of x. Weights that may not add up to 1, as after dropout, scale a bias: values first.
    """
    config = layer.config
    if (config.drop_rate and layer.training) or not layer.maps.mixing.sums_to_one:
        return True
    H, C, D = config.n_heads, config.d_in, config.value_dim
    if layer.maps.score.cache == "x" and config.position != "alibi":
        fused = fuses(C, T_q, H)
        if fused is not None:  # on a GPU, a kernel counts more than multiply-adds
            return not fused
    first = T_k * C * config.n_kv_heads * D + H * T_q * T_k * D
    after = H * T_q * T_k * C + H * T_q * C * D
    return first <= after


def attend_by_state(layer: MapWeights, cache: KVCache, *arrays: mx.array) -> Heads:
    """Return the heads of new tokens, [B, H, T, D], from the state in the cache, which it replaces.

    `arrays` are queries, keys and values, and the memory of a mixing that has one. The state, such
    as [B, H, K, D], is computed in the mask's float32.
    """
    read = (array.astype(mx.float32) for array in arrays)
    advance = cast(Callable[..., Any], layer.maps.mixing.recurs)
    heads, *cache.buffers = advance(layer, *read, *(cache.buffers or [None]))
    return heads.astype(arrays[0].dtype)
