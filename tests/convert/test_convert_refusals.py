"""What cannot be converted is refused, with the reason."""

from dataclasses import replace

import mlx.core as mx
import pytest
from make import moved

from mlx_attn.convert.model import convert, starting_point
from mlx_attn.errors import ConfigError
from tests.runs import small_gpt

OF_SCORES = ("merged", "merged-both", "mla")
OF_OUTPUTS = ("merged-output", "separate-output")
WITH_OUTPUTS = ("merged-output", "merged-both")


DROPPED = {"drop_rate": 0.1, "qkv_bias": True}
NO_BIAS = {"qkv_bias": True, "bias": False}
FOLD = {"fold_norm": True}
FEW = {"tokens": mx.zeros((1, 16), mx.int32)}


@pytest.mark.parametrize(
    ("to", "options", "settings", "reason"),
    [
        *((to, {}, {"position": "rope"}, f"--to {to}: .*position=rope turns") for to in OF_SCORES),
        *((to, {}, {"qk_norm": True}, f"--to {to}: .*qk_norm divides") for to in OF_SCORES),
        *((to, {}, DROPPED, rf"--to {to}: .*drop_rate=0\.1 they need not") for to in OF_OUTPUTS),
        *((to, {}, NO_BIAS, f"--to {to}: .*bias=False leaves no place") for to in WITH_OUTPUTS),
        ("merged-output", {}, {"n_kv_heads": 2}, "4 heads share 2 keys.*merged-both"),
        ("merged", {}, {"value": "key", "output": "gated"}, "output=gated cannot be written"),
        ("merged", {}, {"qkv_bias": True, "mixing": "sigmoid"}, "bias cancels only in a softmax"),
        ("no-query", {}, {"n_heads": 1, "qkv_bias": True}, "without W_query nothing can"),
        ("no-out-proj", {}, {"n_kv_heads": 2}, "4 heads share 2 values"),
        ("no-out-proj", {}, {"drop_rate": 0.1}, r"drop_rate=0\.1 need not"),
        ("no-out-proj", {}, {"n_heads": 3, "head_dim": 4}, "does not divide into 3"),
        ("no-out-proj", {}, {}, "give some tokens of the training text"),
        # Weights fitted to so few would be as large as rounding allows.
        ("no-out-proj", FEW, {}, r"^16 tokens are .* 17 unknown .* at least 34 tokens"),
        ("no-query", {}, {}, "one head converts exactly"),
        ("merged", {}, {"score": "merged"}, "already"),
        ("separate", {"rank": 17}, {}, "from 1 to emb_dim=16"),
        ("merged", {"rank": 4}, {}, "--to merged has no rank"),
        ("merged", FOLD, {"score": "no_query"}, "norm's gain has nowhere to go"),
        ("merged", FOLD, {"score": "merged", "position": "rope"}, "rotated or divided by"),
        ("merged", FOLD, {"output": "merged", "drop_rate": 0.1}, "need not: leave --fold-norm"),
        ("merged", FOLD, {"score": "merged", "mixing": "sigmoid"}, "softmax and not in mixing=sig"),
        ("mergd", {}, {}, "did you mean 'merged'"),
    ],
)
def test_forms_and_ranks_that_a_model_cannot_have(to, options, settings, reason):
    with pytest.raises(ConfigError, match=reason):
        convert(moved(small_gpt(**{"n_heads": 4, **settings})), to, **options)


@pytest.mark.parametrize(
    ("have", "wanted", "message"),
    [
        ({}, {"score": "no_query"}, "score='separate' are no start for score='no_query'"),
        ({}, {"output": "none"}, "output='linear' are no start for output='none'"),
        ({"position": "rope"}, {"score": "merged"}, "position=rope turns"),
    ],
)
def test_no_training_starts_from_what_it_cannot_take_over_exactly(have, wanted, message):
    source = small_gpt(**have)
    with pytest.raises(ConfigError, match=message):
        starting_point(source, replace(source.config, **wanted))
