"""The weights and heads of example plugins against loops in NumPy, written from their papers."""

from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from mlx_attn.attention.attention import Attention
from mlx_attn.attention.config import AttentionConfig
from mlx_attn.errors import ConfigError
from mlx_attn.model.config import config_from
from mlx_attn.model.gpt import GPT
from mlx_attn.plugins import load_plugins

EXAMPLES = Path(__file__).parents[2] / "examples"
T, H = 9, 2


@pytest.fixture(autouse=True)
def examples(no_plugins):
    load_plugins(EXAMPLES.glob("*.py"))


def config(mixing: str, **settings) -> AttentionConfig:
    sizes = {"d_in": 8, "d_out": 8, "n_heads": H, "context_length": T, "position": "none"}
    return AttentionConfig(**{**sizes, "mixing": mixing, **settings})


def scores(a: Attention, x: mx.array) -> np.ndarray:
    q, k = (np.array(y, np.float64) for y in a.queries_and_keys(x))
    return a.config.scale * q @ k.swapaxes(2, 3)


@pytest.mark.parametrize("window", [0, 4])
def test_stick_breaking_takes_each_share_of_what_nearer_keys_left(window):
    a, x = Attention(config("stick", window=window)), mx.random.normal((1, T, 8))
    s, expected = scores(a, 4 * x), np.zeros((1, H, T, T))
    for h, i in np.ndindex(H, T):
        rest = 1.0
        for j in range(i, max(-1, i - (window or T)), -1):
            expected[0, h, i, j] = rest / (1 + np.exp(-s[0, h, i, j]))
            rest -= expected[0, h, i, j]
    assert np.allclose(a.weights(4 * x), expected, atol=1e-5)


def test_retention_decays_each_product_by_its_distance():
    a, x = Attention(config("retention")), mx.random.normal((1, T, 8))
    i, j = np.indices((T, T))
    decay = np.array([1 - 2**-5, 1 - 2**-6])[:, None, None] ** np.maximum(i - j, 0)
    assert np.allclose(a.weights(x), np.tril(decay * scores(a, x)), atol=1e-5)


@pytest.mark.parametrize("settings", [{"window": 4}, {"position": "alibi"}, {"logits": "forget"}])
def test_retention_refuses_what_acts_on_scores(settings):
    with pytest.raises(ConfigError, match="retention has no scores to change"):
        config("retention", **settings)


def test_an_array_that_mlx_draws_starts_alike_beside_any_other_choice():
    sizes = {"vocab_size": 9, "context_length": T, "emb_dim": 8, "mixing": "difference"}
    forms = (config_from({**sizes, "n_heads": H, "score": s}) for s in ("separate", "merged"))
    assert mx.array_equal(*(GPT(form).trf_blocks[1].att["vectors"] for form in forms))
