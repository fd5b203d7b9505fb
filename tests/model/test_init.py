"""Starting weights are drawn by the seed and the weight's name, the same on every machine."""

import hashlib

import mlx.core as mx
import numpy as np
import pytest

from mlx_attn.arrays import named_arrays
from mlx_attn.attention.catalog import VARIANTS
from mlx_attn.model.config import config_from
from mlx_attn.model.gpt import GPT

DIGESTS = {"book": "ecaad6cb6cf0a404", "gpt2": "99b03b3b9cd6a10b", "zero": "ed3c1b8f7be04d3a"}


def model(variant: str = "standard", seed: int = 0, **changes) -> GPT:
    sizes = {"vocab_size": 50, "context_length": 16, "emb_dim": 32, "n_heads": 4, "n_layers": 2}
    return GPT(config_from({**sizes, **VARIANTS[variant].maps, **changes}), seed=seed)


def digest(weights: dict[str, mx.array]) -> str:
    found = hashlib.sha256()
    for name in sorted(weights):
        found.update(name.encode() + np.array(weights[name]).tobytes())
    return found.hexdigest()[:16]


@pytest.mark.parametrize("start", ["book", "gpt2", "zero"])
def test_one_seed_is_one_model_on_every_machine(start):
    """Digests of all weights, as bytes: another processor or back end must find the same."""
    assert digest(named_arrays(model(seed=7, start=start))) == DIGESTS[start]


@pytest.mark.parametrize("variant", VARIANTS)
def test_variants_share_the_start_of_every_weight_that_they_share(variant):
    standard, other = (named_arrays(model(name, start="book")) for name in ("standard", variant))
    shared = [n for n in standard if n in other and other[n].shape == standard[n].shape]
    assert {"tok_emb.weight", "trf_blocks.1.ff.layers.0.weight"} <= {*shared}
    assert not [n for n in shared if not mx.array_equal(standard[n], other[n])]


def test_a_merged_matrix_starts_as_the_product_of_the_standard_form_s_factors():
    tokens = mx.array(np.random.default_rng(0).integers(0, 50, (2, 16)))
    standard, merged = model("standard", start="book"), model("merged", start="book")
    assert mx.allclose(standard(tokens), merged(tokens), atol=1e-5)


def test_random_numbers_drawn_elsewhere_do_not_move_the_start_and_another_seed_does():
    first = digest(named_arrays(model()))
    mx.random.normal((100,))
    assert digest(named_arrays(model())) == first != digest(named_arrays(model(seed=1)))
