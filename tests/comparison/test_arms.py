"""Arms as people write them, and the trials that they are."""

import pytest

from mlx_attn.comparison.config import arm_from, arms_from, reference_arm
from mlx_attn.errors import ConfigError

ARMS = {
    "no_query": ("no-query", {"variant": "no-query"}),
    "n_heads=1": ("standard, n_heads=1", {"variant": "standard", "n_heads": 1}),
    "one head: merged, n_heads=1, weight-decay=0.1, tied_head=yes": (
        "one head",
        {"variant": "merged", "n_heads": 1, "weight_decay": 0.1, "tied_head": True},
    ),
    "3 to 1: deltanet, pattern=deltanet,deltanet, standard, n_heads=2": (
        "3 to 1",
        {"variant": "deltanet", "pattern": "deltanet,deltanet,standard", "n_heads": 2},
    ),
}


@pytest.mark.parametrize(("text", "arm"), ARMS.items())
def test_an_arm_is_a_variant_and_settings_and_may_have_a_name(text, arm):
    made = arm_from(text)
    assert (made.name, made.settings) == arm


@pytest.mark.parametrize(
    ("texts", "complaint"),
    [
        (["merge"], "did you mean 'merged'"),
        (["merged, n_head=1"], "did you mean 'n_heads'"),
        (["merged, tied_head=2"], "true or false"),
        (["merged, standard"], "must describe one arm"),
        (["x: ,"], "must describe one arm"),
        ([" : merged"], "must describe one arm"),
        (["merged, n-heads=1, n_heads=2"], "settings, each once"),
        (["caf\udce9: standard"], "holds bytes that are not UTF-8"),
        (["standard"], "at least two arms"),
        (["standard", "standard"], "two arms are called 'standard'"),
        (["standard", "plain: standard"], "'plain' and 'standard' are the same"),
        (["standard, seed=5, vocab_size=400"], "all arms share seed, vocab_size"),
    ],
)
def test_arms_that_cannot_be_compared_are_refused_with_the_reason(texts, complaint):
    with pytest.raises(ConfigError, match=complaint):
        arms_from(texts)


@pytest.mark.parametrize(
    ("texts", "settings"),
    [
        (["standard", "merged", "no-query"], {"variant": "scores-off"}),
        (["standard", "shared-self-mask"], {"variant": "scores-off"}),
        (["standard", "no-out-proj"], {"variant": "attention-off"}),
        (["standard", "merged", "one head: n_heads=1"], {"variant": "attention-off"}),
        (["one head: n_heads=1", "no-query, n_heads=1"], {"variant": "scores-off", "n_heads": 1}),
        (["pattern=deltanet,standard", "standard"], {"variant": "attention-off"}),
        (["score=merged, bias=no", "no-query"], {"variant": "scores-off", "bias": False}),
        # No map differs, or an arm is a reference already.
        (["standard", "decay: weight_decay=0.1"], None),
        (["standard", "scores-off"], None),
    ],
)
def test_the_reference_takes_away_the_part_that_the_arms_change_alone(texts, settings):
    reference = reference_arm(arms_from(texts))
    # It can be trained if the layers of all arms share keys and values, of which it has none.
    assert (reference and reference.settings) == (settings and settings | {"kv_sharing": 0})
