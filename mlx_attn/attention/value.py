"""The value map: what a head brings back from the tokens it looks at.

    head_h = softmax_h x V_h

A map can be applied to x before the weighted sum or to the weighted sum of x after it: the sum is
linear and its weights add up to 1, so biases too come out the same.
"""

from typing import Any, Protocol, runtime_checkable

import mlx.core as mx
import mlx.nn as nn
from jaxtyping import Float

from mlx_attn.attention.config import AttentionConfig
from mlx_attn.attention.heads import split_heads
from mlx_attn.attention.initialisation import Draw
from mlx_attn.attention.shrunk import ShrunkLinear

Values = Float[mx.array, "B value_heads T D"]


@runtime_checkable
class Value(Protocol):
    """One way to make values."""

    def layers(self, config: AttentionConfig) -> dict[str, nn.Module]:
        """The trained parts by name."""
        ...

    def start(self, config: AttentionConfig, draw: Draw) -> dict[str, mx.array]:
        """The starting weights of those parts, by name."""
        ...

    def shape(self, config: AttentionConfig) -> tuple[int, int]:
        """How many value heads there are, and how wide each is."""
        ...

    def __call__(
        self, layers: Any, x: Float[mx.array, "B T C"], k: Float[mx.array, "B heads T K"]
    ) -> Values:
        """Values of x; `k` are its keys."""
        ...

    def after(self, layers: Any, y: Float[mx.array, "B H T C"]) -> Float[mx.array, "B H T D"]:
        """The same map applied to y_h = softmax_h x."""
        ...


class LinearValue:
    """v_h = x W_value_h."""

    def layers(self, config: AttentionConfig) -> dict[str, nn.Module]:
        width = config.n_kv_heads * config.value_dim
        return {"W_value": nn.Linear(config.d_in, width, bias=config.qkv_bias)}

    def start(self, config: AttentionConfig, draw: Draw) -> dict[str, mx.array]:
        return {"W_value": draw(config.n_kv_heads * config.value_dim, config.d_in)}

    def shape(self, config: AttentionConfig) -> tuple[int, int]:
        return config.n_kv_heads, config.value_dim

    def __call__(
        self, layers: Any, x: Float[mx.array, "B T C"], k: Float[mx.array, "B heads T K"]
    ) -> Values:
        return split_heads(layers.W_value(x), layers.config.n_kv_heads)

    def after(self, layers: Any, y: Float[mx.array, "B H T C"]) -> Float[mx.array, "B H T D"]:
        config, W_value = layers.config, layers.W_value
        weight = self.matrix(layers).reshape(config.n_kv_heads, config.value_dim, -1)
        weight = _per_query_head(weight, y)
        heads = y @ weight.swapaxes(1, 2)
        if "bias" not in W_value:
            return heads
        return heads + _per_query_head(W_value.bias.reshape(config.n_kv_heads, 1, -1), y)

    def matrix(self, layers: Any) -> Float[mx.array, "width C"]:
        """The whole matrix of W_value."""
        return layers.W_value.weight


class ShrunkValue(LinearValue):
    """v_h = x[kept_h] + x[rest_h] R_h: W_value less what out_proj can do as well."""

    def layers(self, config: AttentionConfig) -> dict[str, nn.Module]:
        bias = config.qkv_bias
        return {"W_value": ShrunkLinear(config.d_in, config.n_kv_heads, config.value_dim, bias)}

    def start(self, config: AttentionConfig, draw: Draw) -> dict[str, mx.array]:
        rows = config.n_kv_heads * config.value_dim
        return {"W_value": draw(rows, config.d_in - config.value_dim)}

    def matrix(self, layers: Any) -> Float[mx.array, "width C"]:
        return layers.W_value.whole()


class ValueFromKey(LinearValue):
    """v = concat(k) W_value: the keys of all heads hold all of x (Graef, arXiv:2503.05840).

    What it calls x is the joined keys; only they are remembered.
    """

    def layers(self, config: AttentionConfig) -> dict[str, nn.Module]:
        keys = config.n_kv_heads * config.head_dim
        width = config.n_kv_heads * config.value_dim
        return {"W_value": nn.Linear(keys, width, bias=config.qkv_bias)}

    def start(self, config: AttentionConfig, draw: Draw) -> dict[str, mx.array]:
        keys = config.n_kv_heads * config.head_dim
        return {"W_value": draw(config.n_kv_heads * config.value_dim, keys)}


class IdentityValue:
    """v_h = x[slice h]."""

    def layers(self, config: AttentionConfig) -> dict[str, nn.Module]:
        return {}

    def start(self, config: AttentionConfig, draw: Draw) -> dict[str, mx.array]:
        return {}

    def shape(self, config: AttentionConfig) -> tuple[int, int]:
        return config.n_kv_heads, config.value_dim

    def __call__(
        self, layers: Any, x: Float[mx.array, "B T C"], k: Float[mx.array, "B heads T K"]
    ) -> Values:
        return split_heads(x, layers.config.n_kv_heads)

    def after(self, layers: Any, y: Float[mx.array, "B H T C"]) -> Float[mx.array, "B H T D"]:
        D, group = layers.config.value_dim, layers.config.n_heads // layers.config.n_kv_heads
        slices = [y[:, h, :, h // group * D : (h // group + 1) * D] for h in range(y.shape[1])]
        return mx.stack(slices, axis=1)


class KeyAsValue(IdentityValue):
    """v_h = k_h (Kayyam et al., arXiv:2606.04032)."""

    def __call__(
        self, layers: Any, x: Float[mx.array, "B T C"], k: Float[mx.array, "B heads T K"]
    ) -> Values:
        return k


class WholeValue(IdentityValue):
    """v = x, one value for all heads: the map itself is inside the merged output."""

    def shape(self, config: AttentionConfig) -> tuple[int, int]:
        return 1, config.d_in

    def __call__(
        self, layers: Any, x: Float[mx.array, "B T C"], k: Float[mx.array, "B heads T K"]
    ) -> Values:
        return x[:, None]

    def after(self, layers: Any, y: Float[mx.array, "B H T C"]) -> Float[mx.array, "B H T C"]:
        return y


VALUES: dict[str, Value] = {
    "linear": LinearValue(),
    "identity": IdentityValue(),
    "key": KeyAsValue(),
    "shrunk": ShrunkValue(),
    "from_key": ValueFromKey(),
}


def value_of(config: AttentionConfig) -> Value:
    """The value map of a configuration: with a merged output, x itself."""
    return WholeValue() if config.output == "merged" else VALUES[config.value]


def _per_query_head(
    parts: Float[mx.array, "kv_heads rows columns"], y: Float[mx.array, "B H T C"]
) -> Float[mx.array, "H rows columns"]:
    return mx.repeat(parts, y.shape[1] // parts.shape[0], axis=0)
