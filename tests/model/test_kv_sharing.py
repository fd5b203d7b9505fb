"""Layers that share keys and values: their weights, caches, numbers, and what they refuse."""

from typing import Any

import mlx.core as mx
import pytest
from mlx.utils import tree_map

from mlx_attn.convert.model import convert, fold_norms
from mlx_attn.cost import cache_bytes, model_cost
from mlx_attn.errors import ConfigError
from mlx_attn.interop.standard import obstacles
from mlx_attn.model.config import GPTConfig, config_from
from mlx_attn.model.gpt import GPT

SMALL = {"vocab_size": 20, "context_length": 12, "emb_dim": 16, "n_heads": 4, "n_layers": 4}
TOKENS = mx.array([[1, 2, 3, 4, 5, 6, 7, 8, 9], [9, 8, 7, 6, 5, 4, 3, 2, 1]])


def config(**settings: Any) -> GPTConfig:
    return config_from({**SMALL, "kv_sharing": 2, **settings})


def random_model(**settings: Any) -> GPT:
    model = GPT(config(**settings))
    model.update(
        tree_map(lambda w: w + 0.2 * mx.random.normal(w.shape, key=mx.random.key(1)), model)
    )
    model.eval()
    return model


def test_only_the_first_layer_of_each_group_has_keys_and_values_of_its_own():
    owns = ["W_key" in block.att and "W_value" in block.att for block in GPT(config()).trf_blocks]
    assert owns == [True, False, True, False]


def test_a_layer_reads_the_keys_and_values_of_the_layer_before():
    _, activations = random_model(position="rope").run_with_cache(TOKENS)
    for name in ("keys", "values"):
        of = [activations[f"trf_blocks.{layer}.att.{name}"] for layer in range(4)]
        assert mx.array_equal(of[0], of[1])
        assert mx.array_equal(of[2], of[3])
        assert not mx.array_equal(of[1], of[2])


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"position": "rope", "qk_norm": True, "n_kv_heads": 2},
        {"position": "alibi", "window": 4},
        {"kv_sharing": 3, "position": "none", "mixing": "sink", "logits": "temperature"},
    ],
)
def test_decoding_with_caches_is_the_full_pass(settings):
    model = random_model(**settings)
    caches, logits = model.new_caches(), model(TOKENS)
    read = [model(piece, caches) for piece in mx.split(TOKENS, [5, 6], axis=1)]
    assert mx.allclose(mx.concatenate(read, axis=1), logits, atol=1e-4)


def test_two_layers_have_the_cache_of_one():
    model, standard = random_model(), config(kv_sharing=0)
    caches = model.new_caches()
    mx.eval(model(TOKENS[:1], caches))
    held = sum(buffer.nbytes for cache in caches for buffer in cache.buffers)
    assert held == cache_bytes(config(), 12, 4) == cache_bytes(standard, 12, 4) / 2
    assert model_cost(config()).cache_floats == model_cost(standard).cache_floats / 2


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"kv_sharing": 5}, "kv_sharing=5: there are only n_layers=4: use more layers"),
        ({"score": "merged"}, "score=merged computes or caches others: leave one of the two out"),
        ({"window": 4, "global_every": 2}, "one window, and global_every=2 makes them differ"),
        ({"pattern": "standard,gated"}, "pattern=standard,gated makes them differ"),
        (
            {"kv_sharing": 0, "pattern": "standard,cross-layer"},
            "write --variant cross-layer instead",
        ),
    ],
)
def test_what_does_not_fit_is_refused_with_a_way_out(settings, words):
    with pytest.raises(ConfigError, match=words):
        config(**settings)


@pytest.mark.parametrize("change", [lambda model: convert(model, "merged"), fold_norms])
def test_a_conversion_says_that_layers_lack_matrices(change):
    with pytest.raises(ConfigError, match="kv_sharing=2 leaves some layers without W_key"):
        change(random_model())


def test_no_export_fits():
    assert "kv_sharing=2" in obstacles(config())
