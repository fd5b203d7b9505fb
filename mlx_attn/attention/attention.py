"""Causal attention, top to bottom: positions, the weighted sum, the forward pass, `Attention`.

    score_h(i, j) = scale * x_i S_h x_j^T
    head_h        = softmax(score_h + causal mask) x V_h
    y             = sum_h head_h O_h

Begin with `standard_forward`, which is all that a standard layer runs. The maps S_h, V_h and O_h
are choices (`mlx_attn.attention.maps`), and `general_forward` is the same for all of them.
"""

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, cast

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from jaxtyping import Float, Integer

from mlx_attn.attention.cache import Kept, KVCache, Places, Position, StateCache, counted
from mlx_attn.attention.config import MAPS, TRIALS, AttentionConfig
from mlx_attn.attention.layer import (
    Carry,
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
    weighted_sum,
)
from mlx_attn.machine.attention_kernels import attention_by_kernel, fuses

ROPE_BASE = 10000.0


# Positions inside attention. Learned positions are added to the input by the model.


def rope(y: Heads, offset: Position) -> Heads:
    """Rotate pairs of coordinates by an angle that grows with position (RoPE, arXiv:2104.09864).

    The first of the T tokens is at position `offset`; D is even.
    """
    return mx.fast.rope(y, y.shape[-1], traditional=False, base=ROPE_BASE, scale=1.0, offset=offset)


def unit_rms(y: Heads) -> Heads:
    """Divide queries or keys by their root mean square (QK-norm, without weights)."""
    return mx.fast.rms_norm(y, None, 1e-6)


def alibi_bias(
    slopes: Float[mx.array, " H"],
    queries: Integer[mx.array, " T_q"],
    keys: Integer[mx.array, " T_k"],
) -> Float[mx.array, "H T_q T_k"]:
    """Return -slope_h (i - j), for queries and keys at these positions."""
    return -slopes[:, None, None] * (queries[:, None] - keys)  # [H, 1, 1] * [T_q, T_k]


def causal_mask(
    queries: Integer[mx.array, " T_q"], keys: Integer[mx.array, " T_k"], window: int = 0
) -> Float[mx.array, "T_q T_k"]:
    """Return 0 for keys that a query sees, and minus infinity for the others.

    A query sees the keys that are not after it, with a window only the last `window` of these
    (sliding window attention, arXiv:2004.05150).
    """
    i, j = queries[:, None], keys
    return mx.where((j <= i) & (j > i - window) if window else j <= i, 0.0, -mx.inf)


@lru_cache(maxsize=4)
def text_mask(T: int, window: int = 0, slopes: tuple[float, ...] = ()) -> mx.array:
    """Return the mask of a whole text with ALiBi's bias: a constant of the graphs of all layers."""
    mask = causal_mask(counted(T), counted(T), window)
    bias = alibi_bias(mx.array(slopes), counted(T), counted(T)) if slopes else 0.0
    return mx.array(np.array(mask + bias))


# The weighted sum of values. Three paths give the same numbers.


def stores_weights(config: AttentionConfig, T: int) -> bool:
    """Tell whether training must store the attention weights [H, T, T] of a layer.

    Only a GPU has fused kernels, which do not. They cannot run hooks, dropout, an array as
    mask, or some widths.
    """
    if config.drop_rate or _is_hooked(config):
        return True
    if config.position == "alibi" or 0 < config.window < T:
        return True
    widths = {config.head_dim, *(choice.shape(config)[1] for choice in config.choices("score"))}
    return not any(fuses(width, T, 1) for width in widths)


def explicit_attention(
    a: "Attention", q: Queries, k: Keys, v: Values, places: Places, *memories: mx.array
) -> Heads:
    """Return the sum dropout(mixing(logits(scale q k^T) + mask)) v, written out."""
    return weighted_sum(a.dropout(a.mix(q, k, places, *memories)), v)


def fastest_attention(
    a: "Attention", q: Queries, k: Keys, v: Values, places: Places, *memories: mx.array
) -> Heads:
    """Return the weighted sum by this machine's fastest kernel, or written out for dropout."""
    bias, mask = partial(a.bias, places), partial(a.mask, places)
    heads = None
    if not a.has_dropout:
        heads = attention_by_kernel(q, k, v, a.config.scale, bias, mask, a.training)
    return explicit_attention(a, q, k, v, places, *memories) if heads is None else heads


def project_values_first(a: "Attention", T_q: int, T_k: int) -> bool:
    """Return True if values are computed before the weighted sum of cached keys.

    With P_h the attention weights of head h, P_h (x W_value_h) = (P_h x) W_value_h.

    - Values first: H query heads folded into the rows of one product with x, then values of width
      D. It costs T_k C width + H T_q T_k D multiply-adds after the scores.
    - Values after: x is both the only key and the only value, so the fused multi-query kernel
      serves if C has one, and decoding computes no value of an old token. It costs
      H T_q T_k C + H T_q C D.

    On a GPU x is chosen if it has a fused kernel, elsewhere if the count is smaller; likewise keys
    in place of x. Weights that may not add up to 1, as after dropout, scale a bias: values first.
    """
    config = a.config
    if a.has_dropout or not a.maps.mixing.sums_to_one:
        return True
    H, C, D = config.n_heads, config.d_in, config.value_dim
    if a.maps.score.cache == "x" and config.position != "alibi":
        fused = fuses(C, T_q, H)
        if fused is not None:
            return not fused
    first = T_k * C * config.n_kv_heads * D + H * T_q * T_k * D
    after = H * T_q * T_k * C + H * T_q * C * D
    return first <= after


# The forward pass: of the standard form on one screen, then of any choices.


def standard_forward(
    a: "Attention", x: Inputs, cache: KVCache | None = None, _: Any = None
) -> Outputs:
    """Compute the book's multi-head attention (section 3.6): all that a standard layer runs.

        head_h = softmax(scale q_h k_h^T + mask) v_h        y = concat(heads) out_proj

    H query heads of width D read H_kv key and value heads; a test holds `general_forward` to the
    same bits.
    """
    c, positions = a.config, Places.of_text(x.shape[1])
    start = cache.offset if cache else 0  # position of the first token of x
    q = split_heads(a.W_query(x), c.n_heads)  # [B, T, C] -> [B, H, T, D]
    k = split_heads(a.W_key(x), c.n_kv_heads)  # [B, H_kv, T, D]: each serves H / H_kv query heads
    v = split_heads(a.W_value(x), c.n_kv_heads)  # [B, H_kv, T, D_v]
    if c.qk_norm:
        q, k = a.normalize(q), a.normalize(k)
    if c.position == "rope":  # before caching, so that no key is rotated twice
        q, k = rope(q, start), rope(k, start)
    if cache is not None:  # the keys and values of earlier tokens too: [B, H_kv, T_k, D]
        (k, v), positions = cache.extend((k, v), a.reads_in_order)
    # weights = softmax(scale q k^T + mask): [B, H, T, T_k] in float32, where -inf hides later keys
    # and ALiBi lowers far ones. Fused kernels add up `weights v` without ever storing the weights.
    heads = a.attend(a, q, k, v, positions)  # [B, H, T, D_v]
    return a.out_proj(merge_heads(heads))  # [B, T, H D_v] -> [B, T, d_out]


def general_forward(
    a: "Attention", x: Inputs, cache: KVCache | None = None, carry: Carry | None = None
) -> Outputs:
    """Compute the same steps for any choices of the maps and hooks.

    The cache holds key and value; only one of them if they are equal, and only the key before
    rotation if the value is computed from it; after them, what hooks and mixing remember.
    """
    positions, start = Places.of_text(x.shape[1]), cache.offset if cache else 0
    q, k = a.score(x, cache, carry)  # [B, H, T, K], [B, key_heads, T, K]
    if a.config.cross_layer == "reader":  # of the keys and values of an earlier layer
        if isinstance(cache, StateCache):
            cache.advance(x.shape[1])
        k, v, positions = (carry or Carry()).read()
        heads = a.attend(a, a.normalize_and_rotate(q, positions.query), k, v, positions)
        return a.output(heads, x)
    if isinstance(cache, StateCache):
        return a.output(_attend_by_state(a, x, q, k, cache, carry), x)
    if a.maps.caches_keys_only:
        entries = (k,)
    else:
        v, key = a.value(x, k, cache, carry), a.normalize_and_rotate(k, start)
        entries = (key,) if v is key else (key, v)
    memories = a.remembered(x)
    if cache is not None:
        cached, positions = cache.extend((*entries, *memories), a.reads_in_order)
        entries, memories = cached[: len(entries)], cached[len(entries) :]
    if a.config.cross_layer and carry is not None:
        carry.shared = (entries[0], entries[-1], positions)
    q = a.normalize_and_rotate(q, positions.query)
    if a.maps.caches_keys_only:
        heads = _attend_by_keys(a, q, entries[0], positions, *memories)
    else:
        heads = a.attend(a, q, entries[0], entries[-1], positions, *memories)
    return a.output(heads, x)  # [B, H, T, D] -> [B, T, d_out]


def _attend_by_state(
    a: "Attention", x: mx.array, q: Queries, k: Keys, cache: StateCache, carry: Carry | None
) -> Heads:
    """Attend by a state, in the mask's float32."""
    start, v = cache.offset, a.value(a.value_input(x, k), k, cache, carry)
    q, k = a.normalize_and_rotate(q, start), a.normalize_and_rotate(k, start)
    read = (array.astype(mx.float32) for array in (q, k, v, *a.remembered(x)))
    advance = cast(Callable[..., Any], a.maps.mixing.recurs)
    heads, *cache.buffers = advance(a, *read, cache.advance(x.shape[1]))
    return heads.astype(x.dtype)


def _attend_by_keys(
    a: "Attention", q: Queries, keys: Keys, positions: Places, *memories: mx.array
) -> Heads:
    """Attend to cached keys before rotation: values are computed from them when they are read.

    The value map reads the keys side by side; for merged scores they are x itself.
    """
    inputs, k = merge_heads(keys), a.normalize_and_rotate(keys, positions.first)
    after = a.maps.value.after
    if after is None or project_values_first(a, q.shape[2], k.shape[2]):
        return a.attend(a, q, k, a.value(inputs, k), positions, *memories)
    return after(a, a.attend(a, q, k, inputs[:, None], positions, *memories))


def _is_hooked(config: AttentionConfig) -> bool:
    """Tell whether a hook changes scores or weights."""
    return any(getattr(config, name) != MAPS[name] for name in ("logits", "mixing"))


class Attention(MapWeights):
    """One causal self-attention layer of any variant.

    Attributes:
        alibi_slopes: ALiBi's slope of every head, or none.
        attend: The weighted sum of values: `attend(self, q, k, v, positions, *memories)`.
        forward: `standard_forward` for the standard maps, `general_forward` for others.
        reads_in_order: Whether the cache must return its tokens in order of position.
    """

    def __init__(self, config: AttentionConfig):
        super().__init__(config)
        self.alibi_slopes = np.array(config.slopes() if config.position == "alibi" else ())
        hooked = _is_hooked(config)
        self.attend = explicit_attention if hooked else fastest_attention
        plain = config.short_conv == "none" and not (config.cross_layer or self.maps.position)
        standard = plain and all(getattr(config, name) == word for name, word in MAPS.items())
        self.forward = standard_forward if standard else general_forward
        self.reads_in_order = hooked or (
            self.maps.caches_keys_only and config.rotates and config.window > 0
        )
        self.normalize: Callable[..., mx.array] = unit_rms
        self.dropout = nn.Dropout(config.drop_rate)
        # A reader needs the layer before, which has the same choices of a user's and tries them.
        own = any(not choice.is_built_in for choice in self.maps.all)
        for trial in TRIALS if own and config.cross_layer != "reader" else ():
            trial(self)

    def like(self, config: AttentionConfig) -> "Attention":
        """Return a new layer of another configuration."""
        return Attention(config)

    def __call__(
        self, x: Inputs, cache: KVCache | None = None, carry: Carry | None = None
    ) -> Outputs:
        """Attend from each token of x to itself and to earlier ones, those in the cache included.

        Args:
            x: New tokens.
            cache: What earlier calls kept; it is extended.
            carry: Arrays that layers pass on in one forward pass of a model.
        """
        return self.forward(self, x, cache, carry)

    def remembered(self, x: Inputs) -> Kept:
        """Return the numbers of the tokens x that the hooks and the mixing read."""
        functions = (choice.remembers for choice in self.maps.with_memory)
        return tuple(remembers(self, x) for remembers in functions if remembers)

    def weights(self, x: Inputs) -> Float[mx.array, "B H T T"]:
        """Return the attention weights of every head: row i holds what token i looks at.

        Rows add up to 1 if the mixing is a softmax, and need not for others.
        """
        return self.mix(*self.queries_and_keys(x), Places.of_text(x.shape[1]), *self.remembered(x))

    def queries_and_keys(self, x: Inputs) -> tuple[Queries, Keys]:
        """Return queries and keys as the scores see them: normalized and rotated."""
        q, k = self.score(x)
        return self.normalize_and_rotate(q, 0), self.normalize_and_rotate(k, 0)

    def mix(self, q: Queries, k: Keys, places: Places, *memories: mx.array) -> Scores:
        """Return the attention weights mixing(logits(scale q k^T) + mask), through both hooks.

        They are computed in the mask's float32, or in float64 if the inputs are.
        """
        scores = self.logits(attention_scores(q, k, self.config.scale), *memories)
        masked = scores + self.mask(places)  # after the hooks, which must not see minus infinity
        more = self.read_by_mixing(q, k, masked, memories)
        return self.maps.mixing.apply(self, masked, *more).astype(q.dtype)

    def read_by_mixing(self, q: Queries, k: Keys, masked: Scores, memories: Kept) -> Kept:
        """Return the further inputs of the mixing, in the type of the masked scores.

        These are queries and keys if it reads keys, and the last memory if it remembers.
        """
        mixing = self.maps.mixing
        read = (q, k) if mixing.reads_keys else ()
        read += memories[-1:] if mixing.remembers else ()
        return tuple(array.astype(masked.dtype) for array in read)

    def logits(self, scores: Scores, *memories: mx.array) -> Scores:
        """Return the scores after every hook; `memories` belong to the hooks that have one."""
        memory = iter(memories)  # the mixing's memory, the last one, stays
        for hook in self.maps.logits:
            scores = hook.apply(self, scores, *([next(memory)] if hook.remembers else []))
        return scores

    @property
    def has_dropout(self) -> bool:
        """Return True if attention weights are dropped now."""
        return self.training and self.config.drop_rate > 0

    def normalize_and_rotate(self, y: Heads, offset: Position) -> Heads:
        """Return queries or keys over their root mean square and rotated, if asked for."""
        y = self.normalize(y) if self.config.qk_norm else y
        for own in self.maps.position:
            # Slots without a token come before position 0; they are masked.
            return own.apply(self, y, mx.maximum(offset + counted(y.shape[2]), 0))
        return rope(y, offset) if self.config.position == "rope" else y

    def bias(self, places: Places) -> mx.array | None:
        """Return the mask with window and ALiBi's bias in it; None if it is only causal."""
        window, T = self.config.window, places.keys.size
        if places.whole and not self.alibi_slopes.size and not 0 < window < T:
            return None
        if places.whole:
            slopes = np.repeat(self.alibi_slopes, self.maps.score.queries_per_head)
            return text_mask(T, window, tuple(slopes.tolist()))
        mask = causal_mask(places.queries, places.keys, window)
        if not self.alibi_slopes.size:
            return mask
        slopes = mx.array(self.alibi_slopes, mx.float32)
        slopes = mx.repeat(slopes, self.maps.score.queries_per_head)
        return alibi_bias(slopes, places.queries, places.keys) + mask

    def mask(self, places: Places) -> mx.array:
        """Return the mask as an array, for the explicit path."""
        bias = self.bias(places)
        return text_mask(places.keys.size) if bias is None else bias


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
        settings: dict[str, Any] = {"d_in": d_in, "d_out": d_out, "context_length": context_length}
        settings |= {"drop_rate": dropout, "qkv_bias": qkv_bias, "output": "none"}
        super().__init__(AttentionConfig(**(settings | choices)))


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
