"""What cannot be combined is refused with the reason and the way out."""

from typing import Any

import pytest

from mlx_attn.attention.attention import MultiHeadAttention
from mlx_attn.attention.config import (
    MAPS,
    VARIANTS,
    AttentionConfig,
    choice_of,
    find_variant,
)
from mlx_attn.errors import ConfigError

SIZES: dict[str, Any] = {"d_in": 24, "d_out": 24, "context_length": 8, "n_heads": 4}


def config(**choices: Any) -> AttentionConfig:
    return AttentionConfig(**(SIZES | choices))


@pytest.mark.parametrize(
    ("choices", "words"),
    [
        ({"n_heads": 5}, "emb_dim=24 must be a multiple of n_heads=5"),
        ({"n_heads": 0}, "n_heads=0 must be at least 1"),
        ({"context_length": 0}, "context_length=0 must be at least 1"),
        ({"n_kv_heads": 3}, "n_heads=4 must be a multiple of n_kv_heads=3"),
        ({"drop_rate": 1.0}, "drop_rate=1.0"),
        ({"score": "none"}, "score='none' must be one of"),
        ({"position": "rope", "head_dim": 5}, "width 5 is odd"),
        ({"position": "rope", "score": "merged", "d_in": 21}, "width 21 is odd"),
        ({"score": "no_query", "head_dim": 5}, "must make up emb_dim=24"),
        ({"score": "no_key", "n_kv_heads": 2}, "must make up emb_dim=24"),
        ({"value": "identity", "n_kv_heads": 2}, "must make up emb_dim=24"),
        ({"score": "sliced", "n_heads": 5, "head_dim": 4}, "equal slices: choose numbers of heads"),
        ({"output": "none", "head_dim": 5}, "which must be 24"),
        ({"score": "shared", "n_kv_heads": 2}, "n_kv_heads=2"),
        ({"score": "merged", "value": "key"}, "value=key needs a key per head"),
        ({"score": "collaborative", "value": "key"}, "value=key needs a key per head"),
        ({"output": "merged", "value": "identity"}, "it needs value=linear"),
        ({"output": "merged", "n_kv_heads": 2}, "as many value heads"),
        ({"score": "latent", "value": "latent", "position": "rope"}, "cannot be rotated"),
        ({"score": "latent"}, "share one latent"),
        ({"value": "bank"}, "set vocab_size"),
        ({"output": "hadamard", "d_in": 22, "d_out": 22, "n_heads": 2}, "no Hadamard matrix"),
        ({"score": "paired"}, "use --variant differential"),
        ({"position": "alibi", "alibi_slopes": "1,2"}, "4 numbers with commas"),
    ],
    ids=str,
)
def test_an_impossible_combination_is_refused(choices, words):
    with pytest.raises(ConfigError, match=words):
        config(**choices)


def test_the_scale_is_that_of_the_separate_form_for_every_score():
    scales = {config(vocab_size=9, **variant.maps).scale for variant in VARIANTS.values()}
    assert scales == {6**-0.5}


def test_head_dim_need_not_be_a_share_of_the_width():
    module = MultiHeadAttention(24, 24, 8, 0.0, 4, head_dim=10)
    assert module.W_query.weight.shape == (40, 24)
    assert module.out_proj.weight.shape == (24, 40)


def test_grouped_queries_share_keys_and_values():
    module = MultiHeadAttention(24, 24, 8, 0.0, 4, n_kv_heads=1)
    assert module.W_key.weight.shape == module.W_value.weight.shape == (6, 24)


def test_every_variant_is_made_of_known_choices():
    for variant in VARIANTS.values():
        assert all(choice_of(name, variant.maps[name]) for name in MAPS)


def test_no_two_variants_are_the_same():
    maps = [tuple(variant.settings.items()) for variant in VARIANTS.values()]
    assert len(set(maps)) == len(maps)


def test_underscores_and_capitals_in_a_variant_s_name_are_forgiven():
    assert find_variant("No_Out_Proj") is VARIANTS["no-out-proj"]


def test_an_unknown_variant_is_answered_with_the_nearest_name():
    with pytest.raises(ConfigError, match="unknown variant 'mergd': did you mean 'merged'"):
        find_variant("mergd")
