"""The trained weights of one attention layer, on which every choice of a map works.

Linear weights are stored (out, in), so a row vector x is mapped to x W^T; the letters of the
formulas are the matrices that act on x from the right, as in q = x W_query.
"""

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from jaxtyping import Float

from mlx_attn.attention.cache import KVCache
from mlx_attn.attention.catalog import (
    MAPS,
    Choice,
    LogitsHook,
    Mixing,
    OutputMap,
    ScoreMap,
    ValueMap,
    choice_of,
)
from mlx_attn.attention.config import AttentionConfig
from mlx_attn.errors import ConfigError
from mlx_attn.machine.operations import multiply_heads

Inputs = Float[mx.array, "B T C"]
Queries = Float[mx.array, "B H T_q K"]
Keys = Float[mx.array, "B key_heads T_k K"]
Values = Float[mx.array, "B value_heads T_k D"]
Scores = Float[mx.array, "B H T_q T_k"]
Heads = Float[mx.array, "B H T D"]
Outputs = Float[mx.array, "B T d_out"]


def split_heads(
    y: Float[mx.array, "B T width"], n_heads: int
) -> Float[mx.array, "B {n_heads} T head_dim"]:
    """Cut the last axis into heads: [B, T, H D] -> [B, H, T, D]."""
    if y.shape[1] == 1:  # one token, as in decoding: the axes to exchange are one element long
        return y.reshape(y.shape[0], n_heads, 1, -1)
    # [B, T, H D] -> [B, T, H, D] -> [B, H, T, D]
    return y.reshape(*y.shape[:2], n_heads, -1).transpose(0, 2, 1, 3)


def merge_heads(y: Heads) -> Float[mx.array, "B T width"]:
    """Concatenate heads, the inverse of `split_heads`: [B, H, T, D] -> [B, T, H D]."""
    if y.shape[2] == 1:
        return y.reshape(y.shape[0], 1, -1)
    return y.transpose(0, 2, 1, 3).flatten(2)


def attention_scores(q: Queries, k: Keys, scale: float) -> Scores:
    """Return the scores scale q k^T.

    Query heads that share a key head are the rows of one matrix product: this is also the
    row-folded form of merged attention, where x is the only key.
    """
    T_q = q.shape[2]
    # [B, H, T_q, K] x [B, key_heads, K, T_k] -> [B, H, T_q, T_k]
    scores = multiply_heads(q * scale if T_q > 1 else q, k.swapaxes(2, 3))
    return scores if T_q > 1 else scores * scale  # for one token MLX fuses this with the mask


Draw = Callable[..., mx.array]
"""Draws a starting weight, as `draw_uniform` does; a GPT draws by seed and name."""


def draw_uniform(name: str, rows: int, columns: int, residual: bool = False) -> mx.array:
    """Draw (rows, columns) = (out, in) as MLX's Linear; `residual` marks the end of a branch."""
    return mx.random.uniform(-(columns**-0.5), columns**-0.5, (rows, columns))


def matrix_of(linear: Any, width: int) -> tuple[mx.array, mx.array | None]:
    """Return the matrix [out, in] of a linear layer of this input width, and its bias if any.

    A layer of another library may be in its place, quantized or LoRA: it is applied to unit rows.
    """
    if hasattr(linear, "dense_weight"):
        return linear.dense_weight(), linear.get("bias")
    if isinstance(linear, nn.Linear):
        return linear.weight, linear.get("bias")
    bias = linear(mx.zeros((1, width)))  # f(0); f(I) - f(0) are the rows of W^T
    return (linear(mx.eye(width)) - bias).T, bias


# The book's matrices, which many choices share: the parts of a layer by name.


def projection(config: AttentionConfig, width: int) -> nn.Linear:
    """Return a map from x to queries, keys or values of all heads: [B, T, C] -> [B, T, width]."""
    return nn.Linear(config.d_in, width, bias=config.qkv_bias)


W_QUERY = {"W_query": lambda config: projection(config, config.n_heads * config.head_dim)}
W_KEY = {"W_key": lambda config: projection(config, config.n_kv_heads * config.head_dim)}
W_VALUE = {"W_value": lambda config: projection(config, config.n_kv_heads * config.value_dim)}
OUT_PROJ = {
    "out_proj": lambda config: nn.Linear(out_width(config), config.d_out, bias=config.out_bias)
}


def out_width(config: AttentionConfig) -> int:
    """Return the width of all heads together."""
    return config.n_heads * config.value_dim


class Maps:
    """The choices of one layer; with a merged output the value is x itself."""

    def __init__(self, config: AttentionConfig):
        earlier = "earlier" if config.cross_layer == "reader" else ""  # reads another layer's
        self.score: ScoreMap = choice_of("score", earlier or config.score)
        self.output: OutputMap = config.choice("output")
        value: ValueMap = choice_of("value", earlier or config.value)
        self.value = self.output.contains_value or value
        self.logits: tuple[LogitsHook, ...] = config.choices("logits")
        self.mixing: Mixing = config.choice("mixing")
        self.position: tuple[Choice, ...] = config.choices("position")  # a user's, in the heads
        self.convolution: tuple[Choice, ...] = config.choices("short_conv")
        self.has_hooks = bool(self.logits) or config.mixing != MAPS["mixing"]
        # What the hooks, and last the mixing, read of x too.
        hooks = (*self.logits, self.mixing)
        self.remembers = tuple(hook.remembers for hook in hooks if hook.remembers)
        # Decoding caches no values: keys, or x as the key, give them.
        self.caches_keys_only = self.score.cache != "kv" or self.value.cache != "kv"

    @property
    def all(self) -> tuple[Choice, ...]:
        """All of them, in the order in which weights are drawn."""
        maps = self.score, self.value, self.output, *self.logits, self.mixing
        return *maps, *self.position, *self.convolution


class MapWeights(nn.Module):
    """The trained parts of one attention layer, under the book's names, and its three maps.

    A layer has the parts that its choices need: `layer["S"]` is a part of a form of its own.
    """

    W_query: nn.Linear
    W_key: nn.Linear
    W_value: nn.Linear
    out_proj: nn.Linear

    def __init__(self, config: AttentionConfig):
        super().__init__()
        self.config = config
        self.maps = Maps(config)
        for choice in self.maps.all:
            # A part may be None: this configuration does without it.
            for name, make in choice.weights.items():
                if (part := make(config)) is not None:
                    is_free = name.isidentifier() and not hasattr(self, name)
                    if not (is_free and isinstance(part, mx.array | nn.Module)):
                        raise ConfigError(
                            f"{choice.map}={choice.name}: its weight '{name}' must be an array or "
                            "an nn.Module, with a name of letters that no other part has"
                        )
                    setattr(self, name, part)
        self.init_weights(draw_uniform)

    def init_weights(self, draw: Draw) -> None:
        """Draw every weight matrix afresh; merged matrices from the factors they replace."""
        for choice in self.maps.all:
            if choice.init is not None:
                drawn = choice.init(self.config, draw)
            else:
                parts: dict[str, Any] = {name: self.get(name) for name in choice.weights}
                drawn = {
                    name: draw(name, *part.weight.shape, residual=name == "out_proj")
                    for name, part in parts.items()
                    if _has_matrix(part)
                }
            # A Linear's matrix is its "weight"; other parts are arrays themselves.
            for name, weight in drawn.items():
                part = self.get(name, mx.zeros(0))
                is_linear = isinstance(part, nn.Module) and "weight" in part
                array = part["weight"] if is_linear else part
                if isinstance(array, mx.array) and weight.shape != array.shape:
                    raise ConfigError(
                        f"{choice.map}={choice.name}: its init= draws '{name}' of shape "
                        f"{weight.shape}, and the layer's has {array.shape}"
                    )
                self.update({name: {"weight": weight} if is_linear else weight})

    def score(
        self, x: Inputs, cache: KVCache | None = None, carry: dict[str, Any] | None = None
    ) -> tuple[Queries, Keys]:
        """Return the queries and keys of x, which continues the text in the cache."""
        carried = ({} if carry is None else carry,) if self.maps.score.carries else ()
        # [B, T, C] -> [B, H, T, K] and [B, key_heads, T, K]
        q, k = self.maps.score.apply(self, x, *carried)
        return self._convolved(0, q, cache), self._convolved(1, k, cache)

    def value(
        self, x: Inputs, k: Keys, cache: KVCache | None = None, carry: dict[str, Any] | None = None
    ) -> Values:
        """Return the values of x, whose keys before rotation are k; x continues the cached text."""
        carried = ({} if carry is None else carry,) if self.maps.value.carries else ()
        # [B, T, C] -> [B, value_heads, T, D]
        v = self.maps.value.apply(self, self.value_input(x, k), k, *carried)
        return self._convolved(2, v, cache)

    def value_input(self, x: Inputs, k: Keys) -> Float[mx.array, "B T width"]:
        """Return what the value map reads: x, or the keys of all heads side by side."""
        # [B, kv_heads, T, K] -> [B, T, kv_heads K]
        return merge_heads(k) if self.maps.value.cache == "k" else x

    def _convolved(self, part: int, y: Heads, cache: KVCache | None) -> Heads:
        """Return queries (part 0), keys (1) or values (2), convolved if the layer asks for it."""
        for convolution in self.maps.convolution:
            y = convolution.apply(self, part, y, cache)
        return y

    def output(self, heads: Heads, x: Inputs | None = None) -> Outputs:
        """Return the layer's output from its heads; a map that is not affine reads x as well."""
        return self.maps.output.apply(self, heads, x)  # [B, H, T, D] -> [B, T, d_out]


def _has_matrix(part: Any) -> bool:
    """Return True for a linear layer of any kind, whose matrix is drawn here."""
    # A norm has a vector, and a table draws its own start.
    is_layer = isinstance(part, nn.Module) and not isinstance(part, nn.Embedding)
    return is_layer and part.get("weight") is not None and part["weight"].ndim == 2
