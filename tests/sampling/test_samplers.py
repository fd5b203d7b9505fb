import math

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlx_attn.errors import ConfigError
from mlx_attn.sampling.config import SamplerConfig
from mlx_attn.sampling.samplers import Sampler, min_p, penalise, top_k, top_p

LOGITS = st.lists(st.floats(-20, 20, width=32), min_size=1, max_size=40).map(
    lambda values: np.array([values], np.float32)
)
LAWS = settings(max_examples=50)
NOTHING = mx.zeros((1, 0), mx.uint32)
KEEP_TWO = [{"top_k": 2}, {"top_p": 0.6}, {"min_p": 0.6}, {"repetition_penalty": 1e3}]


def kept(keep, logits: np.ndarray, bound: float) -> np.ndarray:
    """Which tokens a filter leaves; it must not change their logits."""
    filtered = np.array(keep(mx.array(logits), bound))
    support = np.isfinite(filtered)
    assert (filtered[support] == logits[support]).all()
    return support[0]


def drawn(config: SamplerConfig, logits: np.ndarray) -> int:
    """The first token of a new sampler."""
    return int(np.array(Sampler(config)(mx.array(logits), NOTHING))[0, 0])


def probabilities(logits: np.ndarray) -> np.ndarray:
    odds = np.exp(logits.astype(np.float64) - logits.max())
    return (odds / odds.sum())[0]


@LAWS
@given(LOGITS, st.integers(1, 60))
def test_top_k_keeps_the_k_likeliest_and_ties_with_the_last(logits, k):
    support = kept(top_k, logits, k)
    last = np.sort(logits[0])[::-1][min(k, logits.size) - 1]
    assert (support == (logits[0] >= last)).all()


@LAWS
@given(LOGITS, st.floats(0.001, 0.999))
def test_top_p_keeps_the_smallest_set_of_likeliest_tokens_with_that_probability(logits, p):
    support, probability = kept(top_p, logits, p), probabilities(logits)
    least = logits[0][support].min()
    assert probability[support].sum() >= p - 1e-5
    assert probability[logits[0] > least + 1e-5].sum() < p + 1e-5
    assert (logits[0][~support] <= least + 1e-5).all()


@LAWS
@given(LOGITS, st.floats(0.001, 1.0))
def test_min_p_keeps_tokens_by_their_ratio_to_the_likeliest(logits, fraction):
    support, probability = kept(min_p, logits, fraction), probabilities(logits)
    ratio = probability / probability.max()
    assert support[ratio > fraction * (1 + 1e-4)].all()
    assert not support[ratio < fraction * (1 - 1e-4)].any()


@LAWS
@given(LOGITS, st.sampled_from([0.0, 1e-40, 1e-7]), st.floats(1e-6, 1e-4))
def test_temperature_zero_takes_the_likeliest_token_and_a_tiny_one_almost(logits, temp, tiny):
    assert drawn(SamplerConfig(temp=temp), logits) == logits[0].argmax()
    assert logits[0][drawn(SamplerConfig(temp=tiny), logits)] >= logits.max() - 0.01


def test_draws_have_the_probabilities_of_the_logits_at_the_temperature():
    logits, n = np.array([[0.0, 1.0, 2.0]], np.float32), 1000
    sampler = Sampler(SamplerConfig(temp=0.5, seed=3))
    tokens = mx.concatenate([sampler(mx.array(logits), NOTHING) for _ in range(n)])
    share = np.bincount(np.array(tokens).ravel(), minlength=3) / n
    assert np.abs(share - probabilities(logits / 0.5)).max() < 4 * 0.5 / n**0.5


@pytest.mark.parametrize("setting", KEEP_TWO, ids=str)
def test_a_sampler_draws_every_token_that_its_settings_leave_and_no_other(setting):
    logits, sampler = mx.log(mx.array([[0.4, 0.3, 0.2, 0.1]])), Sampler(SamplerConfig(**setting))
    read = [mx.array([[2, 3]], mx.uint32), *[NOTHING] * 60]
    assert {sampler(logits, tokens).item() for tokens in read} == {0, 1}


def test_the_penalty_divides_positive_and_multiplies_negative_logits_of_recent_tokens():
    logits = mx.array([[4.0, -4.0, 4.0, -4.0]])
    penalised = penalise(logits, mx.array([[0, 1]], mx.uint32), mx.array(2.0))
    assert penalised.tolist() == [[2.0, -8.0, 4.0, -4.0]]


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        *(("temp", -0.1), ("temp", math.nan), ("top_k", -1), ("top_p", 0.0), ("top_p", 1.5)),
        *(("min_p", 1.01), ("repetition_penalty", 0.0), ("seed", -1)),
    ],
)
def test_a_value_out_of_range_is_refused_with_the_number(setting, value):
    with pytest.raises(ConfigError, match=rf"^{setting}={value} must be "):
        SamplerConfig(**{setting: value})
