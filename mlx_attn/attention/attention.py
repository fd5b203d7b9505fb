"""Which attention shapes have a fused Metal kernel, and which calls Metal refuses.

Facts about mlx 0.32.4, read from its source and its Metal library; none of them was run on a Mac
by this project (docs/verified.md). They live in code so that tests hold the project to them on any
machine, and so that the choice of a form by shape is written down in one place.

- A fused kernel for more than 8 queries needs query and value heads of one width in `FULL_WIDTHS`.
- Up to 8 queries (decoding) another kernel serves `VECTOR_WIDTHS`, as long as queries times query
  heads per key head do not exceed 32. It has no gradient: asking for one raises.
- Under a gradient an array mask (ALiBi) takes the unfused path; "causal" stays fused.
- float64 and `mx.linalg` decompositions have no Metal kernel: they must name the CPU stream.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import mlx.core as mx
import mlx.nn as nn
from jaxtyping import Float

from mlx_attn.attention.config import AttentionConfig
from mlx_attn.attention.maps import OUTPUTS, SCORES, Draw, join_heads, linear_draw, value_of
from mlx_attn.cpu import attention_cpu, on_linux_cpu, softmax

FULL_WIDTHS = frozenset({64, 72, 80, 96, 128, 192, 256})
VECTOR_WIDTHS = frozenset({64, 96, 128, 192, 256})
VECTOR_QUERIES = 8
VECTOR_ROWS = 32


def on_gpu() -> bool:
    """Whether arrays are computed on a GPU by default."""
    return mx.default_device().type == mx.DeviceType.gpu


def has_fused_kernel(width: int, T_q: int, heads_per_key: int) -> bool:
    """Whether scaled dot-product attention of equal query and value width runs fused on Metal."""
    if T_q <= VECTOR_QUERIES:
        return width in VECTOR_WIDTHS and T_q * heads_per_key <= VECTOR_ROWS
    return width in FULL_WIDTHS


def refuses_gradient(width: int, T_q: int) -> bool:
    """Whether Metal raises when the gradient of fused attention of this shape is asked for."""
    return T_q <= VECTOR_QUERIES and width in VECTOR_WIDTHS


ROPE_BASE = 10000.0

Rotation = Callable[[mx.array, int], mx.array]


def unrotated(y: mx.array, offset: int) -> mx.array:
    """The rotation of every position kind but RoPE: none."""
    return y


def rope(y: Float[mx.array, "B H T D"], offset: int) -> Float[mx.array, "B H T D"]:
    """Rotate pairs of coordinates by an angle that grows with position (RoPE, arXiv:2104.09864).

    Args:
        y: Queries or keys, D even.
        offset: Position of the first of the T tokens.
    """
    return mx.fast.rope(y, y.shape[-1], traditional=False, base=ROPE_BASE, scale=1.0, offset=offset)


def alibi_slopes(n_heads: int) -> list[float]:
    """One slope per head, a geometric series (ALiBi, arXiv:2108.12409, section 3).

    For a power of two H the series is 2^(-8/H), 2^(-16/H), ...; for other H the next smaller power
    of two gives its slopes, and every second slope of the next larger one the rest.
    """
    power = 2 ** math.floor(math.log2(n_heads))
    slopes = [2 ** (-8 * (i + 1) / power) for i in range(power)]
    between = [2 ** (-4 * (i + 1) / power) for i in range(0, 2 * power, 2)]
    return slopes + between[: n_heads - power]


def alibi_bias(slopes: Float[mx.array, " H"], T_q: int, T_k: int) -> Float[mx.array, "H T_q T_k"]:
    """-slope_h (i - j), with the last query at the last key."""
    query = mx.arange(T_k - T_q, T_k)[:, None]
    distance = query - mx.arange(T_k)[None, :]
    return -slopes[:, None, None] * distance


def causal_mask(T_q: int, T_k: int) -> Float[mx.array, "T_q T_k"]:
    """0 where key j is not after query i, minus infinity where it is; the last query sees all."""
    query = mx.arange(T_k - T_q, T_k)[:, None]
    return mx.where(mx.arange(T_k)[None, :] <= query, 0.0, -mx.inf)


Queries = Float[mx.array, "B H T_q K"]
Keys = Float[mx.array, "B key_heads T_k K"]
Values = Float[mx.array, "B value_heads T_k D"]
Bias = Float[mx.array, "H T_q T_k"] | None


def fused_attention(
    q: Queries, k: Keys, v: Values, scale: float, bias: Bias = None
) -> Float[mx.array, "B H T_q D"]:
    """softmax(scale q k^T + causal mask + bias) v by MLX's own operation.

    Args:
        q: Queries.
        k: Keys; each head serves H / key_heads query heads.
        v: Values, with as many heads as the keys.
        scale: Factor of the scores.
        bias: Added to the scores, the causal mask already in it; None is the causal mask alone.
    """
    causal = "causal" if q.shape[2] > 1 else None
    mask = causal if bias is None else bias.astype(q.dtype)
    return mx.fast.scaled_dot_product_attention(q, k, v, scale=scale, mask=mask)


def explicit_attention(
    q: Queries,
    k: Keys,
    v: Values,
    mask: mx.array,
    scale: float,
    dropout: Callable[[mx.array], mx.array],
) -> Float[mx.array, "B H T_q D"]:
    """dropout(softmax(scale q k^T + mask)) v, written out.

    `mask` is added to the scores and broadcast over the batch (and heads).
    """
    return weighted_sum(dropout(attention_weights(q, k, mask, scale)), v)


def attention_weights(
    q: Queries, k: Keys, mask: mx.array, scale: float
) -> Float[mx.array, "B H T_q T_k"]:
    """softmax(scale q k^T + mask), in the mask's float32, or in float64 where the inputs are.

    Query heads that share a key head are folded into the rows of one matrix product, so a key is
    never repeated: this is also the row-folded form of merged attention, where x is the only key.
    """
    B, H, T_q, _ = q.shape
    rows = (q * scale).reshape(B, k.shape[1], -1, q.shape[-1])
    scores = (rows @ k.swapaxes(2, 3)).reshape(B, H, T_q, -1)
    return softmax(scores + mask).astype(q.dtype)


def weighted_sum(
    weights: Float[mx.array, "B H T_q T_k"], v: Values
) -> Float[mx.array, "B H T_q D"]:
    """Weights v, with query heads that share a value head folded into rows."""
    B, H, T_q, T_k = weights.shape
    rows = weights.reshape(B, v.shape[1], -1, T_k)
    return (rows @ v).reshape(B, H, T_q, -1)


STEP = 256
"""Buffers grow by this many tokens at a time: growing by one copies everything every time."""

Memory = tuple[Float[mx.array, "_ _ _ _"], ...]


class AttentionCache:
    """The remembered arrays of one attention layer, [B, heads, T, width] each.

    `offset` is the number of tokens held, which is the position of the next one.
    """

    def __init__(self):
        self.offset = 0
        self._buffers: list[mx.array] = []

    def extend(self, arrays: Memory) -> Memory:
        """Append the arrays of new tokens; return those of all tokens so far."""
        if not self._buffers:
            self._buffers = [_empty(array, 0) for array in arrays]
        end = self.offset + arrays[0].shape[2]
        for i, array in enumerate(arrays):
            if end > self._buffers[i].shape[2]:
                self._buffers[i] = self._grown(i, array, end)
            self._buffers[i][:, :, self.offset : end] = array
        self.offset = end
        return tuple(buffer[:, :, :end] for buffer in self._buffers)

    def _grown(self, i: int, array: mx.array, end: int) -> mx.array:
        room = -(-end // STEP) * STEP - self.offset
        return mx.concatenate([self._buffers[i][:, :, : self.offset], _empty(array, room)], axis=2)

    def trim(self, length: int) -> None:
        """Forget all but the first `length` tokens."""
        self.offset = min(self.offset, length)

    @property
    def state(self) -> list[mx.array]:
        """The buffers themselves, for `mx.eval`."""
        return self._buffers

    @property
    def floats_per_token(self) -> int:
        """Numbers kept for each token of one sequence."""
        return sum(buffer.shape[1] * buffer.shape[3] for buffer in self._buffers)

    @property
    def bytes_per_token(self) -> int:
        """Bytes kept for each token of one sequence."""
        return sum(b.shape[1] * b.shape[3] * b.itemsize for b in self._buffers)


def cache_state(caches: Sequence[AttentionCache]) -> list[mx.array]:
    """The buffers of all layers, for `mx.eval`."""
    return [buffer for cache in caches for buffer in cache.state]


def _empty(like: mx.array, length: int) -> mx.array:
    B, heads, _, width = like.shape
    return mx.zeros((B, heads, length, width), like.dtype)


@runtime_checkable
class TokenMemory(Protocol):
    """One way to leave a memory and to read it."""

    def write(self, layers: Any, x: mx.array, k: mx.array, offset: int) -> Memory:
        """What to remember of the tokens x, whose keys are k and whose first position is offset."""
        ...

    def read(self, layers: Any, q: mx.array, memory: Memory) -> Float[mx.array, "B H T_q D"]:
        """The heads of the last T_q tokens, whose queries are q, over all remembered tokens."""
        ...

    def keys(self, layers: Any, memory: Memory) -> Float[mx.array, "B key_heads T_k K"]:
        """The keys in a memory."""
        ...


class KeyValueMemory:
    """Leaves key and value; one of them where they are the same."""

    def write(self, layers: Any, x: mx.array, k: mx.array, offset: int) -> Memory:
        v = layers.value(layers, x, k)
        key = layers.place(k, offset)
        return (key,) if v is key else (key, v)

    def read(self, layers: Any, q: mx.array, memory: Memory) -> Float[mx.array, "B H T_q D"]:
        return attend(layers, q, memory[0], memory[-1])

    def keys(self, layers: Any, memory: Memory) -> Float[mx.array, "B key_heads T_k K"]:
        return memory[0]


class InputMemory:
    """Leaves x alone, for merged scores: k = x, and the value is computed when it is read."""

    def write(self, layers: Any, x: mx.array, k: mx.array, offset: int) -> Memory:
        return (x[:, None],)

    def read(self, layers: Any, q: mx.array, memory: Memory) -> Float[mx.array, "B H T_q D"]:
        x, k = join_heads(memory[0]), self.keys(layers, memory)
        if values_first(layers.config, q.shape[2], x.shape[1], layers.drops):
            return attend(layers, q, k, layers.value(layers, x, k))
        return layers.value.after(layers, attend(layers, q, k, x[:, None]))

    def keys(self, layers: Any, memory: Memory) -> Float[mx.array, "B key_heads T_k K"]:
        return layers.place(memory[0], 0)


class KeyMemory(InputMemory):
    """Leaves the key alone, before rotation: the joined keys are what the value reads."""

    def write(self, layers: Any, x: mx.array, k: mx.array, offset: int) -> Memory:
        return (k,)


def memory_of(config: AttentionConfig) -> TokenMemory:
    """The memory of a configuration."""
    if config.value == "from_key":
        return KeyMemory()
    return InputMemory() if config.score == "merged" else KeyValueMemory()


def values_first(config: AttentionConfig, T_q: int, T_k: int, drops: bool) -> bool:
    """The rule that chooses between the two exact forms of reading a memory of x.

    With P_h the attention weights of head h, P_h (x W_value_h) = (P_h x) W_value_h.

    - Values first: H query heads folded into the rows of one product with x, then values of width
      D. It costs T_k C width + H T_q T_k D multiply-adds after the scores.
    - Values after: x is both the only key and the only value, so the fused multi-query kernel
      serves where C has one, and decoding computes no value of an old token. It costs
      H T_q T_k C + H T_q C D.

    On a GPU the fused kernel decides for x; elsewhere the smaller count does, as for joined keys in
    the place of x. When weights are dropped they no longer add up to 1, a bias would not come out
    the same, and values go first.
    """
    if drops:
        return True
    H, C, D = config.n_heads, config.d_in, config.value_dim
    if on_gpu() and config.score == "merged" and config.position != "alibi":
        return not has_fused_kernel(C, T_q, H)
    first = T_k * C * config.n_kv_heads * D + H * T_q * T_k * D
    after = H * T_q * T_k * C + H * T_q * C * D
    return first <= after


def attend(layers: Any, q: mx.array, k: mx.array, v: mx.array) -> Float[mx.array, "B H T_q D"]:
    """The weighted sum by the fastest path that applies."""
    T_q, T_k, scale = q.shape[2], k.shape[2], layers.config.scale
    refused = layers.training and refuses_gradient(q.shape[3], T_q)
    unfused = layers.drops or refused or not layers.fused
    if on_linux_cpu() and T_q > 1 and not layers.drops:
        return attention_cpu(q, k, v, layers.mask(T_q, T_k), scale)
    if unfused or k.shape[1] != v.shape[1]:
        return explicit_attention(q, k, v, layers.mask(T_q, T_k), scale, layers.dropout)
    return fused_attention(q, k, v, scale, layers.bias(T_q, T_k))


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

    Args:
        d_in: Width of the input.
        d_out: Width of all heads together and of the output.
        context_length: Longest sequence.
        dropout: Dropout of the attention weights, in [0, 1).
        num_heads: Number of heads; d_out must be a multiple of it.
        qkv_bias: Whether W_query, W_key and W_value have biases.
        **choices: Any other key of `AttentionConfig`, such as `output="none"`.
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
