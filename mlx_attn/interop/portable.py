"""Every form of attention in the language that MLX and PyTorch share, to be shipped with a model.

An exported folder whose model no stock architecture holds carries those functions that it needs,
under a heading that says what `xp` is. So they use what `mlx.core` and `torch` have in common, with
positional axes, and apply every map as a layer, which may be quantized.
"""

from types import SimpleNamespace
from typing import Any

import mlx.core as xp
import mlx.nn as nn

ModuleList = list

CHOSEN: dict[str, Any] = {}  # the functions of the model's choices; a shipped file lists its own
KINDS: dict[str, Any] = {}  # what weights are made of; `shipped` has the table


class Module(nn.Module):
    """A layer whose computation is `forward`."""

    def __call__(self, *arguments):
        """The layer's output."""
        return self.forward(*arguments)  # pyright: ignore[reportOptionalCall]


def parameter(*shape):
    """A trained array."""
    return xp.zeros(shape)


def cast(y, like):
    """The numbers of y in the type of another array."""
    return y.astype(like.dtype)


def read_logits(x, embedding):
    """Logits by the matrix of the token embedding."""
    return embedding.as_linear(x)


def remember(cache, layer, packed):
    """Add rows to the cache of a layer; return those of all tokens."""
    return cache[layer].update_and_fetch(packed, packed[..., :0])[0]


def gelu(x):
    """GELU in the tanh form."""
    return 0.5 * x * (1 + xp.tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))


def split_heads(y, n_heads):
    """Cut the last axis into heads: [B, T, H D] -> [B, H, T, D]."""
    return y.reshape(y.shape[0], y.shape[1], n_heads, -1).swapaxes(1, 2)


def merge_heads(y):
    """Concatenate heads: [B, H, T, D] -> [B, T, H D]."""
    return y.swapaxes(1, 2).reshape(y.shape[0], y.shape[2], -1)


def product(y, z):
    """The product of each head of y with the head of z that it shares with others."""
    rows = y.reshape(z.shape[0], z.shape[1], -1, y.shape[-1])
    return (rows @ z).reshape(y.shape[0], y.shape[1], y.shape[2], -1)


def turned(y, c, offset):
    """Queries or keys over their root mean square and rotated, where the model asks for it."""
    if c.qk_norm:
        y = y / ((y * y).mean(-1, keepdims=True) + 1e-6) ** 0.5
    return rotate(y, offset) if c.position == "rope" else y


def rotate(y, offset):
    """RoPE: turn pairs of coordinates by an angle that grows with position."""
    half = y.shape[-1] // 2
    speeds = 10000.0 ** (-xp.arange(half) / half)
    angles = (offset + xp.arange(y.shape[2]))[:, None] * speeds
    first, second = y[..., :half], y[..., half:]
    cos, sin = xp.cos(angles), xp.sin(angles)
    return cast(xp.concatenate([first * cos - second * sin, first * sin + second * cos], -1), y)


def mask(a, c, T_q, T_k):
    """0, or ALiBi's bias, where query i sees key j, minus infinity elsewhere: [H, T_q, T_k]."""
    query, key = xp.arange(T_k - T_q, T_k)[:, None], xp.arange(T_k)[None, :]
    seen = (key <= query) & (key > query - (c.windows[a.layer] or T_k))
    bias = 0.0 * (query - key)[None]
    if c.position == "alibi":
        slopes = xp.exp(a.log_slopes) if c.alibi_slopes == "learned" else xp.asarray(c.slopes)
        slopes = (slopes[:, None] + xp.zeros((1, c.queries_per_head))).reshape(-1)
        bias = -slopes[:, None, None] * (query - key)
    return xp.where(seen, bias, -float("inf"))


# Queries [B, H, T, K] and keys [B, key_heads, T, K] of x.


def query_linear(a, c, x):
    """q_h = x W_query_h."""
    return split_heads(a.W_query(x), c.n_heads * c.queries_per_head)


def query_slice(a, c, x):
    """q_h = x[slice h]."""
    return split_heads(x, c.n_heads)


def query_merged(a, c, x):
    """q_h = x S_h."""
    return split_heads(a.S(x), c.n_heads)


def query_mixed(a, c, x):
    """q_h = (x W_query) * m_h."""
    return a.W_query(x)[:, None] * a.mixing[:, None]


def query_nonlinear(a, c, x):
    """q_h = (x + norm(gelu(norm(x) W_down) W_up))[slice h] / 2."""
    return split_heads((x + a.norm_out(a.W_up(gelu(a.W_down(a.norm_in(x)))))) / 2, c.n_heads)


def query_off(a, c, x):
    """q_h = 0."""
    return xp.concatenate([0.0 * x[:, None, :, :2]] * c.n_heads, 1)


def key_linear(a, c, x):
    """k_h = x W_key_h."""
    return split_heads(a.W_key(x), c.n_kv_heads)


def key_slice(a, c, x):
    """k_h = x[slice h]."""
    return split_heads(x, c.n_kv_heads)


def key_whole(a, c, x):
    """K = x."""
    return x[:, None]


def key_shared(a, c, x):
    """k_h = x W_query_h."""
    return split_heads(a.W_query(x), c.n_heads)


def key_wide(a, c, x):
    """K = x W_key, one for all heads."""
    return a.W_key(x)[:, None]


def key_latent(a, c, x):
    """k_h = c W_up_key_h, of the latents c."""
    return split_heads(a.W_up_key(x), c.n_heads)


def key_off(a, c, x):
    """K = 0."""
    return 0.0 * x[:, None, :, :2]


# Value maps: values [B, value_heads, T, D] of x, whose keys are k.


def value_linear(a, c, x, k, carry):
    """v_h = x W_value_h."""
    return split_heads(a.W_value(x), c.n_kv_heads)


def value_identity(a, c, x, k, carry):
    """v_h = x[slice h]."""
    return split_heads(x, c.n_kv_heads)


def value_whole(a, c, x, k, carry):
    """V = x: with a merged output the map is inside VO."""
    return x[:, None]


def value_key(a, c, x, k, carry):
    """v_h = k_h."""
    return k


def value_from_key(a, c, x, k, carry):
    """V = concat(k) W_value."""
    return split_heads(a.W_value(merge_heads(k)), c.n_kv_heads)


def value_latent(a, c, x, k, carry):
    """v_h = c W_up_value_h, of the latents c."""
    return split_heads(a.W_up_value(x), c.n_kv_heads)


def value_residual(a, c, x, k, carry):
    """v_h = l_1 v_h of the first layer + l_2 x W_value_h."""
    v = split_heads(a.W_value(x), c.n_kv_heads)
    carry.first_values = v if a.layer == 0 else carry.first_values
    return a.value_mix[0] * carry.first_values + a.value_mix[1] * v


def value_bank(a, c, x, k, carry):
    """v_h = table_h[token]."""
    return split_heads(a.value_table(carry.tokens), c.n_kv_heads)


def value_embedding(a, c, x, k, carry):
    """v_h = x W_value_h + g table_h[token]."""
    return split_heads(a.W_value(x) + a.value_gain * a.value_table(carry.tokens), c.n_kv_heads)


# Output maps: y [B, T, C] of the heads [B, H, T, D] and of x.


def output_linear(a, c, heads, x):
    """Y = concat(heads) out_proj."""
    return a.out_proj(merge_heads(heads))


def output_none(a, c, heads, x):
    """Y = g concat(heads)."""
    return a.residual_gain * merge_heads(heads)


def output_merged(a, c, heads, x):
    """Y = sum_h (softmax_h x) VO_h."""
    return a.VO(merge_heads(heads))


def output_gated(a, c, heads, x):
    """Y = (concat(heads) * sigmoid(x W_gate)) out_proj."""
    return a.out_proj(merge_heads(heads) * xp.sigmoid(a.W_gate(x)))


def output_head_gated(a, c, heads, x):
    """Y = concat(head_h * sigmoid(x W_gate)_h) out_proj."""
    return a.out_proj(merge_heads(heads * split_heads(xp.sigmoid(a.W_gate(x)), c.n_heads)))


def output_differential(a, c, heads, x):
    """Y = concat(head_2h - sigmoid(x W_lambda)_h head_2h+1) out_proj."""
    weight = split_heads(xp.sigmoid(a.W_lambda(x)), c.n_heads)
    return a.out_proj(merge_heads(heads[:, ::2] - weight * heads[:, 1::2]))


def output_exclusive(a, c, heads, x):
    """Y = concat(head_h - (head_h . v_h) v_h / |v_h|^2) out_proj."""
    v = CHOSEN["value"](a, c, x, heads, None)[:, :, None]
    y = heads.reshape(v.shape[0], v.shape[1], -1, *heads.shape[2:])
    y = y - (y * v).sum(-1, keepdims=True) * v / ((v * v).sum(-1, keepdims=True) + 1e-12)
    return a.out_proj(merge_heads(y.reshape(heads.shape)))


def logits_temperature(a, s, gates):
    """s_h = e^t_h score_h."""
    return xp.exp(a.log_temperature)[:, None, None] * s


def logits_talking(a, s, gates):
    """s_h = sum_g P_hg score_g."""
    return xp.einsum("hg,bgij->bhij", a.talk_logits, s)


def logits_self_mask(a, s, gates):
    """s_h(i, i) = -10^9."""
    T_q, T_k = s.shape[2], s.shape[3]
    own = xp.arange(T_k - T_q, T_k)[:, None] == xp.arange(T_k)[None, :]
    return xp.where(own, -1e9, s)


def logits_forget(a, s, gates):
    """s_h(i, j) = score_h(i, j) + sum_(j < l <= i) log sigmoid(x_l W_forget_h)."""
    total = xp.cumsum(gates[..., 0], -1)
    return s + total[:, :, -s.shape[2] :, None] - total[:, :, None, :]


def mixing_softmax(a, s):
    """w_h = softmax(s_h)."""
    return xp.softmax(s, -1)


def mixing_uniform(a, s):
    """w_h(i, j) = 1 / i."""
    seen = 1.0 * (s > -float("inf"))
    return seen / seen.sum(-1, keepdims=True)


def mixing_off_by_one(a, s):
    """w_h = e^s_h / (1 + sum e^s_h)."""
    return softmax_with(s, xp.zeros_like(s[..., :1]))


def mixing_sink(a, s):
    """w_h = e^s_h / (e^b_h + sum e^s_h)."""
    return softmax_with(s, a.sink[:, None, None] + xp.zeros_like(s[..., :1]))


def mixing_talking(a, s):
    """w_h = sum_g R_hg softmax(s_g)."""
    return xp.einsum("hg,bgij->bhij", a.talk_weights, xp.softmax(s, -1))


def softmax_with(s, extra):
    """Softmax with one more logit, the first, whose weight is dropped."""
    return xp.softmax(xp.concatenate([extra, s], -1), -1)[..., 1:]


def keep_kv(a, c, x, carry):
    """Key and value."""
    k = CHOSEN["key"](a, c, x)
    v = CHOSEN["value"](a, c, x, k, carry)
    return [turned(k, c, carry.offset), v]


def read_kv(a, c, kept, carry):
    """What was kept."""
    return kept[0], kept[1]


def keep_input(a, c, x, carry):
    """The input alone."""
    return [x[:, None]]


def keep_latent(a, c, x, carry):
    """The latent c = x W_latent alone."""
    return [a.W_latent(x)[:, None]]


def read_input(a, c, kept, carry):
    """Keys and values of what is kept."""
    x = kept[0][:, 0]
    k = CHOSEN["key"](a, c, x)
    return turned(k, c, 0), CHOSEN["value"](a, c, x, k, carry)


def log_gates(a, x):
    """Log sigmoid(x W_forget_h): [B, H, T, 1]."""
    z = a.W_forget(x)
    return -xp.logaddexp(0.0 * z, -z).swapaxes(1, 2)[..., None]


class Attention(Module):
    """Causal attention; the weights are those that the configuration's `maps` name."""

    def __init__(self, c, layer):
        super().__init__()
        self.c, self.layer = c, layer
        for name, (kind, *sizes) in c.maps.items():
            setattr(self, name, KINDS[kind](*sizes))

    def forward(self, x, carry):
        """Attend from each token to itself and to earlier ones, those in the cache included."""
        a, c = self, self.c
        kept = CHOSEN["keep"](a, c, x, carry)
        kept += [log_gates(a, x)] if "W_forget" in c.maps else []
        kept = extended(kept, self.layer, carry)
        k, v = CHOSEN["read"](a, c, kept, carry)
        q = turned(CHOSEN["query"](a, c, x), c, carry.offset)
        s = product(q * c.scale, k.swapaxes(2, 3))
        for change in CHOSEN["logits"]:
            s = change(a, s, kept[-1])
        s = s + mask(a, c, s.shape[2], s.shape[3])
        heads = product(cast(CHOSEN["mixing"](a, s), v), v)
        return CHOSEN["output"](a, c, heads, x)


def extended(kept, layer, carry):
    """What is kept of all tokens: one row a token in the cache, cut into its parts again."""
    if carry.cache is None:
        return kept
    packed = xp.concatenate([merge_heads(y) for y in kept], -1)[:, None]
    packed, parts, start = remember(carry.cache, layer, packed)[:, 0], [], 0
    for _, heads, _, width in (y.shape for y in kept):
        parts.append(split_heads(packed[..., start : start + heads * width], heads))
        start += heads * width
    return parts


class FeedForward(Module):
    """activation(x W_1) W_2, on every token alone."""

    def __init__(self, c):
        super().__init__()
        self.is_gelu = c.activation == "gelu"
        first = nn.Linear(c.emb_dim, c.hidden_dim, bias=c.bias)
        second = nn.Linear(c.hidden_dim, c.emb_dim, bias=c.bias)
        self.layers = ModuleList([first, Module(), second])  # the second has no weights

    def forward(self, x):
        """GELU in the tanh form, or the square of what is positive."""
        x = self.layers[0](x)
        x = gelu(x) if self.is_gelu else (x * (x > 0)) ** 2
        return self.layers[2](x)


def norm(c):
    """The norm of the residual stream."""
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
        """The residual stream after this block."""
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
    """Logits after each of `tokens` [B, T], which follow `offset` tokens that the cache holds."""
    carry = SimpleNamespace(tokens=tokens, cache=cache, offset=offset, first_values=None)
    x, end = model.tok_emb(tokens), offset + tokens.shape[1]
    if c.token_shift:  # embeddings are cached as what a layer after the last one keeps
        kept = extended([x[:, None]], c.n_layers, carry)[0][:, 0]
        x = x + model.shift * xp.concatenate([0.0 * x[:, :1], kept], 1)[:, -x.shape[1] - 1 : -1]
    if c.position == "learned":
        if end > c.context_length:
            raise ValueError(f"{end} tokens are more than this model's {c.context_length}")
        x = x + model.pos_emb(xp.arange(offset, end))
    for block in model.trf_blocks:
        x = block(x, carry)
    x = model.final_norm(x)
    return read_logits(x, model.tok_emb) if c.tied_head else model.out_head(x)
