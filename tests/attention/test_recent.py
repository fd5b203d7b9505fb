"""Variants from papers compute what an independent reference in NumPy computes, gradients too.

Causality and decoding of all variants are laws, which test_laws.py tries.
"""

from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from mlx_attn.arrays import named_arrays
from mlx_attn.attention.attention import Attention
from mlx_attn.attention.cache import make_cache
from mlx_attn.attention.catalog import VARIANTS
from mlx_attn.attention.config import AttentionConfig
from mlx_attn.attention.layer import Carry
from mlx_attn.cost import attention_cost
from tests.attention.conftest import Arrays, check_gradients, layer_of, numbers, text
from tests.attention.references import REFERENCES, delta_rule, gates_of, softmax_of

C, T, H = 16, 12, 4
FIRST_VALUES = np.random.default_rng(2).normal(size=(2, H, T, C // H))
NO_POSITION = {"position": "none"}
OWN = {f.stem[5:] for f in Path(__file__).parent.glob("forms/test_*.py")}
"""Forms that a file beside compares with a reference."""

CASES: dict[str, dict[str, Any]] = {
    **{
        name: {"position": "alibi", **row.settings}
        for name, row in VARIANTS.items()
        if row.group != "forms" and not row.kv_sharing and name.replace("-", "_") not in OWN
    },
    "two hooks": {"logits": "talking+self_mask", **NO_POSITION},
    "delta": {"mixing": "delta", **NO_POSITION},
    "normed": {"output": "normed", **NO_POSITION},
    "convolved": {"short_conv": "silu", **NO_POSITION},
    "linearly convolved": {**VARIANTS["gated-deltanet"].settings, "short_conv": "linear"},
}


def layer(case: str, **settings: Any) -> Attention:
    settings = {**CASES.get(case, NO_POSITION), **settings}
    settings.pop("global_every", None)
    return layer_of(**settings | ({"window": 3} if settings.get("window") else {}))


def run(module: Attention) -> mx.array:
    return module(text(), None, Carry(mx.array(FIRST_VALUES, mx.float32)))


def sigmoid(y: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-y))


def reference(c: AttentionConfig, w: Arrays) -> np.ndarray:
    """The layer's output, [B, T, C]."""
    x = np.array(text(), np.float64)
    return np.stack([output(c, w, x[i], heads_of(c, w, x[i], i)) for i in range(len(x))])


def heads_of(c: AttentionConfig, w: Arrays, x: np.ndarray, i: int) -> np.ndarray:
    """The weighted sums of values of text i, [H, T, D]."""
    q, k, v = queries_keys_values(c, w, x, i)
    if c.short_conv != "none":
        parts = zip((q, k, v), ("query", "key", "value"), strict=True)
        q, k, v = (convolved(y, w[f"conv_{part}"], c.short_conv) for y, part in parts)
    if "W_beta.weight" in w and c.mixing != "path":
        beta, log_alpha = gates_of(w, x)
        beta = 2 * beta if c.mixing == "signed_delta" else beta
        rows = zip(q, k, v, beta.T, log_alpha.T, strict=True)
        return np.stack([delta_rule(*head) for head in rows])
    s = c.scale * q @ np.repeat(k, len(q) // len(k), 0).swapaxes(1, 2)
    for hook in c.choices("logits"):
        s = REFERENCES["logits"][hook.name](w, x, s)
    distances = np.subtract.outer(np.arange(T), np.arange(T))
    if c.position == "alibi":
        fixed = 2.0 ** -np.array([2, 4, 6, 8])
        slopes = np.exp(w["log_slopes"]) if "log_slopes" in w else fixed
        slopes = np.repeat(slopes, len(q) // H)
        s = s - slopes[:, None, None] * distances
    seen = (distances >= 0) & (distances < (c.window or T))
    weigh = REFERENCES["mixing"].get(c.mixing, lambda w, x, s: softmax_of(s))
    return weigh(w, x, np.where(seen, s, -np.inf)) @ np.repeat(v, len(q) // len(v), 0)


def queries_keys_values(c: AttentionConfig, w: Arrays, x: np.ndarray, i: int) -> list[np.ndarray]:
    def split(y: np.ndarray, heads: int = H) -> np.ndarray:
        return y.reshape(T, heads, -1).swapaxes(0, 1)

    def through(name: str, y: np.ndarray = x, heads: int = H) -> np.ndarray:
        return split(y @ w[f"{name}.weight"].T, heads)

    if c.score == "latent":
        latent = x @ w["W_latent.weight"].T
        return [through("W_query"), through("W_up_key", latent), through("W_up_value", latent)]
    if c.score == "off":
        q = k = np.zeros((H, T, 1))
    elif c.score == "nonlinear_query":
        q, k = split(nonlinear(x, w)), through("W_key")
    else:
        q = through("W_query", heads=2 * H if c.score == "paired" else H)
        k = q if c.score == "shared" else through("W_key")
    v = through("W_value")
    if c.value == "residual":
        v = w["value_mix"][0] * FIRST_VALUES[i] + w["value_mix"][1] * v
    return [q, k, v]


def nonlinear(x: np.ndarray, w: Arrays) -> np.ndarray:
    """The query of a narrow network beside x."""
    y = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * w["norm_in.weight"]
    y = y @ w["W_down.weight"].T
    y = y / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (y + 0.044715 * y**3)))
    y = y @ w["W_up.weight"].T
    y = (y - y.mean(-1, keepdims=True)) / np.sqrt(y.var(-1, keepdims=True) + 1e-5)
    return (x + y * w["norm_out.weight"]) / 2


def convolved(y: np.ndarray, c: np.ndarray, kind: str) -> np.ndarray:
    """Convolve each column of y [H, T, D], one token and one earlier token at a time."""
    mixed = np.zeros_like(y)
    for t in range(T):
        for back in range(min(len(c), t + 1)):
            mixed[:, t] += c[back] * y[:, t - back]
    return mixed * sigmoid(mixed) if kind == "silu" else mixed


def output(c: AttentionConfig, w: Arrays, x: np.ndarray, heads: np.ndarray) -> np.ndarray:
    """The output of one text from its heads, [T, C]."""
    if c.output == "differential":
        heads = heads[::2] - sigmoid(x @ w["W_lambda.weight"].T).T[..., None] * heads[1::2]
    if c.output == "exclusive":
        v = (x @ w["W_value.weight"].T).reshape(T, H, -1).swapaxes(0, 1)
        heads = heads - (heads * v).sum(-1, keepdims=True) * v / (v**2).sum(-1, keepdims=True)
    if c.output == "head_gated":
        heads = heads * sigmoid(x @ w["W_gate.weight"].T).T[..., None]
    if c.output in ("normed", "normed_gated"):
        heads = heads / np.sqrt((heads**2).mean(-1, keepdims=True) + 1e-6) * w["head_gain"]
    y = heads.swapaxes(0, 1).reshape(T, -1)
    if c.output in ("gated", "normed_gated"):
        gate = x @ w["W_gate.weight"].T
        y = y * sigmoid(gate) * (gate if c.output == "normed_gated" else 1)
    return y @ w["out_proj.weight"].T + w["out_proj.bias"]


@pytest.mark.parametrize("case", CASES)
def test_outputs_and_the_gradient_of_every_weight_are_the_reference_s(case):
    module = layer(case)
    np.testing.assert_allclose(run(module), reference(module.config, numbers(module)), atol=3e-5)
    check_gradients(module, run, lambda w: reference(module.config, w))


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_cost_counts_parameters_and_cache(variant):
    if VARIANTS[variant].kv_sharing:
        return  # tests/model/test_layers.py
    module = layer_of(**VARIANTS[variant].maps, position="none")
    cache = make_cache(T, caches_tokens=module.config.caches_tokens)
    module(text(), cache, Carry())
    cost, trained = attention_cost(module.config), named_arrays(module.trainable_parameters())
    assert 4 * cost.cache_floats == cache.bytes_per_token
    assert cost.parameters == sum(array.size for array in trained.values())


@pytest.mark.parametrize("n_heads", [1, 2, 4, 8])
def test_slopes_of_a_range_do_not_depend_on_the_number_of_heads(n_heads):
    slopes = AttentionConfig(d_in=C, d_out=C, context_length=T, n_heads=n_heads).slopes()
    assert slopes[0] == 2**-2
    assert n_heads == 1 or slopes[-1] == 2**-8
