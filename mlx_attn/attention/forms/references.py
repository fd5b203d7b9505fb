"""Reference arms: scores switched off, and all of attention, to measure the gain of a form."""

import mlx.core as mx

from mlx_attn.attention.catalog import REFERENCES, choice, row
from mlx_attn.attention.layer import Inputs, Keys, MapWeights, Queries, Scores


@choice(
    "score",
    "off",
    "score_h = 0",
    input_weights=(),
    source="a reference arm",
    shape=lambda config: (1, 2),
)
def scores_off(layer: MapWeights, x: Inputs) -> tuple[Queries, Keys]:
    """Score all keys 0: only positions decide which tokens get attention."""
    B, T, _ = x.shape
    # q: [B, H, T, 2], k: [B, 1, T, 2]. Width 2, the least that rotary positions allow.
    return mx.zeros((B, layer.config.n_heads, T, 2), x.dtype), mx.zeros((B, 1, T, 2), x.dtype)


@choice(
    "mixing",
    "uniform",
    "w_h(i, j) = 1 / i",
    sums_to_one=True,
    shift_invariant=True,
    source="a reference arm",
)
def uniform(layer: MapWeights, s: Scores) -> Scores:
    """Average the visible tokens uniformly."""
    seen = mx.where(s > -mx.inf, 1.0, 0.0)
    return seen / seen.sum(axis=-1, keepdims=True)  # row i has 1 / i, i times


row(
    "scores-off",
    "only positions decide which tokens a token attends to",
    group=REFERENCES,
    score="off",
)
row(
    "attention-off",
    "the mean of the past",
    "w_h(i, j) = 1 / i",
    group=REFERENCES,
    score="off",
    mixing="uniform",
)
