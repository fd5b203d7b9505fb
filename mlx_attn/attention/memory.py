"""What a token leaves behind for later ones, and how they read it.

Most variants leave a key and a value. Merged attention leaves x alone, because x is its key and its
value is a function of x; slim attention leaves the key alone, because its value is a function of
the key. These are read in one of two exact forms, chosen by `values_first`.
"""

from typing import Any, Protocol, runtime_checkable

import mlx.core as mx
from jaxtyping import Float

from mlx_attn.attention import metal
from mlx_attn.attention.cache import Memory
from mlx_attn.attention.config import AttentionConfig
from mlx_attn.attention.heads import join_heads
from mlx_attn.attention.softmax import explicit_attention, fused_attention
from mlx_attn.attention.weighing import weighed
from mlx_attn.exponentials import powers_are_faster


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
    if metal.on_gpu() and config.score == "merged" and config.position != "alibi":
        return not metal.has_fused_kernel(C, T_q, H)
    first = T_k * C * config.n_kv_heads * D + H * T_q * T_k * D
    after = H * T_q * T_k * C + H * T_q * C * D
    return first <= after


def attend(layers: Any, q: mx.array, k: mx.array, v: mx.array) -> Float[mx.array, "B H T_q D"]:
    """The weighted sum by the fastest path that applies."""
    T_q, T_k, scale = q.shape[2], k.shape[2], layers.config.scale
    refused = layers.training and metal.refuses_gradient(q.shape[3], T_q)
    unfused = layers.drops or refused or not layers.fused
    if powers_are_faster() and T_q > 1 and not layers.drops:
        return weighed(q, k, v, layers.mask(T_q, T_k), scale)
    if unfused or k.shape[1] != v.shape[1]:
        return explicit_attention(q, k, v, layers.mask(T_q, T_k), scale, layers.dropout)
    return fused_attention(q, k, v, scale, layers.bias(T_q, T_k))
