"""Causal attention as three maps: score, value, output.

    score_h(i, j) = scale * x_i S_h x_j^T
    head_h        = softmax(score_h + causal mask) x V_h
    y             = sum_h head_h O_h

A variant replaces some of the maps. It is chosen once, in the constructor; the forward pass is the
same six lines for all of them.
"""

from collections.abc import Callable

import mlx.core as mx
import mlx.nn as nn
from jaxtyping import Float

from mlx_attn.attention.cache import AttentionCache
from mlx_attn.attention.config import AttentionConfig
from mlx_attn.attention.initialisation import Draw, linear_draw
from mlx_attn.attention.memory import memory_of
from mlx_attn.attention.output import OUTPUTS
from mlx_attn.attention.positions import alibi_bias, alibi_slopes, causal_mask, rope, unrotated
from mlx_attn.attention.score import SCORES
from mlx_attn.attention.softmax import attention_weights
from mlx_attn.attention.value import value_of


class Attention(nn.Module):
    """One causal self-attention layer of any variant.

    The trained parts are attributes under the book's names: W_query, W_key, W_value, out_proj, and
    S for the merged query and key, VO for the merged value and output. A variant has what it needs.

    Attributes:
        fused: Whether a fused kernel may serve. None may under `mx.vmap`: a kernel that saves
            numbers for its gradient has more outputs than what MLX maps in its place.
    """

    W_query: nn.Linear
    W_key: nn.Linear
    W_value: nn.Linear
    out_proj: nn.Linear
    S: nn.Linear
    VO: nn.Linear
    mixing: mx.array
    residual_gain: mx.array
    normalise: Callable[[mx.array], mx.array]

    def __init__(self, config: AttentionConfig):
        super().__init__()
        self.config, self.fused = config, True
        self.score = SCORES[config.score]
        self.value = value_of(config)
        self.output = OUTPUTS[config.output]
        self.memory = memory_of(config)
        self.normalise = unit_rms if config.qk_norm else unchanged
        self.rotation = rope if config.position == "rope" else unrotated
        self.dropout = nn.Dropout(config.drop_rate)
        for part in (self.score, self.value, self.output):
            for name, layer in part.layers(config).items():
                setattr(self, name, layer)
        self.start(linear_draw)

    def start(self, draw: Draw) -> None:
        """Draw every weight matrix afresh; merged matrices from the factors they replace."""
        for part in (self.score, self.value, self.output):
            for name, weight in part.start(self.config, draw).items():
                self.update({name: {"weight": weight} if "weight" in self[name] else weight})

    def __call__(
        self, x: Float[mx.array, "B T C"], cache: AttentionCache | None = None
    ) -> Float[mx.array, "B T d_out"]:
        """Attend from each token of x to itself and to earlier ones, those in the cache included.

        Args:
            x: New tokens.
            cache: What earlier calls remembered; it is extended.
        """
        offset = cache.offset if cache else 0
        q, k = self.score(self, x)
        memory = self.memory.write(self, x, k, offset)
        if cache is not None:
            memory = cache.extend(memory)
        heads = self.memory.read(self, self.place(q, offset), memory)
        return self.output(self, heads)

    def weights(self, x: Float[mx.array, "B T C"]) -> Float[mx.array, "B H T T"]:
        """The attention weights of every head: row i is what token i looks at, and adds up to 1."""
        q, k = self.score(self, x)
        keys = self.memory.keys(self, self.memory.write(self, x, k, 0))
        mask = self.mask(x.shape[1], x.shape[1])
        return attention_weights(self.place(q, 0), keys, mask, self.config.scale)

    @property
    def drops(self) -> bool:
        """Whether attention weights are dropped now."""
        return self.training and self.config.drop_rate > 0

    def place(self, y: Float[mx.array, "B H T D"], offset: int) -> Float[mx.array, "B H T D"]:
        """Queries or keys, normalised and rotated as the configuration asks."""
        return self.rotation(self.normalise(y), offset)

    def bias(self, T_q: int, T_k: int) -> mx.array | None:
        """The mask with ALiBi's bias in it; None where the causal mask is all there is."""
        if self.config.position != "alibi":
            return None
        slopes = mx.array(alibi_slopes(self.config.n_heads))
        bias = alibi_bias(slopes, T_q, T_k)
        return bias + causal_mask(T_q, T_k) if T_q > 1 else bias

    def mask(self, T_q: int, T_k: int) -> mx.array:
        """The mask as an array, for the explicit path; a single query sees all."""
        bias = self.bias(T_q, T_k)
        if bias is not None:
            return bias
        return causal_mask(T_q, T_k) if T_q > 1 else mx.array(0.0)


def unit_rms(y: Float[mx.array, "B H T D"]) -> Float[mx.array, "B H T D"]:
    """Queries or keys over their root mean square (QK-norm, without weights)."""
    return mx.fast.rms_norm(y, None, 1e-6)


def unchanged(y: Float[mx.array, "B H T D"]) -> Float[mx.array, "B H T D"]:
    """Queries or keys without QK-norm."""
    return y
