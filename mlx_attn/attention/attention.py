"""Causal attention, top to bottom: the mask, a layer of any choices, the standard layer.

    score_h(i, j) = scale * x_i S_h x_j^T
    head_h        = softmax(score_h + causal mask) x V_h
    y             = sum_h head_h O_h

Begin with `StandardAttention`, the book's multi-head attention, which is all that a standard model
runs. The maps S_h, V_h and O_h are choices (`mlx_attn.attention.maps`): `Attention` computes the
same steps for any of them.
"""

from functools import lru_cache, partial
from importlib import import_module
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from jaxtyping import Float

from mlx_attn.attention.cache import Entries, KVCache, Position, Positions, arange
from mlx_attn.attention.catalog import MAPS
from mlx_attn.attention.config import AttentionConfig
from mlx_attn.attention.forms.compact_caches import attend_by_state, values_of_keys
from mlx_attn.attention.forms.positions import alibi_bias, alibi_slopes, rope, unit_rms
from mlx_attn.attention.layer import (
    Heads,
    Inputs,
    Keys,
    MapWeights,
    Outputs,
    Queries,
    Scores,
    Values,
    attention_scores,
    merge_heads,
    split_heads,
)
from mlx_attn.errors import ConfigError
from mlx_attn.keys import keys_of, validate
from mlx_attn.machine.operations import attention_by_kernel, multiply_heads


def causal_mask(positions: Positions, window: int = 0) -> Float[mx.array, "T_q T_k"]:
    """Return 0 for keys that a query sees, and minus infinity for the others.

    A query sees the keys that are not after it, with a window only the last `window` of these
    (sliding window attention, arXiv:2004.05150).
    """
    i, j = positions.queries[:, None], positions.keys
    return mx.where((j <= i) & (j > i - window) if window else j <= i, 0.0, -mx.inf)


def added_mask(positions: Positions, window: int, slopes: tuple[float, ...]) -> mx.array:
    """Return the mask to add to scores, causal and with ALiBi's bias: [T_q, T_k] or [H, ...]."""
    mask = causal_mask(positions, window)
    return mask + alibi_bias(mx.array(slopes, mx.float32), positions) if slopes else mask


@lru_cache(maxsize=4)
def text_mask(T: int, window: int, slopes: tuple[float, ...]) -> mx.array:
    """Return the mask of a whole text, computed now: a constant of the graphs of all layers."""
    return mx.array(np.array(added_mask(Positions.of_text(T), window, slopes)))


class Attention(MapWeights):
    """One causal self-attention layer of any variant."""

    def __init__(self, config: AttentionConfig):
        super().__init__(config)
        # Hooks, and keys that are rotated when they are read, need the cache in order of position.
        self.reads_in_order = self.maps.has_hooks or (
            self.maps.caches_keys_only and config.rotates and config.window > 0
        )
        self.dropout = nn.Dropout(config.drop_rate)
        # A reader needs the layer before, which has the same choices of a user's and tries them.
        if config.cross_layer != "reader" and any(c.foreign_functions for c in self.maps.all):
            # By name: the laws are above this room, and forward passes do without them.
            import_module("mlx_attn.laws").check_choices(self)

    def __call__(
        self, x: Inputs, cache: KVCache | None = None, carry: dict[str, Any] | None = None
    ) -> Outputs:
        """Attend from each token of x to itself and to earlier ones, those in the cache included.

        The cache holds key and value; only one of them if they are equal, and only the key before
        rotation if the value is computed from it; after them, the memories of hooks and mixing.

        Args:
            x: New tokens.
            cache: What earlier calls kept; it is extended.
            carry: Arrays that layers pass on in one forward pass of a model.
        """
        positions, start = Positions.of_text(x.shape[1]), cache.offset if cache else 0
        carry = {} if carry is None else carry
        q, k = self.score(x, cache, carry)  # [B, H, T, K], [B, key_heads, T, K]
        is_reader = self.config.cross_layer == "reader"  # of an earlier layer's keys and values
        state = cache if cache and not (cache.caches_tokens or is_reader) else None  # not of tokens
        if is_reader:
            if cache is not None:
                cache.advance(x.shape[1])
            *entries, positions = carry["shared"]  # which the score map has found
        elif self.maps.caches_keys_only and state is None:
            entries = (k,)
        else:
            v, key = self.value(x, k, cache, carry), self.normalize_and_rotate(k, start)
            entries = (key,) if v is key else (key, v)  # [B, key_heads, T, K], [B, H_v, T, D]
        # After them the memories of hooks, [B, heads, T, width] each; usually empty.
        arrays = (*entries, *self.remembered(x))
        if cache is not None and not is_reader:  # T tokens -> all T_k that are visible
            arrays, positions = cache.extend(arrays, self.reads_in_order)
        k, v, memories = arrays[0], arrays[len(entries) - 1], arrays[len(entries) :]
        if self.config.cross_layer == "source":
            # As scores see them; while decoding, the cached ones too.
            carry["shared"] = (k, v, positions)
        q = self.normalize_and_rotate(q, positions.query)  # [B, H, T, K]
        if state is not None:
            heads = attend_by_state(self, state, q, k, v, *memories)
        elif self.maps.caches_keys_only:
            v, after = values_of_keys(self, k, x.shape[1])
            k = self.normalize_and_rotate(k, positions.first)
            heads = after(self, self.attend(q, k, v, positions, *memories))
        else:
            heads = self.attend(q, k, v, positions, *memories)
        return self.output(heads, x)  # [B, H, T, D] -> [B, T, d_out]

    def attend(
        self, q: Queries, k: Keys, v: Values, positions: Positions, *memories: mx.array
    ) -> Heads:
        """Return dropout(mixing(logits(scale q k^T) + mask)) v, by a kernel if one is faster.

        Kernels know neither hooks nor dropout, and none computes in float64.
        """
        drops = self.config.drop_rate > 0 and self.training
        if not (self.maps.has_hooks or drops or q.dtype == mx.float64):
            mask = partial(self.mask, positions)
            heads = attention_by_kernel(q, k, v, self.config.scale, mask, self.training)
            if heads is not None:
                return heads
        # The weighted sum of values: [B, H, T_q, T_k] x [B, H_v, T_k, D] -> [B, H, T_q, D].
        return multiply_heads(self.dropout(self.mix(q, k, positions, *memories)), v)

    def mix(self, q: Queries, k: Keys, positions: Positions, *memories: mx.array) -> Scores:
        """Return the attention weights mixing(logits(scale q k^T) + mask), through both hooks.

        They are computed in the mask's float32, or in float64 if the inputs are.
        """
        # [B, H, T_q, K] x [B, key_heads, T_k, K] -> [B, H, T_q, T_k]
        scores = self.logits(attention_scores(q, k, self.config.scale), *memories)
        masked = scores + self.mask(positions)  # after the hooks, which must not see minus infinity
        more = self.read_by_mixing(q, k, masked, memories)
        return self.maps.mixing.apply(self, masked, *more).astype(q.dtype)

    def mask(self, positions: Positions, by_name: bool = False) -> Any:
        """Return 0 for a key that a query sees, else minus infinity: [T_q, T_k].

        ALiBi's bias is added: [H, T_q, T_k]. With `by_name` None stands for a causal mask.
        """
        window, T, slopes = self.config.window, positions.keys.size, self.slopes
        if not positions.whole:
            return added_mask(positions, window, slopes)
        window = window if window < T else 0
        if by_name and not slopes and not window:
            return None
        return text_mask(T, window, slopes)  # the same constant in every layer and step

    @property
    def slopes(self) -> tuple[float, ...]:
        """ALiBi's slopes, of every attention map; none for other positions."""
        per_head, is_alibi = self.maps.score.queries_per_head, self.config.position == "alibi"
        return alibi_slopes(self.config.n_heads, per_head) if is_alibi else ()

    def logits(self, scores: Scores, *memories: mx.array) -> Scores:
        """Return the scores after every hook; `memories` belong to the hooks that have one.

        A hook may add its memory up over a whole text, which bfloat16 could not.
        """
        wide = scores.dtype if scores.dtype == mx.float64 else mx.float32
        memory = (array.astype(wide) for array in memories)  # the mixing's, the last one, stays
        for hook in self.maps.logits:
            scores = hook.apply(self, scores, *([next(memory)] if hook.remembers else []))
        return scores

    def read_by_mixing(self, q: Queries, k: Keys, masked: Scores, memories: Entries) -> Entries:
        """Return the further inputs of the mixing, in the type of the masked scores.

        These are queries and keys if it reads keys, and the last memory if it remembers.
        """
        mixing = self.maps.mixing
        read = (q, k) if mixing.reads_keys else ()
        read += memories[-1:] if mixing.remembers else ()
        return tuple(array.astype(masked.dtype) for array in read)

    def remembered(self, x: Inputs) -> Entries:
        """Return the numbers of the tokens x that the hooks and the mixing read."""
        return tuple(remember(self, x) for remember in self.maps.remembers)

    def normalize_and_rotate(self, y: Heads, offset: Position) -> Heads:
        """Return queries or keys over their root mean square and rotated, if asked for."""
        y = unit_rms(y) if self.config.qk_norm else y
        for position in self.maps.position:  # a user's
            # Slots without a token come before position 0; they are masked.
            return position.apply(self, y, mx.maximum(offset + arange(y.shape[2]), 0))
        return rope(y, offset) if self.config.position == "rope" else y

    def queries_and_keys(self, x: Inputs) -> tuple[Queries, Keys]:
        """Return queries and keys as the scores see them: normalized and rotated."""
        q, k = self.score(x)
        return self.normalize_and_rotate(q, 0), self.normalize_and_rotate(k, 0)

    def weights(self, x: Inputs) -> Float[mx.array, "B H T T"]:
        """Return the attention weights of every head: row i holds what token i looks at.

        Rows add up to 1 if the mixing is a softmax, and need not for others.
        """
        positions = Positions.of_text(x.shape[1])
        return self.mix(*self.queries_and_keys(x), positions, *self.remembered(x))


class StandardAttention(Attention):
    """The book's multi-head attention (section 3.6): all that a standard layer runs.

        head_h = softmax(scale q_h k_h^T + mask) v_h        y = concat(heads) out_proj

    H query heads of width D read H_kv key and value heads; a test holds `Attention` to the same
    bits.
    """

    def __call__(
        self, x: Inputs, cache: KVCache | None = None, carry: dict[str, Any] | None = None
    ) -> Outputs:
        """Attend from each token of x to itself and to earlier ones; see `Attention`."""
        config, positions = self.config, Positions.of_text(x.shape[1])
        start = cache.offset if cache else 0  # position of the first token of x
        q = split_heads(self.W_query(x), config.n_heads)  # [B, T, C] -> [B, H, T, D]
        k = split_heads(self.W_key(x), config.n_kv_heads)  # [B, H_kv, T, D]: serves H / H_kv heads
        v = split_heads(self.W_value(x), config.n_kv_heads)  # [B, H_kv, T, D_v]
        if config.qk_norm:
            q, k = unit_rms(q), unit_rms(k)
        if config.position == "rope":  # before caching, so that no key is rotated twice
            q, k = rope(q, start), rope(k, start)
        if cache is not None:  # the keys and values of earlier tokens too: [B, H_kv, T_k, D]
            (k, v), positions = cache.extend((k, v))
        # weights = softmax(scale q k^T + mask): [B, H, T, T_k] in float32, where -inf hides later
        # keys and ALiBi lowers far ones. Fused kernels add up `weights v` without storing them.
        heads = self.attend(q, k, v, positions)  # [B, H, T, D_v]
        return self.out_proj(merge_heads(heads))  # [B, T, H D_v] -> [B, T, d_out]


def attention_layer(config: AttentionConfig) -> Attention:
    """Return the standard layer, or the general one for other choices of the maps."""
    standard = MAPS | {"short_conv": "none", "cross_layer": ""}
    is_standard = all(getattr(config, name) == word for name, word in standard.items())
    if is_standard and not config.choices("position"):  # of a user
        return StandardAttention(config)
    return Attention(config)


# The book's two classes (chapter 3): a reader swaps the class and nothing else.


class CausalAttention(Attention):
    """One head and no output projection (the book's section 3.5).

    Args:
        d_in: Width of the input.
        d_out: Width of the head and of the output.
        context_length: Longest sequence.
        dropout: Dropout of the attention weights, in [0, 1).
        qkv_bias: Whether W_query, W_key and W_value have biases.
        **choices: Any other key of `AttentionConfig`, such as `score="merged"`.
    """

    def __init__(
        self,
        d_in: int,
        d_out: int,
        context_length: int,
        dropout: float,
        qkv_bias: bool = False,
        **choices: Any,
    ):
        sizes = {"d_in": d_in, "d_out": d_out, "context_length": context_length}
        settings = {"drop_rate": dropout, "qkv_bias": qkv_bias, "output": "none", **choices}
        known = keys_of(AttentionConfig) | dict.fromkeys(sizes, int)
        super().__init__(AttentionConfig(**validate({**sizes, **settings}, known)))

    def __call__(
        self, x: mx.array, cache: KVCache | None = None, carry: dict[str, Any] | None = None
    ) -> Outputs:
        """Attend; ConfigError for an input of another shape. See `Attention`."""
        if not isinstance(x, mx.array):
            raise ConfigError(f"the input has the type {type(x).__name__}: give mx.array(x)")
        if x.ndim != 3 or x.shape[-1] != self.config.d_in:
            way = "; x[None] makes a batch of one text" if x.ndim == 2 else ""
            raise ConfigError(
                f"the input has the shape {tuple(x.shape)}, and must have (batch, tokens, "
                f"{self.config.d_in}){way}"
            )
        return super().__call__(x, cache, carry)


class MultiHeadAttention(CausalAttention):
    """Several heads and an output projection (the book's section 3.6).

    For the other arguments see `CausalAttention`; d_out is the width of all heads together and must
    be a multiple of num_heads.
    """

    def __init__(
        self,
        d_in: int,
        d_out: int,
        context_length: int,
        dropout: float,
        num_heads: int,
        qkv_bias: bool = False,
        **choices: Any,
    ):
        defaults = {"n_heads": num_heads, "output": "linear"}
        super().__init__(d_in, d_out, context_length, dropout, qkv_bias, **(defaults | choices))
