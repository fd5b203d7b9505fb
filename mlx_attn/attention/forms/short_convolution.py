"""Queries, keys and values read three tokens before their own: short convolutions.

    y_t <- f(c_0 y_t + c_1 y_(t-1) + c_2 y_(t-2) + c_3 y_(t-3)), for each number of y

f is the identity in Canon-B layers (arXiv:2512.17351), silu in gated delta networks
(arXiv:2412.06464). y is 0 before a text, and the weights c start as the identity; the authors'
start at random, in Canon layers added to the identity. A key that is the value, too, is convolved
twice. QK-norm comes after it, in Canon layers before.
"""

from typing import Any

import mlx.core as mx
from jaxtyping import Float

from mlx_attn.attention.cache import KVCache
from mlx_attn.attention.catalog import Convolution, register
from mlx_attn.attention.config import AttentionConfig
from mlx_attn.attention.layer import Heads, MapWeights

_REACH = 3
"""Tokens before its own that a convolution reads."""

_PARTS = ("query", "key", "value")


def _shapes(config: AttentionConfig) -> tuple[tuple[int, int], ...]:
    """Return the heads and the width of queries, keys and values."""
    heads, width = config.choice("score").shape(config)
    return (config.n_maps, width), (heads, width), config.choice("value").shape(config)


def _start(config: AttentionConfig, part: int) -> Float[mx.array, "4 heads D"]:
    """Return weights that leave queries (part 0), keys (1) or values (2) as they are."""
    return mx.zeros((_REACH + 1, *_shapes(config)[part])).at[0].add(1)


def _refuses(config: AttentionConfig) -> str:
    """Refuse caches of numbers before the convolution: decoding would convolve them again."""
    score, value, output = (config.choice(name) for name in ("score", "value", "output"))
    later = [choice for choice in (score, value) if choice.cache != "kv"]
    later += [output] if output.contains_value else []
    names = " and ".join(f"{choice.map}={choice.name}" for choice in later)
    return names and (
        f"short_conv={config.short_conv} mixes the keys and values of tokens, and {names} caches "
        "what comes before them: use maps that cache keys and values, such as score=separate and "
        "value=linear"
    )


def _with_rows_before(cache: KVCache, part: int, y: Heads) -> Float[mx.array, "B heads rows D"]:
    """Return y behind the rows before it, 0 before a text; the cache keeps the last for later."""
    if part == len(cache.rows):  # its first tokens show the number of heads and their width
        B, heads, _, width = y.shape
        cache.rows.append(mx.zeros((B, heads, _REACH, width), y.dtype))
        cache.n_rows = len(cache.rows)
    rows = mx.concatenate([cache.rows[part], y], axis=2)  # [B, heads, _REACH + T, D]
    cache.rows[part] = rows[:, :, -_REACH:]
    return rows


_FACTS: dict[str, Any] = {
    "input_weights": (),
    "weights": {
        "conv_query": lambda config: _start(config, 0),
        "conv_key": lambda config: _start(config, 1),
        "conv_value": lambda config: _start(config, 2),
    },
    "multiply_adds": lambda config: (_REACH + 1) * sum(n * D for n, D in _shapes(config)),
    "refuses": _refuses,
}


def convolved(layer: MapWeights, part: int, y: Heads, cache: KVCache | None) -> Heads:
    """Convolve queries (part 0), keys (1) or values (2) of new tokens, [B, heads, T, D]."""
    weights, T = layer[f"conv_{_PARTS[part]}"], y.shape[2]
    before = [(0, 0), (0, 0), (_REACH, 0), (0, 0)]
    rows = mx.pad(y, before) if cache is None else _with_rows_before(cache, part, y)
    # Split, not indexed: the gradient of an index is a scatter, whose order of sums varies.
    terms = [
        weight.swapaxes(0, 1) * rows[:, :, _REACH - back : _REACH - back + T]
        for back, weight in enumerate(mx.split(weights, _REACH + 1))
    ]
    return sum(terms[1:], terms[0])


def convolved_silu(layer: MapWeights, part: int, y: Heads, cache: KVCache | None) -> Heads:
    """Return silu(y) = y sigmoid(y) of what `convolved` returns."""
    y = convolved(layer, part, y, cache)
    return y * mx.sigmoid(y)


_SUM = "c_0 y_t + ... + c_3 y_(t-3)"
for name, formula, source, apply in (
    ("linear", f"y_t = {_SUM}", "Canon-B layers, arXiv:2512.17351", convolved),
    ("silu", f"y_t = silu({_SUM})", "gated delta networks, arXiv:2412.06464", convolved_silu),
):
    register(Convolution(name=name, formula=formula, source=source, apply=apply, **_FACTS))
