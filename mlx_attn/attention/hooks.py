"""The two hooks between score and value: on the logits, and on the mixing that makes them weights.

    s_h = logits(scale * q_h k_h^T) + mask       w_h = mixing(s_h)       head_h = w_h v_h

Most layers have neither and pay nothing: the fused paths serve. Logits hooks compose, `a+b` applies
a first. `uniform` mixing is a reference arm: it shows the worth of the weights.
"""

import math

import mlx.core as mx
import mlx.nn as nn
from jaxtyping import Float

from mlx_attn.attention.layer import MapWeights, Scores, choice
from mlx_attn.machine.exponentials import softmax

choice("logits", "none", "s_h = score_h")(lambda a, s: s)


@choice("mixing", "softmax", "w_h = softmax(s_h)", sums_to_one=True, shift_invariant=True)
def softmax_weights(a: MapWeights, s: Scores) -> Scores:
    """Compute the standard weights: positive, with sum 1."""
    return softmax(s)


# Hooks on the logits: s_h before mask and softmax.


@choice(
    "logits",
    "temperature",
    "s_h = e^t_h score_h",
    score_factor=lambda a: mx.exp(a["log_temperature"]),
    shift_invariant=True,
    input_weights=(),
    source="the trained scale of query-key normalization, arXiv:2010.04245, one per head",
    weights={"log_temperature": lambda c: mx.zeros((c.n_maps,))},
)
def temperature(a: MapWeights, s: Scores) -> Scores:
    """Multiply each head's scores by a trained sharpness."""
    # The trained number is a logarithm, so the factor stays positive: [H, 1, 1] * [B, H, T_q, T_k].
    return mx.exp(a["log_temperature"])[:, None, None] * s


@choice(
    "logits",
    "talking",
    "s_h = sum_g P_hg score_g",
    shift_invariant=True,
    input_weights=(),
    source="talking-heads attention, arXiv:2003.02436",
    weights={"talk_logits": lambda c: mx.eye(c.n_maps)},
    multiply_adds=lambda c: c.n_maps**2 * c.context_length,
)
def talking_logits(a: MapWeights, s: Scores) -> Scores:
    """Replace each head's scores by a trained mixture of all heads' scores."""
    # The mixture starts as the identity, so training starts at the standard form.
    return mx.einsum("hg,bgij->bhij", a["talk_logits"], s)


@choice(
    "logits",
    "self_mask",
    "s_h(i, i) = -10^9",
    shift_invariant=True,
    input_weights=(),
    source="Reformer, arXiv:2001.04451, appendix A",
)
def self_mask(a: MapWeights, s: Scores) -> Scores:
    """Keep tokens from attending to themselves, except the first, which sees nothing else."""
    T_q, T_k = s.shape[2:]
    # The queries are the last T_q of the T_k tokens: [T_q, 1].
    query = mx.arange(T_k - T_q, T_k)[:, None]
    # Finite, unlike the mask: the first token's row would otherwise be all minus infinity, and NaN.
    return mx.where(mx.arange(T_k)[None, :] == query, -1e9, s)


@choice(
    "logits",
    "forget",
    "s_h(i, j) = score_h(i, j) + sum_(j < l <= i) log sigmoid(x_l W_forget_h)",
    shift_invariant=True,
    source="forgetting transformer, arXiv:2503.02130",
    weights={"W_forget": lambda c: nn.Linear(c.d_in, c.n_maps, bias=True)},
    # [B, T, H] -> [B, H, T, 1]
    remembers=lambda a, x: nn.log_sigmoid(a["W_forget"](x)).swapaxes(1, 2)[..., None],
)
def forget(a: MapWeights, s: Scores, log_gates: Float[mx.array, "B H T_k 1"]) -> Scores:
    """Forget: a gate for each token and head lowers the scores of everything before it."""
    total = mx.cumsum(log_gates[..., 0], axis=-1)  # [B, H, T_k]
    # [B, H, T_q, 1] - [B, H, 1, T_k]: cumulative sums give all sums over j < l <= i at once.
    return s + total[:, :, -s.shape[2] :, None] - total[:, :, None, :]


# Mixing: from logits, -inf where a key comes later, to attention weights.


@choice(
    "mixing",
    "uniform",
    "w_h(i, j) = 1 / i",
    sums_to_one=True,
    shift_invariant=True,
    source="a reference arm",
)
def uniform(a: MapWeights, s: Scores) -> Scores:
    """Average the visible tokens uniformly."""
    seen = mx.where(s > -mx.inf, 1.0, 0.0)
    return seen / seen.sum(axis=-1, keepdims=True)


@choice(
    "mixing",
    "off_by_one",
    "w_h = e^s_h / (1 + sum e^s_h)",
    source="Miller, Attention is off by one, 2023",
)
def off_by_one(a: MapWeights, s: Scores) -> Scores:
    """Add 1 to the denominator, so that a head may attend to nothing."""
    return _softmax_with(s, mx.array(0.0))


@choice(
    "mixing",
    "sink",
    "w_h = e^s_h / (e^b_h + sum e^s_h)",
    source="learned sinks, gpt-oss, 2025",
    weights={"sink": lambda c: mx.zeros((c.n_maps,))},
)
def sink(a: MapWeights, s: Scores) -> Scores:
    """Add a trained logit per head that attends to nothing."""
    return _softmax_with(s, a["sink"][:, None, None])


@choice(
    "mixing",
    "sigmoid",
    "w_h = sigmoid(s_h + b_h)",
    source="sigmoid attention, arXiv:2409.04431",
    weights={"weight_bias": lambda c: mx.full((c.n_maps,), -math.log(c.context_length))},
)
def sigmoid_weights(a: MapWeights, s: Scores) -> Scores:
    """Weigh each key by itself; with the initial bias, n equal keys weigh about as much as one."""
    return mx.sigmoid(s + a["weight_bias"][:, None, None])


@choice(
    "mixing",
    "softpick",
    "w_h = relu(e^s_h - 1) / sum |e^s_h - 1|",
    source="softpick, arXiv:2504.20966",
)
def softpick(a: MapWeights, s: Scores) -> Scores:
    """Give scores below 0 no weight, so that a head may attend to nothing without a sink."""
    # Both sides of the fraction times e^-largest: no exponential overflows.
    largest = mx.stop_gradient(mx.clip(mx.max(s, axis=-1, keepdims=True), 0.0, None))
    # A hidden key has e^s - 1 = -1, which must not count either.
    seen = mx.where(s > -mx.inf, 1.0, 0.0)
    differences = (mx.exp(s - largest) - mx.exp(-largest)) * seen
    return mx.clip(differences, 0.0, None) / (mx.abs(differences).sum(-1, keepdims=True) + 1e-6)


def _softmax_with(s: Scores, extra: mx.array) -> Scores:
    """Compute a softmax with one more logit, and drop its weight."""
    # [B, H, T_q, 1]; the shift cancels, so it needs no gradient.
    largest = mx.stop_gradient(mx.maximum(mx.max(s, axis=-1, keepdims=True), extra))
    powers = mx.exp(s - largest)
    return powers / (mx.exp(extra - largest) + powers.sum(axis=-1, keepdims=True))


@choice(
    "mixing",
    "talking",
    "w_h = sum_g R_hg softmax(s_g)",
    shift_invariant=True,
    source="talking-heads attention, arXiv:2003.02436",
    weights={"talk_weights": lambda c: mx.eye(c.n_maps)},
    multiply_adds=lambda c: c.n_maps**2 * c.context_length,
)
def talking_weights(a: MapWeights, s: Scores) -> Scores:
    """Replace each head's weights by a trained mixture of all heads' weights."""
    return mx.einsum("hg,bgij->bhij", a["talk_weights"], softmax(s))
