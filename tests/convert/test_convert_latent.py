"""Keys and values of one latent, and what a softmax that does not add up to one refuses."""

import mlx.core as mx
import numpy as np
import pytest

from mlx_attn.attention.config import VARIANTS
from mlx_attn.convert.measure import float64_logits, weight_errors
from mlx_attn.convert.model import convert
from mlx_attn.errors import ConfigError
from mlx_attn.model.config import GPTConfig
from mlx_attn.model.gpt import GPT

SIZES = {"vocab_size": 16, "context_length": 8, "emb_dim": 16, "n_heads": 4, "n_layers": 1}
TOKENS = mx.array([[3, 1, 4, 1, 5, 9, 2, 6]])


def random_model(variant: str, **keys) -> GPT:
    """A model whose every trained number, hooks included, is away from where it starts."""
    mx.random.seed(0)
    model = GPT(GPTConfig(**{**SIZES, **VARIANTS[variant].settings, "latent_dim": 6, **keys}))
    model.apply(
        lambda w: w + 0.2 * mx.random.normal(w.shape) if mx.issubdtype(w.dtype, mx.floating) else w
    )
    model.eval()
    return model


@pytest.mark.parametrize("to", ["standard", "merged", "merged-both", "separate"])
def test_a_latent_of_full_rank_is_written_out_exactly(to):
    model = random_model("mla", latent_dim=16)
    converted = convert(model, to)
    assert np.abs(float64_logits(model, TOKENS) - float64_logits(converted, TOKENS)).max() < 1e-5


@pytest.mark.parametrize("keys", [{}, {"n_kv_heads": 2}, {"qkv_bias": True}])
def test_keys_and_values_share_a_latent_exactly_at_full_rank_and_nearly_below(keys):
    model = random_model("standard", **keys)
    exact = float64_logits(model, TOKENS)
    errors = [np.abs(exact - float64_logits(convert(model, "mla"), TOKENS)).max()]
    ranks = [weight_errors(model, convert(model, "mla", rank=rank)) for rank in (4, 8, 16)]
    assert errors[0] < 1e-5
    assert ranks[0] > ranks[1] > ranks[2]
    assert max(ranks[2]) < 1e-5


def test_a_latent_can_be_cut_further():
    model = convert(random_model("standard"), "mla", rank=8)
    again = convert(convert(model, "standard"), "mla", rank=8)
    assert max(weight_errors(model, again)) < 1e-5
    assert convert(model, "mla", rank=4).config.latent_dim == 4


@pytest.mark.parametrize("mixing", ["sink", "off_by_one"])
def test_biases_that_count_where_weights_do_not_add_up_to_one(mixing):
    model = random_model("standard", mixing=mixing, qkv_bias=True)
    for to in ("merged", "slim"):
        with pytest.raises(ConfigError, match="key's bias cancels in a softmax alone"):
            convert(model, to)
    with pytest.raises(ConfigError, match="need not"):
        convert(model, "merged-output")
