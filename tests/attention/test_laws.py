"""Every layer keeps the laws that the package relies on; a choice that breaks one is refused.

The package's own variants are held to them here, and only here: a training pays nothing for it.
"""

from operator import imul, setitem
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

from mlx_attn import laws
from mlx_attn.attention.attention import Attention
from mlx_attn.attention.catalog import CHOICES, VARIANTS, choice_of
from mlx_attn.attention.config import AttentionConfig
from mlx_attn.attention.layer import merge_heads, split_heads
from mlx_attn.errors import ConfigError
from mlx_attn.machine.operations import softmax
from tests.attention.conftest import SIZES

SEPARATE: Any = choice_of("score", "separate")
LINEAR: Any = choice_of("value", "linear")


FORMS = {
    **{name: row.maps for name, row in VARIANTS.items()},
    "two hooks": {"logits": "forget+temperature"},
    "merged, no softmax": {"score": "merged", "mixing": "sink"},
}


@pytest.mark.parametrize(
    "settings",
    [
        {"position": "learned"},
        {"position": "rope", "window": 5, "qk_norm": True},
        {"position": "alibi", "window": 5},
        {"position": "none", "qk_norm": True},
        {"position": "none"},
        {"position": "none", "n_kv_heads": 2},
    ],
    ids=str,
)
@pytest.mark.parametrize("form", FORMS)
def test_every_form_keeps_every_law(form, settings):
    try:
        config = AttentionConfig(**{**SIZES, "qkv_bias": True, **FORMS[form], **settings})
    except ConfigError:
        pytest.skip("this combination does not exist")
    assert laws.broken_law(laws.with_other_weights(Attention(config))) == ""


def same(a: Any, s: mx.array) -> mx.array:
    return s


def linear(a: Any, x: mx.array, k: mx.array) -> mx.array:
    return split_heads(a.W_value(x), 4)


def moved(y: mx.array, axis: int) -> mx.array:
    return mx.roll(y, -1, axis)


def of_the_token_before(a: Any, x: mx.array, k: mx.array) -> mx.array:
    return linear(a, mx.concatenate([mx.zeros_like(x[:, :1]), x[:, :-1]], axis=1), k)


def cosine(a: Any, x: mx.array) -> tuple[mx.array, ...]:
    q, k = SEPARATE.apply(a, x)
    return tuple(y / mx.linalg.norm(y, axis=-1, keepdims=True) for y in (q, k))


def gated(a: Any, heads: mx.array, x: mx.array) -> mx.array:
    return a.out_proj(merge_heads(heads) * mx.sigmoid(a.W_gate(x)))


def root(a: Any, s: mx.array) -> mx.array:
    weights = mx.sqrt(softmax(s))  # whose slope at 0, of later keys, is infinite
    return weights / weights.sum(-1, keepdims=True)


def sharper(a: Any, s: mx.array, kept: mx.array) -> mx.array:
    """Scale the scores of a token by what all tokens up to it have asked for."""
    total = mx.cumsum(kept, axis=2)
    return s * (1 + total[:, :, -s.shape[2] :])


def values_as_heads(a: Attention, q: mx.array, k: mx.array, v: mx.array, state: Any) -> Any:
    return v, mx.zeros((len(v), 1))


REMEMBERS: dict[str, Any] = {
    "remembers": lambda a, x: mx.sigmoid(a.W_sharp(x))[:, None],
    "weights": {"W_sharp": lambda c: nn.Linear(c.d_in, 1)},
}
VALUE = {"weights": LINEAR.weights, "shape": LINEAR.shape}
SUMS = {"sums_to_one": True}
FACTOR: dict[str, Any] = {"score_factor": lambda a: mx.array([2.0] * 4)}
KEEPS_X = {"cache": "x", "shape": lambda c: (1, 16)}
SCORE = {"weights": SEPARATE.weights, "shape": SEPARATE.shape}
OUTPUT = {"W_gate": lambda c: nn.Linear(c.d_in, c.d_out), **choice_of("output", "linear").weights}

LEAK = {"weights": {"leak": lambda c: mx.zeros((1,))}}
LEAKS = "own lets a token read later ones: with tokens"
BENT = "=own is not linear up to a bias: .*; declare it with affine=False"
RETURNED = (
    r"score=own must return, of 2 sequences of 3 tokens, the shape \(2, 4, 3, 4\), "
    r"\(2, 4, 3, 4\), and returned \(2, 3, 16\), \(2, 3, 16\); shape= declares others$"
)
BROKEN = [
    ("logits", lambda a, s: s + s[..., ::-1], {}, LEAKS),
    # A weight of 0 hides it at the start.
    ("logits", lambda a, s: s + a.leak * s[..., ::-1], LEAK, LEAKS),
    ("value", lambda a, x, k: linear(a, moved(x, 1), k), VALUE, LEAKS),
    ("mixing", lambda a, s: softmax(s) + 8e-6, {}, LEAKS),
    ("score", lambda a, x: (split_heads(x - x.mean(1, keepdims=True), 4),) * 2, {}, LEAKS),
    ("value", of_the_token_before, VALUE, "decodes with a cache.*use --short-conv, or"),
    ("mixing", lambda a, s: softmax(s), {"recurs": values_as_heads}, "recurs= must give the same"),
    ("logits", lambda a, s: s + mx.random.normal(s.shape), {}, "something else each time"),
    ("logits", lambda a, s: mx.log(-mx.abs(s) - 1), {}, "gives numbers that are not finite"),
    ("mixing", root, {}, r"gives gradients of W_\w+.weight that are not finite"),
    ("score", cosine, SCORE, BENT),
    ("value", lambda a, x, k: nn.relu(linear(a, x, k)), VALUE, BENT),
    ("output", gated, {"weights": OUTPUT}, BENT),
    ("value", linear, {**VALUE, "after": lambda a, y: merge_heads(y)}, r"returns from after= .*64"),
    ("value", linear, {**VALUE, "after": lambda a, y: 2 * LINEAR.after(a, y)}, "else with after="),
    ("mixing", lambda a, s: softmax(s) / 2, SUMS, "leave out sums_to_one= of mix"),
    ("mixing", lambda a, s: mx.sigmoid(s), {"shift_invariant": True}, "shift_invariant= of mixing"),
    ("logits", lambda a, s: mx.tanh(s), {"shift_invariant": True}, "shift_invariant= of logits"),
    ("logits", lambda a, s: 2 * s + 1, FACTOR, "leave out score_factor= of logits=own"),
    ("value", lambda a, x, k: k + 0.0, {"shape": lambda c: (4, 4)}, "makes values from keys: decl"),
    ("score", lambda a, x: (x, x), {}, RETURNED),
    ("score", lambda a, x: (split_heads(x, 4)[..., :2],) * 2, {}, "; shape= declares others"),
    ("value", lambda a, x, k: k[:, :3], {"shape": lambda c: (3, 4)}, r"\(2, 1, 3, 4\), and retur"),
    ("score", lambda a, x: (imul(x, 2), SEPARATE.apply(a, x))[1], SCORE, "its input in place"),
    ("value", lambda a, x, k: linear(a, x, imul(k, 2)), VALUE, "its input in place"),
    ("logits", lambda a, s: setitem(a, "last", s) or s, {}, "sets layer.last, which would be a"),
    ("score", lambda a, x: split_heads(x, 4), {}, r"and returned \(2, 4, 3, 4\);"),
    ("value", lambda a, x, k: x, {}, r"value=own must return, .* \(2, 4, 3, 4\)"),
    ("logits", lambda a, s: None, {}, r"the shape \(2, 4, 3, 3\), and returned \(\)"),
    ("mixing", lambda a, s: s.sum(-1), {}, r"mixing=own .* returned \(2, 4, 3\)"),
    ("output", lambda a, heads, x: heads, {}, r"\(2, 3, 16\), and returned \(2, 4, 3, 4"),
    ("output", lambda a, heads: heads, {}, "cannot be called: .* 2 positional arguments"),
    ("logits", lambda a, s, kept: s, {"remembers": lambda a, x: x}, "remembers= of logits=own"),
    ("score", lambda a, x: (x, x), {"cache": "xx"}, "cache='xx' must be one of kv, x"),
    ("logits", same, {"affine": False}, "has no affine: it may have source, weights, init"),
    ("logits", same, {"weights": {"P": lambda c: [1]}}, "'P' must be an array or an nn.Module"),
    ("logits", same, {"weights": {"W_key": lambda c: mx.eye(2)}}, "that no other part has"),
    ("logit", same, {}, "map='logit' must be one of score, value, output"),
    ("score", lambda a, x: (mx.stack([x] * 4, 1), 2 * x[:, None]), KEEPS_X, "keeps x as its key"),
]


@pytest.mark.parametrize(("map_name", "apply", "facts", "complaint"), BROKEN)
def test_a_choice_that_breaks_a_law_or_is_declared_or_shaped_wrongly_is_refused(
    own, map_name, apply, facts, complaint
):
    with pytest.raises(ConfigError, match=complaint):
        own(map_name, apply, **facts)


def block_means(a: Any, x: mx.array, k: mx.array) -> mx.array:
    """Add the mean of the block of 16 that a token is in, and not of the one before."""
    blocks = x[:, : x.shape[1] // 16 * 16].reshape(x.shape[0], -1, 16, x.shape[2])
    means = mx.repeat(blocks.mean(2), 16, axis=1)
    return linear(a, mx.concatenate([x[:, : means.shape[1]] + means, x[:, means.shape[1] :]], 1), k)


def turned(a: Any, y: mx.array, positions: mx.array) -> mx.array:
    return y + 0.1 * moved(y, 2) if y.shape[2] > 12 else y


def in_pairs(a: Any, x: mx.array, k: mx.array) -> mx.array:
    """Add to each sequence of an even batch half of its neighbour."""
    pairs = x.reshape(-1, 2 - len(x) % 2, *x.shape[1:])
    return linear(a, x if len(x) % 2 else (pairs + pairs[:, ::-1] / 2).reshape(x.shape), k)


def after_a_repeat(a: Any, x: mx.array, k: mx.array) -> mx.array:
    """Add what follows the same token elsewhere, also later."""
    same = (x[:, :, None] == x[:, None]).all(-1) - mx.eye(x.shape[1])
    return linear(a, x + same @ moved(x, 1), k)


def added(a: Any, x: mx.array, k: mx.array, carry: dict[str, Any]) -> mx.array:
    """Add the values of the layer before, each of the next token."""
    v = linear(a, x, k)
    before, carry["v"] = carry.get("v", mx.zeros_like(v)), v
    return v + moved(before, 2)


LATER = "lets a token read later ones"
LONG: list[tuple[str, Any, dict[str, Any], str]] = [
    ("value", lambda a, x, k: linear(a, moved(x, 1) if x.shape[1] > 12 else x, k), VALUE, LATER),
    ("value", lambda a, x, k: linear(a, moved(x, 1) if x.shape[1] == 47 else x, k), VALUE, LATER),
    ("value", block_means, VALUE, LATER),
    ("score", lambda a, x: SEPARATE.apply(a, moved(x, 1) if len(x[0]) > 30 else x), SCORE, LATER),
    ("position", turned, {}, LATER),
    ("logits", lambda a, s: moved(s, 3) if s.shape[3] > 40 else s, {}, LATER),
    ("logits", lambda a, s: moved(s, 3) if a.training else s, {}, f"in training {LATER}"),
    ("mixing", lambda a, s: softmax(s) + (0.1 if a.training else 0), {}, f"in training {LATER}"),
    (
        "value",
        lambda a, x, k: linear(a, moved(x, 1) if a.training and len(x) == 4 else x, k),
        VALUE,
        f"in training {LATER}",
    ),
    ("value", lambda a, x, k: linear(a, x + x.mean(0, keepdims=True), k), VALUE, "mixes the seque"),
    (
        "output",
        lambda a, y, x: a.out_proj(merge_heads(y - y.mean(0) if len(y) > 2 else y)),
        {"weights": choice_of("output", "linear").weights},
        "mixes the sequences of a batch",
    ),
    ("logits", lambda a, s: 2 * s if len(s) == 1 else s, {}, "read alone"),
    (
        "value",
        lambda a, x, k: linear(a, x - x.mean(0) if a.training else x, k),
        VALUE,
        "in training mixes the sequences",
    ),
    ("logits", lambda a, s: s * (1 + RANDOM.normal() * a.training), {}, "resumed training"),
    ("mixing", lambda a, s: softmax(s) / (1 + (s.shape[3] > 20)), SUMS, "leave out sums_to_one="),
    ("logits", lambda a, s: s * (2 if 20 < s.shape[3] != s.shape[2] else 1), {}, "decodes with"),
    ("value", lambda a, x, k: linear(a, moved(x, 1) if len(x) > 8 else x, k), VALUE, LATER),
    ("value", in_pairs, VALUE, "mixes the sequences of a batch"),
    ("value", after_a_repeat, {**VALUE, "affine": False}, LATER),
    ("value", added, {**VALUE, "carries": True}, LATER),
]
RANDOM = np.random.default_rng(0)


@pytest.mark.parametrize(("map_name", "apply", "facts", "complaint"), LONG)
def test_a_choice_is_tried_as_it_is_trained(own, map_name, apply, facts, complaint):
    """At its length and a prime below it, in training mode, with one sequence and many."""
    with pytest.raises(ConfigError, match=complaint):
        own(map_name, apply, {"context_length": 48}, **facts)


@pytest.mark.parametrize(
    ("map_name", "apply", "facts"),
    [
        ("score", cosine, {**SCORE, "affine": False}),
        # Without the convolution, whose SiLU is not affine.
        ("value", linear, {**VALUE, "settings": {"short_conv": "silu"}}),
        ("score", lambda a, x, carry: SEPARATE.apply(a, x), {**SCORE, "carries": True}),
        ("mixing", lambda a, s: softmax(s), {"sums_to_one": True, "shift_invariant": True}),
        ("logits", lambda a, s: 2 * s, FACTOR),
        ("value", lambda a, x, k: 2 * k, {"shape": SEPARATE.shape, "reads_keys": True}),
        ("logits", lambda a, s: s + mx.random.normal(s.shape) if a.training else s, {}),
        ("logits", sharper, REMEMBERS),
        ("logits", lambda a, s: setitem(a, "_s", s) or setitem(a, "size", s.shape) or s, {}),
    ],
)
def test_a_choice_that_declares_what_is_so_is_taken(own, map_name, apply, facts):
    assert own(map_name, apply, **facts)


@pytest.mark.parametrize(("rounds", "error"), [("float32", 0.005), ("TF32", 0.05)])
def test_the_rounding_of_products_breaks_no_law_and_more_does(own, monkeypatch, rounds, error):
    monkeypatch.setattr(laws, "products", lambda: rounds)
    assert own("logits", lambda a, s: (2 + error / 10) * s, name="rounded", **FACTOR)
    with pytest.raises(ConfigError, match="leave out score_factor="):
        own("logits", lambda a, s: (2 + error) * s, **FACTOR)


def test_an_error_within_a_choice_names_it_and_stays_the_cause(own):
    with pytest.raises(ConfigError, match=r"logits=own cannot .*: ValueError: \[matmul") as caught:
        own("logits", lambda a, s: s @ mx.zeros((99, 3)))
    assert isinstance(caught.value.__cause__, ValueError)


def test_a_hook_that_remembers_all_decodes_as_it_reads_with_a_window(own):
    with pytest.raises(ConfigError, match=r"logits=own computes something .* remembers_all=True"):
        own("logits", sharper, {"window": 4}, name="own", **REMEMBERS)
    assert own("logits", sharper, {"window": 4}, name="all", remembers_all=True, **REMEMBERS)


def test_a_choice_is_tried_once_and_a_script_s_random_numbers_are_not_touched(own):
    calls = []
    mx.random.seed(3)
    Attention(AttentionConfig(**SIZES))
    drawn = mx.random.normal((2,))
    mx.random.seed(3)
    made = own("logits", lambda a, s: calls.append(s.shape) or s)
    assert mx.array_equal(mx.random.normal((2,)), drawn)
    first = len(calls)
    Attention(made.config)
    assert len(calls) == first + 1  # its shape only
    tried = len(laws._passed)
    del CHOICES["logits"].rows["own"]
    assert own("logits", same)  # as of a file that has changed
    assert len(laws._passed) == tried  # the earlier function is forgotten


def test_a_trial_finds_the_same_whatever_was_drawn_before_it(own):
    found = set()
    for name in ("1", "2"):
        with pytest.raises(ConfigError, match="lets a token read later ones") as refusal:
            own("logits", lambda a, s: s + moved(s, -1), name=name)
        found.add(str(refusal.value).removeprefix(f"logits={name}"))
    assert len(found) == 1


@pytest.mark.parametrize("context_length", [1, 2])
def test_fewer_keys_than_heads_are_taken_at_any_length(own, context_length):
    W = {"W": lambda c: nn.Linear(c.d_in, c.d_in // 2)}
    size, facts = {"context_length": context_length}, {"weights": W, "shape": lambda c: (2, 4)}
    assert own("score", lambda a, x: (split_heads(x, 4), split_heads(a.W(x), 2)), size, **facts)
