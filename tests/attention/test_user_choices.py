"""Choices that a user registers wrongly are refused in one line, before anything is computed."""

from collections.abc import Callable, Iterator
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest

from mlx_attn.attention.attention import Attention
from mlx_attn.attention.config import CHOICES, MAPS, AttentionConfig, choices_of
from mlx_attn.attention.layer import choice, split_heads
from mlx_attn.errors import ConfigError

SIZES = {"d_in": 16, "d_out": 16, "context_length": 8, "n_heads": 4}


@pytest.fixture
def layer() -> Iterator[Callable[..., Attention]]:
    """A layer with a choice named `own` of one map; the choice is forgotten afterwards."""
    for name in MAPS:
        choices_of(name)

    def make(map_name: str, apply: Callable[..., Any], **facts: Any) -> Attention:
        choice(map_name, "own", "a formula", **facts)(apply)
        settings: dict[str, Any] = {**SIZES, map_name: "own"}
        return Attention(AttentionConfig(**settings))

    yield make
    for table in CHOICES.values():
        table.pop("own", None)


@pytest.mark.parametrize(
    ("map_name", "apply", "complaint"),
    [
        (
            "score",
            lambda a, x: (x, x),
            r"score=own must return, of 2 sequences of 3 tokens, the shape \(2, 4, 3, any\), "
            r"\(2, -4, 3, any\) \(-n: any divisor of n\), and returned \(2, 3, 16\), \(2, 3, 16\)",
        ),
        ("score", lambda a, x: split_heads(x, 4), r"and returned \(2, 4, 3, 4\)$"),
        ("score", lambda a, x: (split_heads(x, 4), split_heads(x, 8)), r"returned .* \(2, 8, 3, 2"),
        ("value", lambda a, x, k: x, r"value=own must return, .* \(2, -4, 3, any\)"),
        ("logits", lambda a, s: s[:, :1], r"the shape \(2, 4, 3, 3\), and returned \(2, 1, 3, 3\)"),
        ("logits", lambda a, s: None, r"and returned \(\)"),
        ("mixing", lambda a, s: s.sum(-1), r"mixing=own .* returned \(2, 4, 3\)"),
        ("output", lambda a, heads, x: heads, r"the shape \(2, 3, 16\), and returned \(2, 4, 3, 4"),
        (
            "output",
            lambda a, heads: heads,
            r"output=own cannot be called: .* 2 positional arguments",
        ),
    ],
)
def test_another_shape_than_the_map_s_is_refused(layer, map_name, apply, complaint):
    with pytest.raises(ConfigError, match=complaint):
        layer(map_name, apply)


@pytest.mark.parametrize(
    ("facts", "complaint"),
    [
        ({"cache": "xx"}, "cache='xx' must be one of kv, x, k"),
        ({"weights": {"P": lambda c: [1]}}, "its weight 'P' is a list, not an array"),
        ({"weights": {"config": lambda c: mx.eye(2)}}, "has the name of another part"),
        ({"weights": {"W_query": lambda c: mx.eye(2)}}, "has the name of another part"),
    ],
)
def test_what_a_choice_declares_is_checked(layer, facts, complaint):
    with pytest.raises(ConfigError, match=complaint):
        layer("logits", lambda a, s: s, **facts)


def test_there_is_no_map_of_another_name(layer):
    with pytest.raises(ConfigError, match="map='logit' must be one of score, value, output"):
        layer("logit", lambda a, s: s)


@pytest.mark.parametrize("context_length", [1, 2, 8])
def test_what_is_right_is_taken(layer, context_length, monkeypatch):
    monkeypatch.setitem(SIZES, "context_length", context_length)
    made = layer(
        "score",
        lambda a, x: (split_heads(x, 4), split_heads(a.W(x), 2)),
        weights={"W": lambda c: nn.Linear(16, 8)},
    )
    assert made.W.weight.shape == (8, 16)


def test_an_error_within_a_choice_stays_what_it_is(layer):
    nothing: Any = None
    with pytest.raises(TypeError, match="unsupported operand"):
        layer("logits", lambda a, s: s + (nothing + 1))
