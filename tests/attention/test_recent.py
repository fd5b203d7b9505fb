"""Variants from papers compute what an independent reference in NumPy computes, gradients too."""

from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from scipy.linalg import hadamard

from mlx_attn.arrays import named_arrays
from mlx_attn.attention.analysis import attention_cost
from mlx_attn.attention.attention import Attention
from mlx_attn.attention.cache import Places, make_cache
from mlx_attn.attention.config import VARIANTS, AttentionConfig, Variant, choices_of, find_variant
from mlx_attn.attention.layer import Carry
from mlx_attn.attention.references import REFERENCES

C, T, H, D, V = 16, 9, 4, 4, 11
SCALE, WINDOW = D**-0.5, 3
# test_convolution.py has the reference of convolutions.
RECENT = [
    name
    for name, row in VARIANTS.items()
    if row.group != "forms" and not row.short_conv and not row.kv_sharing
]
Arrays = dict[str, np.ndarray]


def layer(variant: str, **choices: Any) -> Attention:
    sizes = {"d_in": C, "d_out": C, "context_length": T, "n_heads": H, "vocab_size": V}
    window = {"window": WINDOW} if VARIANTS[variant].window else {}
    row = VARIANTS[variant]
    settings = {"position": "alibi", **row.maps, **window, **choices, **row.needs}
    module = Attention(AttentionConfig(**sizes, **settings))
    drawn = np.random.default_rng(7)
    arrays = named_arrays(module.trainable_parameters()).items()
    module.load_weights(
        [(name, mx.array(drawn.normal(size=a.shape) * 0.4, mx.float32)) for name, a in arrays],
        strict=False,
    )
    module.eval()
    return module


def inputs() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Tokens, their vectors, and the values of a first layer."""
    drawn = np.random.default_rng(1)
    first = drawn.normal(size=(2, H, T, D))
    return drawn.integers(0, V, (2, T)), drawn.normal(size=(2, T, C)), first


def run(module: Attention) -> mx.array:
    tokens, x, first = inputs()
    carry = Carry(mx.array(tokens), mx.array(first, mx.float32))
    return module(mx.array(x, mx.float32), None, carry)


def sigmoid(y: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-y))


def nonlinear(x: np.ndarray, w: Arrays) -> np.ndarray:
    """The query of a narrow network beside x."""
    y = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * w["norm_in.weight"]
    y = y @ w["W_down.weight"].T
    y = y / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (y + 0.044715 * y**3)))
    y = y @ w["W_up.weight"].T
    y = (y - y.mean(-1, keepdims=True)) / np.sqrt(y.var(-1, keepdims=True) + 1e-5)
    return (x + y * w["norm_out.weight"]) / 2


def split(y: np.ndarray, heads: int = H) -> np.ndarray:
    return y.reshape(2, T, heads, -1).transpose(0, 2, 1, 3)


def heads_of(variant: str, w: Arrays) -> np.ndarray:
    """The weighted sums of values, from the weights by name."""
    tokens, x, first = inputs()

    def through(name: str) -> np.ndarray:
        return x @ w[f"{name}.weight"].T

    if variant == "mla":
        latent = through("W_latent")
        q, k = split(through("W_query")), split(latent @ w["W_up_key.weight"].T)
        v = split(latent @ w["W_up_value.weight"].T)
    elif variant in ("scores-off", "attention-off"):
        q = k = np.zeros((2, H, T, 1))
        v = split(through("W_value"))
    elif variant == "shared-self-mask":
        q = k = split(through("W_query"))
        v = split(through("W_value"))
    else:
        q = nonlinear(x, w) if variant == "nonlinear-query" else through("W_query")
        q = split(q, 2 * H if variant == "differential" else H)
        k = split(through("W_key"))
        table = split(w["value_table.weight"][tokens]) if "value_table.weight" in w else 0.0
        v = table if variant == "bank-of-values" else split(through("W_value"))
        v = v + w["value_gain"] * table if variant == "value-embedding" else v
    if variant == "value-residual":
        v = w["value_mix"][0] * first + w["value_mix"][1] * v
    if choices_of("mixing")[VARIANTS[variant].mixing].reads_keys:
        return weights_by_reference(VARIANTS[variant], w, q, k) @ v
    group = q.shape[1] // H
    k, v = np.repeat(k, group, 1), np.repeat(v, group, 1)
    return weights_of(variant, w, q, k) @ v


def weights_by_reference(row: Variant, w: Arrays, q: np.ndarray, k: np.ndarray) -> np.ndarray:
    """The weights of a mixing that reads queries and keys, one text after the other."""
    s = SCALE * np.einsum("bhid,bhjd->bhij", q, k)
    if not row.position:  # the layer has ALiBi
        slopes = 2.0 ** -np.array([2, 4, 6, 8])
        s = s - slopes[:, None, None] * np.subtract.outer(np.arange(T), np.arange(T))
    s = np.where(np.tri(T) == 1, s, -np.inf)
    texts = zip(inputs()[1], s, strict=True)
    return np.stack([REFERENCES["mixing"][row.mixing](w, x, masked) for x, masked in texts])


def logits_of(variant: str, w: Arrays, q: np.ndarray, k: np.ndarray) -> np.ndarray:
    x = inputs()[1]
    s = SCALE * np.einsum("bhid,bhjd->bhij", q, k)
    if variant == "temperature":
        s = np.exp(w["log_temperature"])[:, None, None] * s
    if variant == "talking-heads":
        s = np.einsum("hg,bgij->bhij", w["talk_logits"], s)
    if variant == "shared-self-mask":
        s = np.where(np.eye(T) == 1, -1e9, s)
    if variant == "forgetting":
        log_gates = np.log(sigmoid(x @ w["W_forget.weight"].T + w["W_forget.bias"]))
        for a in range(T):
            for b in range(a):
                s[:, :, a, b] += log_gates[:, b + 1 : a + 1].sum(1)
    return s


def weights_of(variant: str, w: Arrays, q: np.ndarray, k: np.ndarray) -> np.ndarray:
    s = logits_of(variant, w, q, k)
    i, j = np.arange(T)[:, None], np.arange(T)[None, :]
    slopes = np.repeat(2.0 ** -np.array([2, 4, 6, 8]), q.shape[1] // H)
    s = np.where(j <= i, s - slopes[:, None, None] * (i - j), -np.inf)
    if VARIANTS[variant].window:  # of a layer that has one
        s = np.where(i - j < WINDOW, s, -np.inf)
    if variant == "attention-off":
        s = np.where(j <= i, 0.0, -np.inf)
    powers = np.exp(s - s.max(-1, keepdims=True))
    total = powers.sum(-1, keepdims=True)
    if variant in ("sink", "off-by-one"):
        sink = w["sink"][:, None, None] if variant == "sink" else 0.0
        total = total + np.exp(sink - s.max(-1, keepdims=True))
    weights = powers / total
    if variant == "sigmoid":
        weights = sigmoid(s + w["weight_bias"][:, None, None])
    if variant == "softpick":
        differences = np.where(s > -np.inf, np.exp(s) - 1, 0)
        smallest = 1e-6 * np.exp(np.maximum(s.max(-1, keepdims=True), 0))
        total = np.abs(differences).sum(-1, keepdims=True) + smallest
        weights = np.maximum(differences, 0) / total
    if variant == "talking-heads":
        weights = np.einsum("hg,bgij->bhij", w["talk_weights"], weights)
    return weights


def reference(variant: str, w: Arrays) -> np.ndarray:
    """The layer's output."""
    x, heads = inputs()[1], heads_of(variant, w)
    if variant == "differential":
        gate = sigmoid(x @ w["W_lambda.weight"].T).transpose(0, 2, 1)[..., None]
        heads = heads[:, ::2] - gate * heads[:, 1::2]
    if variant == "exclusive":
        v = split(x @ w["W_value.weight"].T)
        heads = heads - (heads * v).sum(-1, keepdims=True) * v / (v**2).sum(-1, keepdims=True)
    if variant == "head-gated":
        heads = heads * sigmoid(x @ w["W_gate.weight"].T).transpose(0, 2, 1)[..., None]
    y = heads.transpose(0, 2, 1, 3).reshape(2, T, -1)
    if variant == "gated":
        y = y * sigmoid(x @ w["W_gate.weight"].T)
    if variant == "hadamard":
        return w["out_scale"] * (y @ hadamard(C) / C**0.5) + w["out_shift"]
    if variant == "orthogonal":
        return w["out_scale"] * (y @ w["fixed.matrix"]) + w["out_shift"]
    return y @ w["out_proj.weight"].T + w["out_proj.bias"]


def numbers(module: Attention) -> Arrays:
    return {name: np.array(a).astype(np.float64) for name, a in named_arrays(module).items()}


@pytest.mark.parametrize("variant", RECENT)
def test_the_output_is_that_of_the_reference(variant):
    module = layer(variant)
    assert np.abs(np.array(run(module)) - reference(variant, numbers(module))).max() < 1e-5


@pytest.mark.parametrize("variant", RECENT)
def test_the_gradient_is_that_of_the_reference(variant):
    """Along a random direction of all trained weights; the reference by central differences."""
    module = layer(variant)
    drawn = np.random.default_rng(3)
    R = drawn.normal(size=(2, T, C))

    def loss(parameters: dict) -> mx.array:
        module.update(parameters)
        return (run(module) * mx.array(R, mx.float32)).sum()

    gradients = named_arrays(mx.grad(loss)(module.trainable_parameters()))
    exact = numbers(module)
    direction = {name: drawn.normal(size=array.shape) for name, array in gradients.items()}
    size = np.sqrt(sum((d**2).sum() for d in direction.values()))

    def moved(step: float) -> float:
        there = {n: a + step * direction.get(n, 0.0) / size for n, a in exact.items()}
        return float((reference(variant, there) * R).sum())

    expected = (moved(1e-5) - moved(-1e-5)) / 2e-5
    found = sum((np.array(g) * direction[n]).sum() for n, g in gradients.items()) / size
    largest = max(np.abs(np.array(g)).max() for g in gradients.values())
    assert abs(found - expected) < 1e-5 * max(1.0, largest)


@pytest.mark.parametrize("position", ["alibi", "none"])
@pytest.mark.parametrize("variant", RECENT)
def test_cached_decoding_is_the_full_forward_pass(variant, position):
    module = layer(variant, position=position)
    cache = make_cache(9, module.config.window)
    tokens, x, first = inputs()
    parts = []
    for a, b in ((0, 3), (3, 4), (4, 8), (8, 9)):
        carry = Carry(mx.array(tokens[:, a:b]), mx.array(first[:, :, a:b], mx.float32))
        parts.append(module(mx.array(x[:, a:b], mx.float32), cache, carry))
    assert mx.allclose(mx.concatenate(parts, axis=1), run(module), atol=1e-5)


@pytest.mark.parametrize("variant", RECENT)
def test_a_later_token_never_changes_an_earlier_output(variant):
    module = layer(variant)
    tokens, x, first = inputs()
    x[:, 5:], first[:, :, 5:], tokens[:, 5:] = 1.0, 1.0, 0
    changed = module(
        mx.array(x, mx.float32), None, Carry(mx.array(tokens), mx.array(first, mx.float32))
    )
    assert mx.allclose(changed[:, :5], run(module)[:, :5], atol=1e-6)


@pytest.mark.parametrize("variant", RECENT)
def test_the_cost_counts_parameters_and_cache(variant):
    module = layer(variant)
    cache = make_cache(4, caches_tokens=module.config.caches_tokens)
    tokens, x, _ = inputs()
    module(mx.array(x[:, :4], mx.float32), cache, Carry(mx.array(tokens[:, :4])))
    cost = attention_cost(module.config)
    trained = named_arrays(module.trainable_parameters()).values()
    assert cost.cache_floats == cache.floats_per_token
    assert cost.parameters == sum(array.size for array in trained)


def test_keyless_attention_is_key_as_value():
    """Values as keys, q = x W_query and k = v = x W_value (arXiv:2606.21848), is one function."""
    module, x = layer("key-as-value", position="none"), inputs()[1]
    w = numbers(module)
    q, v = split(x @ w["W_query.weight"].T), split(x @ w["W_key.weight"].T)  # its W_value
    s = SCALE * np.einsum("bhid,bhjd->bhij", q, v)
    s = np.where(np.tril(np.ones((T, T))) == 1, s, -np.inf)
    powers = np.exp(s - s.max(-1, keepdims=True))
    heads = powers / powers.sum(-1, keepdims=True) @ v
    y = heads.transpose(0, 2, 1, 3).reshape(2, T, C) @ w["out_proj.weight"].T
    assert np.abs(np.array(run(module)) - y - w["out_proj.bias"]).max() < 1e-5
    assert find_variant("keyless") is VARIANTS["key-as-value"]


def test_the_latent_alone_is_cached():
    module, cache = layer("mla", latent_dim=6), make_cache(4)
    run_cached = module(mx.ones((1, 4, C)), cache)
    assert cache.floats_per_token == 6
    assert run_cached.shape == (1, 4, C)


def test_mla_of_full_rank_is_the_standard_form():
    standard, mla = layer("standard"), layer("mla", latent_dim=C)
    weights = {
        "W_query.weight": standard.W_query.weight,
        "W_latent.weight": mx.eye(C),
        "W_up_key.weight": standard.W_key.weight,
        "W_up_value.weight": standard.W_value.weight,
        "out_proj.weight": standard.out_proj.weight,
        "out_proj.bias": standard.out_proj.bias,
    }
    mla.load_weights(list(weights.items()))
    assert mx.allclose(run(mla), run(standard), atol=1e-5)


@pytest.mark.parametrize("n_heads", [1, 2, 4, 8])
def test_slopes_of_a_range_do_not_depend_on_the_number_of_heads(n_heads):
    config = AttentionConfig(d_in=C, d_out=C, context_length=T, n_heads=n_heads, position="alibi")
    slopes = config.slopes()
    assert slopes[0] == 2**-2
    assert n_heads == 1 or slopes[-1] == 2**-8
    if n_heads == 4:
        assert slopes == (2**-2, 2**-4, 2**-6, 2**-8)


def test_learned_slopes_have_a_gradient():
    module = layer("standard", alibi_slopes="learned")
    module.log_slopes = mx.log(mx.array(module.config.slopes()))

    def loss(parameters: dict) -> mx.array:
        module.update(parameters)
        return mx.square(run(module)).sum()

    gradient = mx.grad(loss)(module.trainable_parameters())["log_slopes"]
    assert float(mx.abs(gradient).min()) > 0


def test_hooks_on_the_logits_compose_from_left_to_right():
    module = layer("standard", logits="temperature+self_mask")
    scores = mx.ones((1, H, 2, 2))
    q = k = mx.ones((1, H, 2, D))
    module.log_temperature = mx.zeros((H,))
    weights = module.mix(q, k, Places.of_text(q.shape[2]))
    assert weights.shape == scores.shape
    assert float(weights[0, 0, 1, 1]) == 0.0
    assert float(weights[0, 0, 0, 0]) == 1.0


def test_sigmoid_weights_are_those_of_numpy():
    module = layer("standard", mixing="sigmoid")
    scores = np.random.default_rng(3).normal(size=(2, H, T, T))
    scores[:, :, 0, 1:] = -np.inf
    weights = module.maps.mixing.apply(module, mx.array(scores, mx.float32))
    bias = np.array(module["weight_bias"])[:, None, None]
    assert np.allclose(weights, sigmoid(scores + bias), atol=1e-6)


READ_SCORES = [
    name
    for name, row in choices_of("mixing").items()
    if not row.recurs and name not in ("linear", "path")
]
"""Mixings that combine with every hook on scores."""

COMPANIONS = {
    "latent": {"value": "latent"},
    "paired": {"output": "differential"},
}
"""What a score map cannot do without."""


@pytest.mark.parametrize("score", choices_of("score"))
def test_a_temperature_sharpens_any_score(score):
    """Of log 2 in every head, it is twice the scale."""
    settings = {"score": score, **COMPANIONS.get(score, {})}
    sharper = layer("temperature", **settings)
    plain = layer("standard", **settings, scale=2 * sharper.config.scale)
    weights = named_arrays(sharper.parameters())
    plain.load_weights([(name, weights[name]) for name in named_arrays(plain.parameters())])
    sharper.log_temperature = mx.full(sharper["log_temperature"].shape, np.log(2))
    assert mx.allclose(run(sharper), run(plain), atol=1e-5)


@pytest.mark.parametrize("hook", ["temperature", "talking", "self_mask", "forget"])
@pytest.mark.parametrize("mixing", READ_SCORES)
def test_hooks_compose_with_several_softmaxes_of_a_head(hook, mixing):
    module = layer("differential", logits=hook, mixing=mixing)
    assert run(module).shape == (2, T, C)
    assert module.weights(mx.zeros((2, T, C))).shape == (2, 2 * H, T, T)
