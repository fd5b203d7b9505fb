"""Every combination of choices computes and decodes, or is refused where it is made."""

from itertools import product
from typing import Any

import mlx.core as mx
import pytest

from mlx_attn.attention.attention import Attention
from mlx_attn.attention.cache import make_cache
from mlx_attn.attention.config import MAPS, AttentionConfig, choices_of
from mlx_attn.attention.layer import Carry
from mlx_attn.errors import ConfigError

SIZES = {"d_in": 16, "d_out": 16, "context_length": 8, "n_heads": 4, "vocab_size": 5}
FORMS = ("score", "value", "output")
IGNORE_SCORES = ("linear", *(name for name, row in choices_of("mixing").items() if row.recurs))
"""Mixings that refuse what acts on scores, because they read queries and keys."""


def computes(**choices: Any) -> bool:
    """Whether a layer is made; its shapes are known without computing anything."""
    try:
        module = Attention(AttentionConfig(**SIZES, **choices))
    except ConfigError:
        return False
    module.eval()
    cache, tokens = make_cache(20, module.config.window), mx.zeros((2, 6), mx.int32)
    assert module(mx.zeros((2, 6, 16)), None, Carry(tokens)).shape == (2, 6, 16)
    for length in (4, 1, 1):
        x, carry = mx.zeros((2, length, 16)), Carry(tokens[:, :length])
        assert module(x, cache, carry).shape == (2, length, 16), choices
    return True


@pytest.mark.parametrize("position", ["alibi", "rope"])
@pytest.mark.parametrize("score", choices_of("score"))
def test_forms_of_the_three_maps(score, position):
    made = [
        computes(score=score, value=value, output=output, position=position)
        for value, output in product(choices_of("value"), choices_of("output"))
    ]
    assert any(made) or (score, position) == ("latent", "rope")


@pytest.mark.parametrize("score", choices_of("score"))
def test_hooks_and_windows_with_every_score(score):
    needs = {"latent": {"value": "latent"}, "paired": {"output": "differential"}}.get(score, {})
    hooks = [*choices_of("logits"), "temperature+self_mask", "forget+talking"]
    for logits, mixing, window in product(hooks, choices_of("mixing"), (0, 3)):
        refused = mixing in IGNORE_SCORES and (logits != "none" or window > 0)
        refused |= mixing == "path" and logits not in ("none", "forget")
        made = computes(score=score, logits=logits, mixing=mixing, window=window, **needs)
        assert made != refused


@pytest.mark.parametrize("key", MAPS)
@pytest.mark.parametrize("n_kv_heads", [1, 2])
def test_fewer_key_heads(key, n_kv_heads):
    made = [computes(n_kv_heads=n_kv_heads, **{key: name}) for name in choices_of(key)]
    assert any(made)
