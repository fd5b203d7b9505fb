"""What cannot be combined is refused with the reason and the way out."""

from itertools import product
from typing import Any

import mlx.core as mx
import pytest

from mlx_attn.attention.attention import Attention, MultiHeadAttention
from mlx_attn.attention.cache import KVCache
from mlx_attn.attention.catalog import CHOICES, VARIANTS, find_variant
from mlx_attn.attention.config import AttentionConfig
from mlx_attn.errors import ConfigError
from tests.attention.conftest import SIZES as SMALL

IGNORE_SCORES = ("linear", *(name for name, row in CHOICES["mixing"].items() if row.recurs))
"""Mixings that refuse what acts on scores, because they read queries and keys."""

SIZES: dict[str, Any] = {"d_in": 24, "d_out": 24, "context_length": 8, "n_heads": 4}


def config(**choices: Any) -> AttentionConfig:
    return AttentionConfig(**(SIZES | choices))


@pytest.mark.parametrize(
    ("choices", "words"),
    [
        ({"n_heads": 5}, "emb_dim=24 must be a multiple of n_heads=5"),
        ({"n_heads": 0}, "n_heads=0 must be at least 1"),
        ({"n_kv_heads": 3}, "n_kv_heads=3 must divide n_heads=4"),
        ({"drop_rate": 1.0}, "drop_rate=1.0"),
        ({"score": "none"}, "score='none' must be one of"),
        ({"position": "own"}, "your own needs its file: --plugin FILE"),
        ({"position": "rope", "head_dim": 5}, "width 5 must be even"),
        ({"position": "rope", "score": "merged", "d_in": 21}, "width 21 must be even"),
        ({"score": "no_query", "head_dim": 5}, "must make up emb_dim=24"),
        ({"score": "no_key", "n_kv_heads": 2}, "must make up emb_dim=24"),
        ({"score": "sliced", "n_heads": 5, "head_dim": 4}, "equal slices: choose numbers of heads"),
        ({"output": "none", "head_dim": 5}, "which must be 24"),
        ({"score": "shared", "n_kv_heads": 2}, "n_kv_heads=2"),
        ({"score": "merged", "value": "key", "n_heads": 1}, "score=merged makes 1 of 24"),
        ({"output": "merged", "value": "identity"}, "it needs value=linear"),
        ({"output": "merged", "n_kv_heads": 2}, "as many value heads"),
        ({"score": "latent", "value": "latent", "position": "rope"}, "cannot be rotated"),
        ({"score": "latent", "value": "latent", "qk_norm": True}, "rotated or normalized"),
        ({"score": "latent"}, "share one latent"),
        ({"score": "paired"}, "use --variant differential"),
        *(({"mixing": m, "logits": "forget"}, "leave --logits out") for m in IGNORE_SCORES),
        ({"mixing": "delta", "position": "alibi"}, "which position=alibi changes: use learned"),
        ({"mixing": "linear", "window": 4}, "which window=4 hides: leave --window out"),
        ({"mixing": "path", "logits": "temperature"}, "scores after logits=temperature"),
        ({"mixing": "selective", "position": "rope"}, "position=rope changes them afterwards"),
        ({"mixing": "selective", "short_conv": "silu"}, "short_conv=silu changes them afterwards"),
        ({"short_conv": "gelu"}, "must be one of none, linear, silu"),
        ({"short_conv": "silu", "score": "merged"}, "score=merged caches what comes before"),
        ({"short_conv": "silu", **VARIANTS["mla"].maps}, "value=latent caches"),
    ],
    ids=str,
)
def test_an_impossible_combination_is_refused(choices, words):
    with pytest.raises(ConfigError, match=words):
        config(**choices)


def test_the_scale_is_that_of_the_separate_form_for_every_score():
    scales = {config(**variant.maps).scale for variant in VARIANTS.values()}
    assert scales == {6**-0.5}
    assert config(scale=1.0).scale == 1.0


def test_widths_of_heads_and_numbers_of_keys_are_free():
    module = MultiHeadAttention(24, 24, 8, 0.0, 4, head_dim=10, n_kv_heads=1)
    assert module.W_query.weight.shape == (40, 24)
    assert module.W_key.weight.shape == module.W_value.weight.shape == (10, 24)
    assert module.out_proj.weight.shape == (24, 40)


def test_a_wrong_argument_or_input_of_the_books_classes_is_a_sentence():
    with pytest.raises(ConfigError, match="unknown setting 'scor': did you mean 'score'"):
        MultiHeadAttention(3, 2, 6, 0.0, num_heads=2, scor="merged")
    module = MultiHeadAttention(3, 2, 6, 0.0, 2)
    for shape, way in (((6, 3), r"; x\[None\] makes a batch of one text"), ((1, 6, 4), "")):
        with pytest.raises(ConfigError, match=rf"must have \(batch, tokens, 3\){way}$"):
            module(mx.zeros(shape))


def test_no_two_variants_are_the_same():
    maps = [tuple(variant.settings.items()) for variant in VARIANTS.values()]
    assert len(set(maps)) == len(maps)


def test_a_variant_is_found_by_a_name_in_any_spelling_and_an_unknown_one_answered():
    assert find_variant("No_Out_Proj") is VARIANTS["no-out-proj"]
    assert find_variant("keyless") is VARIANTS["key-as-value"]
    with pytest.raises(ConfigError, match="unknown variant 'mergd': did you mean 'merged'"):
        find_variant("mergd")


# Every combination of choices computes and decodes, or is refused where it is made.


def computes(**choices: Any) -> bool:
    """Try to make a layer, and check its shapes, which needs no computation."""
    try:
        module = Attention(AttentionConfig(**{**SMALL, **choices}))
    except ConfigError:
        return False
    module.eval()
    cache = KVCache(20, module.config.window)
    assert module(mx.zeros((2, 6, 16)), None, {}).shape == (2, 6, 16)
    for length in (4, 1, 1):
        x = mx.zeros((2, length, 16))
        assert module(x, cache, {}).shape == (2, length, 16), choices
    return True


SCORES = [score for score in CHOICES["score"] if score != "earlier"]
"""All but that of a layer which reads an earlier layer's keys: here there is one layer."""
RULED_OUT = {("latent", "rope"), ("latent", 2), ("no_key", 2), ("shared", 2)}
"""Scores and a setting that excludes them, whatever the other maps are."""


@pytest.mark.parametrize(
    "settings", [{"position": "alibi"}, {"position": "rope"}, {"n_kv_heads": 2}]
)
@pytest.mark.parametrize("score", SCORES)
def test_forms_of_the_three_maps(score, settings):
    pairs = product(CHOICES["value"], CHOICES["output"])
    if settings != {"position": "alibi"}:  # a setting of the scores: not every pair again
        pairs = (pair for pair in pairs if "linear" in pair or score == "latent")
    made = [computes(score=score, value=v, output=y, **settings) for v, y in pairs]
    assert any(made) == ((score, *settings.values()) not in RULED_OUT)


@pytest.mark.parametrize("score", SCORES)
def test_hooks_and_windows_with_every_score(score):
    needs = {"latent": {"value": "latent"}, "paired": {"output": "differential"}}.get(score, {})
    hooks = [*CHOICES["logits"], "temperature+self_mask", "forget+talking"]
    pairs = [*product(hooks, CHOICES["mixing"])]
    if score != "separate":  # queries and keys know nothing of what follows: not every pair
        pairs = [
            (logits, mixing) for logits, mixing in pairs if "none" in logits or "softmax" in mixing
        ]
    for (logits, mixing), window in product(pairs, (0, 3)):
        refused = mixing in IGNORE_SCORES and (logits != "none" or window > 0)
        refused |= mixing == "path" and logits not in ("none", "forget")
        made = computes(score=score, logits=logits, mixing=mixing, window=window, **needs)
        assert made != refused
