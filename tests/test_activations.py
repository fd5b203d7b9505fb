"""A forward pass that gives every activation by name, and takes edits of them."""

from functools import partial

import mlx.core as mx
import pytest

from mlx_attn.activations import run_with_cache
from mlx_attn.attention.catalog import VARIANTS
from mlx_attn.errors import ConfigError
from mlx_attn.model.config import BLOCKS
from tests.runs import small_gpt

TOKENS = mx.array([[3, 1, 4, 1, 5, 9, 2, 6]])
model_of = partial(small_gpt, n_heads=4, n_layers=2, start="book")


@pytest.mark.parametrize(
    "settings",
    [
        *(row.settings for row in VARIANTS.values()),
        {"position": "rope", "score": "merged"},
        {"position": "rope", "kv_sharing": 2},
        {"position": "rope", "qkv_bias": True, "value": "key"},
        {"position": "rope", "qk_norm": True, "n_kv_heads": 2, "window": 3, "global_every": 2},
        {"position": "alibi", "logits": "temperature+forget", **BLOCKS["modern"]},
    ],
    ids=str,
)
def test_the_logits_are_the_model_s(settings):
    model = model_of(**settings)
    logits, _ = run_with_cache(model, TOKENS)
    assert mx.allclose(logits, model(TOKENS), atol=1e-5)


def test_an_activation_has_the_shape_that_its_name_promises():
    _, activations = run_with_cache(model_of(), TOKENS)
    shapes = {name: array.shape for name, array in activations.items()}
    assert shapes["trf_blocks.1.att.attn_weights"] == (1, 4, 8, 8)
    assert shapes["trf_blocks.1.att.context_vec"] == (1, 4, 8, 4)
    assert shapes["trf_blocks.0.ff"] == shapes["embedding"] == (1, 8, 16)


def test_a_head_that_is_edited_away_is_a_head_without_its_rows_of_out_proj():
    model = model_of()
    others = mx.array([1.0, 0.0, 1.0, 1.0])[:, None, None]
    edits = {"trf_blocks.0.att.context_vec": lambda heads: heads * others}
    without, _ = run_with_cache(model, TOKENS, edits)
    layer = model.trf_blocks[0].att.out_proj
    layer.weight = layer.weight * mx.repeat(others.flatten(), 4)
    assert mx.allclose(without, model(TOKENS), atol=1e-5)


def test_what_comes_before_an_edit_does_not_change():
    model, name = model_of(), "trf_blocks.1.x"
    _, before = run_with_cache(model, TOKENS)
    _, after = run_with_cache(model, TOKENS, {name: mx.zeros_like})
    names = list(before)
    unchanged = names[: names.index(name)]
    assert all(mx.array_equal(before[n], after[n]) for n in unchanged)
    assert not after[name].any()
    assert not mx.array_equal(before["logits"], after["logits"])


@pytest.mark.parametrize(
    ("edits", "message"),
    [
        (
            {"trf_blocks.0.attn_weights": mx.zeros_like},
            r"did you mean 'trf_blocks\.0\.att\.attn_weights'",
        ),
        ({"embedding": lambda x: x[:, :1]}, r"\(1, 8, 16\)"),
    ],
    ids=["an unknown name", "another shape"],
)
def test_an_edit_that_cannot_be_made_is_refused(edits, message):
    with pytest.raises(ConfigError, match=message):
        run_with_cache(model_of(), TOKENS, edits)
