"""What holds for every variant, whatever its weights are."""

import itertools
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import block_diag

from mlx_attn.arrays import named_arrays
from mlx_attn.attention.analysis import attention_cost
from mlx_attn.attention.attention import Attention, MultiHeadAttention
from mlx_attn.attention.cache import make_cache
from mlx_attn.attention.config import POSITIONS, VARIANTS, AttentionConfig
from mlx_attn.errors import ConfigError

C, T = 24, 12
FORMS = [name for name, variant in VARIANTS.items() if variant.group == "forms"]
law = settings(max_examples=10)
every_variant = pytest.mark.parametrize("variant", FORMS)
positions = st.sampled_from(POSITIONS)
seeds = st.integers(0, 2**31 - 1)


def layer(variant: str = "standard", **choices: Any) -> Attention:
    defaults: dict[str, Any] = {
        "d_in": C,
        "d_out": C,
        "context_length": T,
        "n_heads": 4,
        "qkv_bias": True,
    }
    module = Attention(AttentionConfig(**{**defaults, **VARIANTS[variant].maps, **choices}))
    module.eval()
    return module


def tokens(seed: int, batch: int = 2, length: int = T) -> mx.array:
    return mx.array(np.random.default_rng(seed).normal(size=(batch, length, C)), mx.float32)


def difference(a: mx.array, b: mx.array) -> float:
    return float(np.abs(np.array(a) - np.array(b)).max())


@every_variant
@law
@given(position=positions, seed=seeds, changed=st.integers(1, T - 1))
def test_a_later_token_never_changes_an_earlier_output(variant, position, seed, changed):
    module = layer(variant, position=position)
    x = tokens(seed)
    other = mx.concatenate([x[:, :changed], tokens(seed + 1)[:, changed:]], axis=1)
    assert mx.array_equal(module(x)[:, :changed], module(other)[:, :changed])


@every_variant
@law
@given(position=positions, seed=seeds, cuts=st.lists(st.integers(1, T - 1), max_size=4))
def test_cached_decoding_is_the_full_forward_pass(variant, position, seed, cuts):
    module, cache, x = layer(variant, position=position), make_cache(T), tokens(seed)
    edges = [0, *sorted(set(cuts)), T]
    parts = [module(x[:, a:b], cache) for a, b in itertools.pairwise(edges)]
    assert difference(mx.concatenate(parts, axis=1), module(x)) < 1e-5


@every_variant
def test_cached_decoding_is_exact_with_shared_keys_values_and_norms(variant):
    grouped = variant in {"standard", "no-out-proj", "merged", "no-query", "merged-no-out-proj"}
    for position in POSITIONS:
        module = layer(variant, position=position, qk_norm=True, n_kv_heads=2 if grouped else 4)
        cache, x = make_cache(T), tokens(3)
        parts = [module(x[:, i : i + 1], cache) for i in range(T)]
        assert difference(mx.concatenate(parts, axis=1), module(x)) < 1e-5, position


@every_variant
def test_the_cache_holds_what_the_cost_says(variant):
    module, cache = layer(variant), make_cache(T)
    module(tokens(0, batch=1), cache)
    assert cache.floats_per_token == attention_cost(module.config).cache_floats


@every_variant
def test_the_cost_counts_the_parameters(variant):
    module = layer(variant)
    assert attention_cost(module.config).parameters == sum(
        array.size for array in named_arrays(module).values()
    )


def test_a_cache_whose_offset_is_set_back_writes_over_the_later_tokens():
    module, cache, x = layer("merged"), make_cache(T), tokens(0)
    module(x, cache)
    cache.offset = 5
    assert difference(module(x[:, 5:], cache), module(x)[:, 5:]) < 1e-5


@pytest.mark.parametrize("window", [0, 5])
def test_room_can_be_made_when_it_is_needed(window):
    module, cache, x = layer(window=window), make_cache(4, window), tokens(0)
    parts = [module(x[:, :4], cache)]
    cache.reserve(T)
    parts += [module(x[:, i : i + 1], cache) for i in range(4, T)]
    assert difference(mx.concatenate(parts, axis=1), module(x)) < 1e-5


def test_more_tokens_than_there_is_room_for_are_refused():
    cache = make_cache(T - 1)
    with pytest.raises(ConfigError, match=f"{T} tokens are more .* room for .{T - 1}"):
        layer()(tokens(0), cache)


@law
@given(seed=seeds, n_heads=st.sampled_from([2, 3, 4]))
def test_heads_in_one_module_are_single_heads_side_by_side(seed, n_heads):
    D = C // n_heads
    together = MultiHeadAttention(C, C, T, 0.0, n_heads, output="none")
    x = tokens(seed)
    apart = []
    for h in range(n_heads):
        head = MultiHeadAttention(C, D, T, 0.0, 1, output="none")
        rows = {n: a[h * D : (h + 1) * D] for n, a in named_arrays(together).items()}
        head.load_weights(list(rows.items()))
        apart.append(head(x))
    assert difference(together(x), mx.concatenate(apart, axis=-1)) < 1e-5


@law
@given(seed=seeds)
def test_merged_heads_in_one_module_are_single_merged_heads_side_by_side(seed):
    together = MultiHeadAttention(C, C, T, 0.0, 3, score="merged", output="none")
    x, apart = tokens(seed), []
    for h in range(3):
        head = MultiHeadAttention(C, 8, T, 0.0, 1, score="merged", output="none")
        head.S.weight = together.S.weight[h * C : (h + 1) * C]
        head.W_value.weight = together.W_value.weight[h * 8 : (h + 1) * 8]
        apart.append(head(x))
    assert difference(together(x), mx.concatenate(apart, axis=-1)) < 1e-5


def one_head(score: str) -> Attention:
    return layer(n_heads=1, score=score, qkv_bias=False)


@law
@given(seed=seeds)
def test_one_head_merged_is_one_head_separate(seed):
    separate, merged = one_head("separate"), one_head("merged")
    S = separate.W_key.weight.T @ separate.W_query.weight
    merged.update({"S": {"weight": S}, "W_value": separate.W_value, "out_proj": separate.out_proj})
    assert difference(separate(tokens(seed)), merged(tokens(seed))) < 1e-5


@law
@given(seed=seeds)
def test_one_head_without_query_is_one_head_separate(seed):
    """x_i W_query W_key^T x_j^T = x_i (x_j W_key W_query^T)^T: the query folds into the key."""
    separate, no_query = one_head("separate"), one_head("no_query")
    folded = separate.W_query.weight.T @ separate.W_key.weight
    no_query.update(
        {"W_key": {"weight": folded}, "W_value": separate.W_value, "out_proj": separate.out_proj}
    )
    assert difference(separate(tokens(seed)), no_query(tokens(seed))) < 1e-5


@pytest.mark.parametrize("n_kv_heads", [4, 2])
def test_sliced_heads_are_separate_heads_with_block_diagonal_matrices(n_kv_heads):
    sliced = layer("sliced-heads", n_kv_heads=n_kv_heads)
    separate = layer("standard", n_kv_heads=n_kv_heads)
    separate.update({"out_proj": sliced.out_proj})
    for name, heads in (("W_query", 4), ("W_key", n_kv_heads), ("W_value", n_kv_heads)):
        blocks = np.split(np.array(sliced[name].weight), heads)
        whole = mx.array(np.array(block_diag(*blocks)))
        separate[name].update({"weight": whole, "bias": sliced[name].bias})
    assert difference(sliced(tokens(0)), separate(tokens(0))) < 1e-5


def test_a_sliced_head_reads_its_own_slice_only():
    module = layer("sliced-heads")
    x = tokens(0)
    other = mx.concatenate([x[..., :18], tokens(1)[..., 18:]], axis=-1)  # the slice of head 3
    (q, k), (other_q, other_k) = module.score(x), module.score(other)
    assert difference(q[:, :3], other_q[:, :3]) == difference(k[:, :3], other_k[:, :3]) == 0
    assert difference(q[:, 3], other_q[:, 3]) > 0.1


def test_a_transposed_merged_matrix_is_noticed():
    """It would pass every shape check and attend backwards."""
    separate, merged = one_head("separate"), one_head("merged")
    S = separate.W_query.weight.T @ separate.W_key.weight
    merged.update({"S": {"weight": S}, "W_value": separate.W_value, "out_proj": separate.out_proj})
    assert difference(separate(tokens(0)), merged(tokens(0))) > 1e-3


@every_variant
def test_weights_are_causal_and_add_up_to_one(variant):
    for position in POSITIONS:
        weights = layer(variant, position=position).weights(tokens(0))
        assert weights.shape == (2, 4, T, T), position
        assert difference(weights.sum(axis=-1), mx.ones((2, 4, T))) < 1e-5, position
        assert mx.array_equal(weights, mx.tril(weights)), position


@pytest.mark.parametrize("position", POSITIONS)
def test_weights_times_values_are_the_output(position):
    module = layer("no-out-proj", position=position)
    x = tokens(0)
    v = module.W_value(x).reshape(2, T, 4, -1).transpose(0, 2, 1, 3)
    heads = (module.weights(x) @ v).transpose(0, 2, 1, 3).flatten(2)
    assert difference(module(x), heads) < 1e-5


def test_a_model_without_positions_sees_a_set():
    module = layer(position="none")
    x = tokens(0)
    shuffled = mx.concatenate([x[:, T - 2 :: -1], x[:, T - 1 :]], axis=1)
    assert difference(module(x)[:, -1], module(shuffled)[:, -1]) < 1e-5


@pytest.mark.parametrize("position", ["alibi", "rope"])
def test_a_model_with_positions_sees_an_order(position):
    module = layer(position=position)
    x = tokens(0)
    shuffled = mx.concatenate([x[:, T - 2 :: -1], x[:, T - 1 :]], axis=1)
    assert difference(module(x)[:, -1], module(shuffled)[:, -1]) > 1e-4


@pytest.mark.parametrize("position", ["alibi", "rope"])
@every_variant
def test_relative_positions_do_not_depend_on_where_a_text_begins(variant, position):
    """Scores depend on distances alone: a cache that starts later gives the same last output."""
    module = layer(variant, position=position, qkv_bias=False)
    x = tokens(0, batch=1)
    zeros = mx.zeros((1, 3, C))
    weights, later = module.weights(x), module.weights(mx.concatenate([zeros, x], axis=1))
    seen = later[:, :, 3:, 3:]
    assert difference(seen / seen.sum(axis=-1, keepdims=True), weights) < 1e-5


@every_variant
def test_attention_dropout_keeps_the_mean_and_only_acts_in_training(variant):
    module = layer(variant, drop_rate=0.5, qkv_bias=False)
    x = tokens(0)
    assert mx.array_equal(module(x), module(x))
    module.train()
    assert difference(module(x), module(x)) > 1e-4
    mx.random.seed(0)
    mean = module(mx.tile(x, (400, 1, 1))).reshape(400, *x.shape).mean(axis=0)
    module.eval()
    error, size = (float(np.abs(np.array(y)).mean()) for y in (mean - module(x), module(x)))
    assert error < 0.15 * size + 0.02


def test_merged_matrices_start_with_the_spread_of_the_factors_they_replace():
    """Same scores at the start, whichever start is chosen."""
    mx.random.seed(0)
    x = tokens(0, batch=8)

    def spread(**choices: Any) -> float:
        module = layer(qkv_bias=False, **choices)
        q, k = module.score(x)
        return float(np.array(mx.std(q @ k.swapaxes(2, 3))))

    base = np.mean([spread(score="separate") for _ in range(8)])
    merged = np.mean([spread(score="merged", merged_start="product") for _ in range(8)])
    matched = np.mean([spread(score="merged", merged_start="matched") for _ in range(8)])
    assert merged == pytest.approx(base, rel=0.15)
    assert matched == pytest.approx(base, rel=0.15)
