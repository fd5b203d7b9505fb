"""The output map: how heads become the layer's output.

y = sum_h head_h O_h
"""

from typing import Any, Protocol, runtime_checkable

import mlx.core as mx
import mlx.nn as nn
from jaxtyping import Float

from mlx_attn.attention.algebra import merge_value_output
from mlx_attn.attention.config import AttentionConfig
from mlx_attn.attention.heads import join_heads
from mlx_attn.attention.initialisation import Draw, factor_spread, start_merged


@runtime_checkable
class Output(Protocol):
    """One way to bring the heads together."""

    def layers(self, config: AttentionConfig) -> dict[str, Any]:
        """The trained parts by name."""
        ...

    def start(self, config: AttentionConfig, draw: Draw) -> dict[str, mx.array]:
        """The starting weights of those parts, by name."""
        ...

    def __call__(
        self, layers: Any, heads: Float[mx.array, "B H T D"]
    ) -> Float[mx.array, "B T d_out"]:
        """The layer's output from its heads."""
        ...


class LinearOutput:
    """y = concat(heads) out_proj."""

    def layers(self, config: AttentionConfig) -> dict[str, Any]:
        width = config.n_heads * config.value_dim
        return {"out_proj": nn.Linear(width, config.d_out, bias=config.out_bias)}

    def start(self, config: AttentionConfig, draw: Draw) -> dict[str, mx.array]:
        return {"out_proj": draw(config.d_out, config.n_heads * config.value_dim, residual=True)}

    def __call__(
        self, layers: Any, heads: Float[mx.array, "B H T D"]
    ) -> Float[mx.array, "B T d_out"]:
        return layers.out_proj(join_heads(heads))


class NoOutput:
    """y = g concat(heads), with g = 1 unless the configuration asks for a trained gain.

    A random out_proj whose elements have spread s turns heads of spread 1 into an output of spread
    s sqrt(H D). Without it the branch would start that much louder, so g starts there.
    """

    def layers(self, config: AttentionConfig) -> dict[str, Any]:
        return {"residual_gain": mx.ones((1,))} if config.residual_gain else {}

    def start(self, config: AttentionConfig, draw: Draw) -> dict[str, mx.array]:
        if not config.residual_gain:
            return {}
        width = config.n_heads * config.value_dim
        replaced = draw(config.d_out, width, residual=True)
        return {"residual_gain": (mx.std(replaced) * width**0.5).reshape(1)}

    def __call__(
        self, layers: Any, heads: Float[mx.array, "B H T D"]
    ) -> Float[mx.array, "B T d_out"]:
        y = join_heads(heads)
        return layers.residual_gain * y if "residual_gain" in layers else y


class MergedOutput:
    """y = sum_h (softmax_h x) VO_h: one C x d_out matrix per head in place of W_value, out_proj."""

    def layers(self, config: AttentionConfig) -> dict[str, Any]:
        width = config.n_heads * config.d_in
        return {"VO": nn.Linear(width, config.d_out, bias=config.out_bias)}

    def start(self, config: AttentionConfig, draw: Draw) -> dict[str, mx.array]:
        width, D = config.n_heads * config.value_dim, config.value_dim
        value, output = draw(width, config.d_in), draw(config.d_out, width, residual=True)
        product = merge_value_output(value, output, config.n_heads)
        return {"VO": start_merged(config.merged_start, product, factor_spread(value, output, D))}

    def __call__(
        self, layers: Any, heads: Float[mx.array, "B H T C"]
    ) -> Float[mx.array, "B T d_out"]:
        return layers.VO(join_heads(heads))


OUTPUTS: dict[str, Output] = {
    "linear": LinearOutput(),
    "none": NoOutput(),
    "merged": MergedOutput(),
}
