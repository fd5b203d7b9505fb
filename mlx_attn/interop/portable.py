"""A GPT around any choices of attention, written for MLX and PyTorch alike, to be exported.

If no stock architecture can hold a model, its exported folder carries the functions here and the
source of the choices, once for each library. The first part is MLX's, and `shipped` has the same
names for PyTorch. The second part uses only functions that both libraries have, with positional
axes.
"""

from types import SimpleNamespace
from typing import Any

import mlx.core as xp
import mlx.nn as nn

MAPS: Any = None  # the model's choices; an exported file lists its own
KINDS: dict[str, Any] = {}  # the constructor of each kind of weight, from `shipped`

# For MLX.

ModuleList = list


class Module(nn.Module):
    """A layer whose computation is `forward`, with parts by name: `a.W_key` or `a["W_key"]`."""

    def __call__(self, *arguments):
        """Return the layer's output."""
        return self.forward(*arguments)  # pyright: ignore[reportOptionalCall]


def parameter(*shape):
    """Return a trained array."""
    return xp.zeros(shape)


def cast(y, like):
    """Convert y to the type of another array."""
    return y.astype(like.dtype)


def read_logits(x, embedding):
    """Return logits by the matrix of the token embedding."""
    return embedding.as_linear(x)


def remember(cache, layer, packed):
    """Add rows to the cache of a layer; return the rows of all tokens."""
    return cache[layer].update_and_fetch(packed, packed[..., :0])[0]


# For MLX and PyTorch.


def gelu(x):
    """Return GELU in the tanh form."""
    return 0.5 * x * (1 + xp.tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))


def softmax(s):
    """Return e^s / sum e^s along the last axis."""
    return xp.softmax(s, -1)


def split_heads(y, n_heads):
    """Cut the last axis into heads: [B, T, H D] -> [B, H, T, D]."""
    return y.reshape(y.shape[0], y.shape[1], n_heads, -1).swapaxes(1, 2)


def merge_heads(y):
    """Concatenate heads: [B, H, T, D] -> [B, T, H D]."""
    return y.swapaxes(1, 2).reshape(y.shape[0], y.shape[2], -1)


def product(y, z):
    """Multiply each head of y by its head of z, which a group of heads may share."""
    rows = y.reshape(z.shape[0], z.shape[1], -1, y.shape[-1])
    return (rows @ z).reshape(y.shape[0], y.shape[1], y.shape[2], -1)


def turned(y, c, offset):
    """Divide queries or keys by their root mean square and rotate them, if configured."""
    if c.qk_norm:
        y = y / ((y * y).mean(-1, keepdims=True) + 1e-6) ** 0.5
    return rotate(y, offset) if c.position == "rope" else y


def rotate(y, offset):
    """Apply RoPE: rotate pairs of coordinates by an angle that grows with position."""
    half = y.shape[-1] // 2
    speeds = 10000.0 ** (-xp.arange(half) / half)
    angles = (offset + xp.arange(y.shape[2]))[:, None] * speeds
    first, second = y[..., :half], y[..., half:]
    cos, sin = xp.cos(angles), xp.sin(angles)
    return cast(xp.concatenate([first * cos - second * sin, first * sin + second * cos], -1), y)


def mask(a, c, T_q, T_k):
    """Return 0, or ALiBi's bias, if query i sees key j, else minus infinity: [H, T_q, T_k]."""
    query, key = xp.arange(T_k - T_q, T_k)[:, None], xp.arange(T_k)[None, :]
    seen = (key <= query) & (key > query - (c.windows[a.layer] or T_k))
    bias = 0.0 * (query - key)[None]
    if c.position == "alibi":
        slopes = xp.exp(a.log_slopes) if c.alibi_slopes == "learned" else xp.asarray(c.slopes)
        slopes = (slopes[:, None] + xp.zeros((1, c.queries_per_head))).reshape(-1)
        bias = -slopes[:, None, None] * (query - key)
    return xp.where(seen, bias, -float("inf"))


class Attention(Module):
    """Causal attention; the configuration's `maps` list its weights."""

    def __init__(self, c, layer):
        super().__init__()
        self.c, self.layer, self.maps = c, layer, MAPS
        self.config = SimpleNamespace(**{**c.attention_keys, "window": c.windows[layer]})
        for name, (kind, *sizes) in c.maps.items():
            setattr(self, name, KINDS[kind](*sizes))

    def forward(self, x, carry):
        """Attend from each token to itself and all earlier tokens, also those in the cache."""
        a, c, hooks = self, self.c, MAPS.logits
        q, k = MAPS.score.apply(a, x)
        choices = [*hooks, MAPS.mixing]
        entries = [k] if MAPS.keys_only else [turned(k, c, carry.offset), a.value(x, k, carry)]
        memories = [choice.remembers(a, x) for choice in choices if choice.remembers]
        cached = extended([*entries, *memories], self.layer, carry)
        k, v, memories = cached[0], cached[len(entries) - 1], cached[len(entries) :]
        if MAPS.keys_only:  # the value map reads the joined keys
            v = a.value(merge_heads(k), k, carry)
            k = turned(k, c, 0)
        q = turned(q, c, carry.offset)
        s = product(q * c.scale, k.swapaxes(2, 3))
        for hook in hooks:
            s = hook.apply(a, s, memories.pop(0)) if hook.remembers else hook.apply(a, s)
        s = s + mask(a, c, s.shape[2], s.shape[3])
        read = [cast(y, s) for y in ([q, k] if MAPS.mixing.reads_keys else []) + memories]
        heads = product(cast(MAPS.mixing.apply(a, s, *read), v), v)
        return MAPS.output.apply(a, heads, x)

    def value(self, x, k, carry):
        """Return the values of x, whose keys are k."""
        return MAPS.value.apply(self, x, k, *([carry] if MAPS.value.carries else []))


def extended(entries, layer, carry):
    """Add entries to the cache, one row per token; return the entries of all tokens."""
    if carry.cache is None:
        return entries
    packed = xp.concatenate([merge_heads(y) for y in entries], -1)[:, None]
    packed, parts, start = remember(carry.cache, layer, packed)[:, 0], [], 0
    for _, heads, _, width in (y.shape for y in entries):
        parts.append(split_heads(packed[..., start : start + heads * width], heads))
        start += heads * width
    return parts


class FeedForward(Module):
    """activation(x W_1) W_2, separately for every token."""

    def __init__(self, c):
        super().__init__()
        self.is_gelu = c.activation == "gelu"
        first = nn.Linear(c.emb_dim, c.hidden_dim, bias=c.bias)
        second = nn.Linear(c.hidden_dim, c.emb_dim, bias=c.bias)
        self.layers = ModuleList([first, Module(), second])  # an activation in the middle

    def forward(self, x):
        """Apply both layers around GELU in the tanh form or squared ReLU."""
        x = self.layers[0](x)
        x = gelu(x) if self.is_gelu else (x * (x > 0)) ** 2
        return self.layers[2](x)


def norm(c):
    """Return the norm of the residual stream."""
    if c.norm == "rmsnorm":
        return nn.RMSNorm(c.emb_dim, eps=1e-6)
    return nn.LayerNorm(c.emb_dim, eps=1e-5, bias=c.bias)


class Block(Module):
    """x + att(norm1 x), then x + ff(norm2 x)."""

    def __init__(self, c, layer):
        super().__init__()
        self.att, self.ff = Attention(c, layer), FeedForward(c)
        self.norm1, self.norm2 = norm(c), norm(c)

    def forward(self, x, carry):
        """Return the residual stream after this block."""
        x = x + self.att(self.norm1(x), carry)
        return x + self.ff(self.norm2(x))


def build(model, c):
    """Give a model its layers, under the names of its weights."""
    model.tok_emb = nn.Embedding(c.vocab_size, c.emb_dim)
    if c.position == "learned":
        model.pos_emb = nn.Embedding(c.context_length, c.emb_dim)
    if c.token_shift:
        model.shift = parameter(c.emb_dim)
    model.trf_blocks = ModuleList([Block(c, layer) for layer in range(c.n_layers)])
    model.final_norm = norm(c)
    if not c.tied_head:
        model.out_head = nn.Linear(c.emb_dim, c.vocab_size, bias=False)


def compute_logits(model, c, tokens, cache, offset):
    """Return logits for `tokens` [B, T], which follow `offset` tokens in the cache."""
    carry = SimpleNamespace(tokens=tokens, cache=cache, offset=offset, first_values=None)
    x, end = model.tok_emb(tokens), offset + tokens.shape[1]
    if c.token_shift:  # the cache holds the embeddings after the entries of the last layer
        rows = extended([x[:, None]], c.n_layers, carry)[0][:, 0]
        x = x + model.shift * xp.concatenate([0.0 * x[:, :1], rows], 1)[:, -x.shape[1] - 1 : -1]
    if c.position == "learned":
        if end > c.context_length:
            raise ValueError(f"{end} tokens are more than this model's {c.context_length}")
        x = x + model.pos_emb(xp.arange(offset, end))
    for block in model.trf_blocks:
        x = block(x, carry)
    x = model.final_norm(x)
    return read_logits(x, model.tok_emb) if c.tied_head else model.out_head(x)
