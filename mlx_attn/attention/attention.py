"""Causal attention, top to bottom: positions, the weighted sum, cache layouts, `Attention`.

    score_h(i, j) = scale * x_i S_h x_j^T
    head_h        = softmax(score_h + causal mask) x V_h
    y             = sum_h head_h O_h

The maps S_h, V_h and O_h are choices (`mlx_attn.attention.maps`), made once in the constructor; the
forward pass is the same for all of them.

Facts about Metal in mlx 0.32.4 stand here too, read from its source and its Metal library; none of
them was run on a Mac by this project (docs/verified.md). As code, tests hold the project to them on
any machine.

- A fused kernel for more than 8 queries needs query and value heads of one width in `FULL_WIDTHS`.
- Up to 8 queries (decoding) another kernel serves `VECTOR_WIDTHS`, as long as queries times query
  heads per key head do not exceed 32. It has no gradient: asking for one raises.
- Under a gradient an array mask (ALiBi) takes the unfused path; "causal" stays fused.
- float64 and `mx.linalg` decompositions have no Metal kernel: they must name the CPU stream.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from jaxtyping import Float, Integer

from mlx_attn.attention.cache import AttentionCache, Kept, Places, Position, counted
from mlx_attn.attention.config import AttentionConfig
from mlx_attn.attention.layer import Carry, Keys, MapWeights, Queries, Values, merge_heads
from mlx_attn.cpu import attention_cpu
from mlx_attn.device import on_gpu, on_linux_cpu

ROPE_BASE = 10000.0
FULL_WIDTHS = frozenset({64, 72, 80, 96, 128, 192, 256})
VECTOR_WIDTHS = frozenset({64, 96, 128, 192, 256})
VECTOR_QUERIES, VECTOR_ROWS = 8, 32

Heads = Float[mx.array, "B H T_q D"]
Bias = Float[mx.array, "*heads T_q T_k"] | None


# Positions inside attention. Learned positions are added to the input by the model.


def rope(y: Float[mx.array, "B H T D"], offset: Position) -> Float[mx.array, "B H T D"]:
    """Rotate pairs of coordinates by an angle that grows with position (RoPE, arXiv:2104.09864).

    The first of the T tokens is at position `offset`; D is even.
    """
    return mx.fast.rope(y, y.shape[-1], traditional=False, base=ROPE_BASE, scale=1.0, offset=offset)


def unit_rms(y: Float[mx.array, "B H T D"]) -> Float[mx.array, "B H T D"]:
    """Queries or keys over their root mean square (QK-norm, without weights)."""
    return mx.fast.rms_norm(y, None, 1e-6)


def alibi_bias(
    slopes: Float[mx.array, " H"],
    queries: Integer[mx.array, " T_q"],
    keys: Integer[mx.array, " T_k"],
) -> Float[mx.array, "H T_q T_k"]:
    """-slope_h (i - j), for queries and keys at these positions."""
    return -slopes[:, None, None] * (queries[:, None] - keys)


def causal_mask(
    queries: Integer[mx.array, " T_q"], keys: Integer[mx.array, " T_k"], window: int = 0
) -> Float[mx.array, "T_q T_k"]:
    """0 where the query at i sees the key at j, minus infinity elsewhere.

    A query sees the keys that are not after it, with a window only the last `window` of these
    (sliding window attention, arXiv:2004.05150).
    """
    i, j = queries[:, None], keys
    return mx.where((j <= i) & (j > i - window) if window else j <= i, 0.0, -mx.inf)


@lru_cache(maxsize=4)
def text_mask(T: int, window: int = 0, slopes: tuple[float, ...] = ()) -> mx.array:
    """The mask of a whole text with ALiBi's bias: a constant of the graphs of all layers."""
    mask = causal_mask(counted(T), counted(T), window)
    bias = alibi_bias(mx.array(slopes), counted(T), counted(T)) if slopes else 0.0
    return mx.array(np.array(mask + bias))


# The weighted sum of values. Three paths give the same numbers.


def has_fused_kernel(width: int, T_q: int, heads_per_key: int) -> bool:
    """Whether scaled dot-product attention of equal query and value width runs fused on Metal."""
    if T_q <= VECTOR_QUERIES:
        return width in VECTOR_WIDTHS and T_q * heads_per_key <= VECTOR_ROWS
    return width in FULL_WIDTHS


def refuses_gradient(width: int, T_q: int) -> bool:
    """Whether Metal raises when the gradient of fused attention of this shape is asked for."""
    return T_q <= VECTOR_QUERIES and width in VECTOR_WIDTHS


def fused_attention(q: Queries, k: Keys, v: Values, scale: float, bias: Bias = None) -> Heads:
    """softmax(scale q k^T + causal mask + bias) v by MLX's own operation.

    Each head of k serves H / key_heads query heads; v has as many heads as k. `bias` is added to
    the scaled scores, with the mask; None is the causal mask alone.
    """
    causal = "causal" if q.shape[2] > 1 else None
    mask = causal if bias is None else bias.astype(q.dtype)
    return mx.fast.scaled_dot_product_attention(q, k, v, scale=scale, mask=mask)


def explicit_attention(
    a: "Attention", q: Queries, k: Keys, v: Values, places: Places, *kept: mx.array
) -> Heads:
    """The sum dropout(mixing(logits(scale q k^T) + mask)) v, written out."""
    return weighted_sum(a.dropout(a.mix(q, k, places, *kept)), v)


def attention_scores(q: Queries, k: Keys, scale: float) -> Float[mx.array, "B H T_q T_k"]:
    """The scores scale q k^T.

    Query heads that share a key head are folded into the rows of one matrix product, so a key is
    never repeated: this is also the row-folded form of merged attention, where x is the only key.
    """
    (B, H, T_q, K), (_, key_heads, T_k, _) = q.shape, k.shape
    rows = (q * scale if T_q > 1 else q).reshape(B, key_heads, H // key_heads * T_q, K)
    scores = (rows @ k.swapaxes(2, 3)).reshape(B, H, T_q, T_k)
    return scores if T_q > 1 else scores * scale  # of one token it is joined with the mask's sum


def weighted_sum(weights: Float[mx.array, "B H T_q T_k"], v: Values) -> Heads:
    """Weights v, with query heads that share a value head folded into rows."""
    (B, H, T_q, T_k), (_, value_heads, _, D) = weights.shape, v.shape
    rows = weights.reshape(B, value_heads, H // value_heads * T_q, T_k)
    return (rows @ v).reshape(B, H, T_q, D)


def fastest_attention(
    a: "Attention", q: Queries, k: Keys, v: Values, places: Places, *kept: mx.array
) -> Heads:
    """The weighted sum by the fastest path that applies.

    MLX's own operation is fused on Metal for the shapes above. The explicit path is needed for
    dropout of the weights, under a gradient that the fused kernel refuses, and where keys and
    values have different numbers of heads. On a Linux processor `attention_cpu` beats both, and for
    one query the explicit path, which has the fewest operations.
    """
    T_q, scale = q.shape[2], a.config.scale
    if on_linux_cpu() and T_q > 1 and not a.has_dropout:
        return attention_cpu(q, k, v, a.mask(places), scale)
    width, heads_per_key = q.shape[3], q.shape[1] // k.shape[1]
    refused = a.training and refuses_gradient(width, T_q)
    if a.has_dropout or refused or k.shape[1] != v.shape[1] or on_linux_cpu():
        return explicit_attention(a, q, k, v, places, *kept)
    # Where it is not fused, the operation would make the mask by name anew in every layer.
    by_name = T_q == 1 or has_fused_kernel(width, T_q, heads_per_key)
    return fused_attention(q, k, v, scale, a.bias(places) if by_name else a.mask(places))


# Cache layouts: what decoding keeps of a token, and how later tokens read it.


class KeyValueLayout:
    """Keeps key and value; one of them where they are the same."""

    def append(
        self, a: "Attention", x: mx.array, k: Keys, offset: Position, carry: Carry | None
    ) -> Kept:
        """What is kept of the tokens x with keys k, the first one at position `offset`."""
        v = a.value(x, k, carry)
        key = a.normalize_and_rotate(k, offset)
        return (key,) if v is key else (key, v)

    def attend(self, a: "Attention", q: Queries, kept: Kept, at: Places, *more: mx.array) -> Heads:
        """The heads of queries; `more` is what hooks keep."""
        q = a.normalize_and_rotate(q, at.query)
        return a.attend(a, q, kept[0], kept[-1], at, *more)


class InputLayout:
    """Keeps x alone, for merged scores: k = x, and values are computed when they are read."""

    def append(
        self, a: "Attention", x: mx.array, k: Keys, offset: Position, carry: Carry | None
    ) -> Kept:
        """The input, as one head."""
        return (x[:, None],)

    def attend(self, a: "Attention", q: Queries, kept: Kept, at: Places, *more: mx.array) -> Heads:
        """The heads, in the cheaper one of two exact forms."""
        x, k = merge_heads(kept[0]), a.normalize_and_rotate(kept[0], at.first)
        q = a.normalize_and_rotate(q, at.query)
        sizes, after = (q.shape[2], x.shape[1]), a.maps.value.after
        if after is None or project_values_first(a.config, *sizes, a.has_dropout):
            return a.attend(a, q, k, a.value(x, k), at, *more)
        return after(a, a.attend(a, q, k, x[:, None], at, *more))


class KeyLayout(InputLayout):
    """Keeps the key alone, before rotation: the concatenated keys are what the value reads."""

    def append(
        self, a: "Attention", x: mx.array, k: Keys, offset: Position, carry: Carry | None
    ) -> Kept:
        """The keys."""
        return (k,)


LAYOUTS = {"kv": KeyValueLayout(), "x": InputLayout(), "k": KeyLayout()}


def project_values_first(config: AttentionConfig, T_q: int, T_k: int, has_dropout: bool) -> bool:
    """Whether values are computed before the weighted sum of kept inputs, or after it.

    With P_h the attention weights of head h, P_h (x W_value_h) = (P_h x) W_value_h.

    - Values first: H query heads folded into the rows of one product with x, then values of width
      D. It costs T_k C width + H T_q T_k D multiply-adds after the scores.
    - Values after: x is both the only key and the only value, so the fused multi-query kernel
      serves where C has one, and decoding computes no value of an old token. It costs
      H T_q T_k C + H T_q C D.

    On a GPU the fused kernel decides for x; elsewhere the smaller count does, as for the keys in
    the place of x. Dropped weights, and those of other mixings, do not add up to 1, a bias would
    not come out the same, and values go first.
    """
    if has_dropout or config.mixing != "softmax":
        return True
    H, C, D = config.n_heads, config.d_in, config.value_dim
    if on_gpu() and config.score == "merged" and config.position != "alibi":
        return not has_fused_kernel(C, T_q, H)
    first = T_k * C * config.n_kv_heads * D + H * T_q * T_k * D
    after = H * T_q * T_k * C + H * T_q * C * D
    return first <= after


class Attention(MapWeights):
    """One causal self-attention layer of any variant.

    Attributes:
        attend: The weighted sum of values: `attend(self, q, k, v)`.
    """

    def __init__(self, config: AttentionConfig):
        super().__init__(config)
        own = {self.maps.score.cache, self.maps.value.cache} - {"kv"}
        self.layout = LAYOUTS[max(own, default="kv")]
        if learned := config.position == "alibi" and config.alibi_slopes == "learned":
            self.log_slopes = mx.log(mx.array(config.slopes()))
        hooked = learned or config.logits != "none" or config.mixing != "softmax"
        self.attend = explicit_attention if hooked else fastest_attention
        self.reads_in_order = hooked or (
            bool(own) and config.position == "rope" and bool(config.window)
        )
        self.normalize: Callable[..., mx.array] = unit_rms if config.qk_norm else lambda y: y
        self.rotate = rope if config.position == "rope" else lambda y, offset: y
        self.dropout = nn.Dropout(config.drop_rate)
        if not all(choice.is_built_in for choice in self.maps.all):
            from mlx_attn.attention import laws  # which tries layers

            laws.check_choices(self)

    def __call__(
        self,
        x: Float[mx.array, "B T C"],
        cache: AttentionCache | None = None,
        carry: Carry | None = None,
    ) -> Float[mx.array, "B T d_out"]:
        """Attend from each token of x to itself and to earlier ones, those in the cache included.

        Args:
            x: New tokens.
            cache: What earlier calls kept; it is extended.
            carry: What layers hand on in one forward pass of a model.
        """
        places = Places.of_text(x.shape[1])
        q, k = self.score(x)  # [B, H, T, K], [B, key_heads, T, K]
        more = self.remembered(x)
        kept = (*self.layout.append(self, x, k, cache.offset if cache else 0, carry), *more)
        if cache is not None:
            kept, places = cache.extend(kept, self.reads_in_order)
        own, more = kept[: len(kept) - len(more)], kept[len(kept) - len(more) :]
        heads = self.layout.attend(self, q, own, places, *more)
        return self.output(heads, x)  # [B, H, T, D] -> [B, T, d_out]

    def remembered(self, x: Float[mx.array, "B T C"]) -> Kept:
        """What hooks keep of the tokens x."""
        return tuple(hook.remembers(self, x) for hook in self.maps.logits if hook.remembers)

    def weights(self, x: Float[mx.array, "B T C"]) -> Float[mx.array, "B H T T"]:
        """Return the attention weights of every head: row i holds what token i looks at.

        Rows add up to 1 if the mixing is a softmax, and need not for others.
        """
        return self.mix(*self.queries_and_keys(x), Places.of_text(x.shape[1]), *self.remembered(x))

    def queries_and_keys(self, x: Float[mx.array, "B T C"]) -> tuple[Queries, Keys]:
        """Queries and keys as the scores see them: normalized and rotated."""
        q, k = self.score(x)
        return self.normalize_and_rotate(q, 0), self.normalize_and_rotate(k, 0)

    def mix(
        self, q: Queries, k: Keys, places: Places, *kept: mx.array
    ) -> Float[mx.array, "B H T_q T_k"]:
        """The attention weights mixing(logits(scale q k^T) + mask), through both hooks.

        They are computed in the mask's float32, or in float64 where the inputs are.
        """
        scores, more = attention_scores(q, k, self.config.scale), iter(kept)
        for hook in self.maps.logits:
            scores = hook.apply(self, scores, *([next(more)] if hook.remembers else []))
        masked = scores + self.mask(places)
        return self.maps.mixing.apply(self, masked).astype(q.dtype)

    @property
    def has_dropout(self) -> bool:
        """Whether attention weights are dropped now."""
        return self.training and self.config.drop_rate > 0

    def normalize_and_rotate(
        self, y: Float[mx.array, "B H T D"], offset: Position
    ) -> Float[mx.array, "B H T D"]:
        """Queries or keys over their root mean square (QK-norm) and rotated, where asked for."""
        return self.rotate(self.normalize(y), offset)

    def bias(self, places: Places) -> mx.array | None:
        """The mask with window and ALiBi's bias in it; None where it is the causal mask alone."""
        window, T, learned = self.config.window, places.keys.size, "log_slopes" in self
        fixed = self.config.slopes() if self.config.position == "alibi" else ()
        if places.whole and not fixed and not 0 < window < T:
            return None
        fixed = tuple(np.repeat(fixed, self.maps.score.queries_per_head).tolist())
        if places.whole and not learned:
            return text_mask(T, window, fixed)
        mask = causal_mask(places.queries, places.keys, window)
        trained = mx.exp(self.log_slopes) if learned else mx.array(self.config.slopes())
        slopes = mx.repeat(trained, self.maps.score.queries_per_head)
        return alibi_bias(slopes, places.queries, places.keys) + mask if fixed else mask

    def mask(self, places: Places) -> mx.array:
        """The mask as an array, for the explicit path."""
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
        settings: dict[str, Any] = {
            "d_in": d_in,
            "d_out": d_out,
            "context_length": context_length,
            "drop_rate": dropout,
            "qkv_bias": qkv_bias,
            "output": "none",
        }
        super().__init__(AttentionConfig(**(settings | choices)))


class MultiHeadAttention(CausalAttention):
    """Several heads and an output projection (the book's section 3.6).

    The other arguments are those of `CausalAttention`; d_out is the width of all heads together and
    must be a multiple of num_heads.
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
