"""The GPT around the attention, its cost, and its starting weights: alike on every machine."""

import hashlib
import math
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from mlx_attn.arrays import count_parameters, named_arrays
from mlx_attn.attention.catalog import VARIANTS
from mlx_attn.cost import model_cost
from mlx_attn.errors import ConfigError
from mlx_attn.model.config import BLOCKS, PRESETS, GPTConfig, config_from
from mlx_attn.model.gpt import GPT

TOKENS = mx.array(np.random.default_rng(0).integers(0, 50, (2, 16)))
SIZES = {"vocab_size": 50, "context_length": 16, "emb_dim": 32, "n_heads": 4, "n_layers": 2}


def config(**choices: Any) -> GPTConfig:
    return GPTConfig(**{**SIZES, **choices})


@pytest.mark.parametrize("norm", ["rmsnorm", "layernorm"])
def test_a_width_of_one_is_computed(norm):
    """Compiled reductions of an axis of one number end the process."""
    model = GPT(config(emb_dim=1, n_heads=1, norm=norm, score="nonlinear_query"))
    model.eval()
    assert mx.isfinite(model(TOKENS[:1, :5])).all()


def loss(model: GPT, tokens: mx.array) -> float:
    logits = model(tokens[:, :-1])
    return float(np.array(mx.fast.cross_entropy(logits, tokens[:, 1:]).mean()))


@pytest.mark.parametrize(
    ("variant", "parameters"),
    [
        ("standard", 162_419_712),
        ("no-query", 155_341_824),
        ("merged", 233_198_592),
        ("no-out-proj", 155_332_608 + 12),  # each layer has one gain in its place
    ],
)
def test_the_book_s_model_has_the_book_s_number_of_parameters(variant, parameters):
    maps = VARIANTS[variant].settings
    settings = config_from({**PRESETS["book"].model, **maps, "vocab_size": 50257})
    assert model_cost(settings).parameters == parameters


FORMS: dict[str, dict[str, Any]] = {
    **{name: row.settings for name, row in VARIANTS.items()},
    "layers in turn": {"pattern": "deltanet,sliding-window,standard,standard"},
    "convolved": {"short_conv": "silu", "n_kv_heads": 1},
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_a_model_holds_the_weights_and_the_cache_that_are_counted(form):
    settings = config_from({**SIZES, "n_layers": 4, "context_length": 64, **form})
    model, cost = GPT(settings), model_cost(settings)
    caches = model.new_caches()
    model(mx.zeros((1, 64), mx.int32), caches)
    assert cost.cache_bytes == sum(held.nbytes for cache in caches for held in cache.arrays)
    of_tokens = [array for cache in caches if cache.slots for array in cache.buffers]
    assert cost.cache_floats == sum(array.shape[1] * array.shape[3] for array in of_tokens)
    assert cost.state_floats == cost.cache_bytes // 4 - sum(array.size for array in of_tokens)
    held = sum(count_parameters(block.att) for block in model.trf_blocks)
    assert cost.attention_parameters == held


def test_only_weights_that_are_trained_are_counted():
    model = GPT(config())
    whole = count_parameters(model)
    model.trf_blocks[0].ff.layers[0].freeze()
    assert whole - count_parameters(model) == 128 * 32 + 128


def test_the_book_s_start_has_the_book_s_first_loss():
    """ln V + 1/6: logits of variance 1/3, because the head sees a normalised vector."""
    mx.random.seed(123)
    settings = config(vocab_size=5000, emb_dim=256, start="book", **BLOCKS["book"])
    tokens = mx.random.randint(0, 5000, (16, 16))
    assert loss(GPT(settings), tokens) == pytest.approx(math.log(5000) + 1 / 6, abs=0.05)


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_start_begins_near_the_uniform_loss(variant):
    for start in ("book", "gpt2", "zero"):
        model = GPT(config(start=start, n_layers=2, **VARIANTS[variant].settings))
        assert loss(model, TOKENS) == pytest.approx(math.log(50), abs=0.5), start


def test_the_zero_start_makes_every_block_the_identity():
    model = GPT(config(start="zero", **BLOCKS["modern"]))
    x = model.embed(TOKENS)
    assert mx.array_equal(model.trf_blocks[0](x), x)


def test_a_sequence_longer_than_the_context_needs_positions_that_are_not_learned():
    with pytest.raises(ConfigError, match="17 tokens are more than context_length=16"):
        GPT(config())(mx.zeros((1, 17), mx.int32))
    assert GPT(config(position="alibi"))(mx.zeros((1, 40), mx.int32)).shape == (1, 40, 50)


DIGESTS = {"book": "ecaad6cb6cf0a404", "gpt2": "99b03b3b9cd6a10b", "zero": "ed3c1b8f7be04d3a"}


@pytest.mark.parametrize("start", ["book", "gpt2", "zero"])
def test_one_seed_is_one_model_on_every_machine(start):
    """Digests of all weights, as bytes: another processor or back end must find the same."""
    found = hashlib.sha256()
    for name, weight in sorted(named_arrays(GPT(config(start=start), seed=7)).items()):
        found.update(name.encode() + np.array(weight).tobytes())
    assert found.hexdigest()[:16] == DIGESTS[start]


@pytest.mark.parametrize("variant", VARIANTS)
def test_variants_share_the_start_of_every_weight_that_they_share(variant):
    configs = (config(start="book", **VARIANTS[name].maps) for name in ("standard", variant))
    standard, other = (named_arrays(GPT(each)) for each in configs)
    shared = [n for n in standard if n in other and other[n].shape == standard[n].shape]
    assert {"tok_emb.weight", "trf_blocks.1.ff.layers.0.weight"} <= {*shared}
    assert not [n for n in shared if not mx.array_equal(standard[n], other[n])]


def test_a_merged_matrix_starts_as_the_product_of_the_standard_form_s_factors():
    standard, merged = (GPT(config(start="book", score=form)) for form in ("separate", "merged"))
    assert mx.allclose(standard(TOKENS), merged(TOKENS), atol=1e-5)
