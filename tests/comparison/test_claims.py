"""The table of claims, what a comparison says of one, and the checks of algebra and cost."""

from dataclasses import replace

import pytest

from mlx_attn.comparison import checks
from mlx_attn.comparison.claim import (
    CLAIMS,
    FAILS,
    HOLDS,
    UNDECIDED,
    ArmFinding,
    Claim,
    Finding,
    answer_of,
    find_claim,
    run_claim,
)
from mlx_attn.comparison.result import RankPoint
from mlx_attn.errors import ConfigError

TRAINED = [claim for claim in CLAIMS.values() if claim.arms]
CHECKED = [claim for claim in CLAIMS.values() if not claim.arms]


def name(claim):
    return claim.name


@pytest.fixture
def claim():
    """Two arms against the control, on the loss."""
    return Claim(
        name="free",
        statement="it is free",
        source="me",
        protocol="so",
        arms=("standard", "no-query", "no-value"),
        expects={"no-query": ("equivalent", "better")},
    )


@pytest.fixture
def finding(runner, shared):
    """What testing a claim finds; trainings by formula."""

    def find(claim, seeds=4):
        *_, last = run_claim(claim, runner, {"mlx": "0"}, seeds=seeds, settings=shared)
        assert isinstance(last, Finding)
        return last

    return find


@pytest.mark.parametrize("claim", TRAINED, ids=name)
def test_every_comparison_can_be_had_and_the_claim_speaks_of_its_arms(claim):
    config = claim.config()
    for arm in config.arms:
        config.settings(arm).model_config(1024)
    assert set(claim.expects) <= {arm.name for arm in config.arms[1:]}


@pytest.mark.parametrize("claim", CLAIMS.values(), ids=name)
def test_every_claim_says_who_made_it_and_how_it_is_tested(claim):
    assert claim.statement
    assert claim.source
    assert claim.protocol


def test_an_unknown_claim_is_refused_with_the_nearest():
    with pytest.raises(ConfigError, match="did you mean 'merging-costs'"):
        find_claim("merging-cost")


def test_a_claim_that_nothing_is_lost_holds_where_arms_are_equivalent(claim, finding, runner):
    runner.noise = 0.001
    assert finding(claim).answer == HOLDS


def test_it_does_not_hold_where_the_arm_is_worse(claim, finding, runner):
    runner.noise, runner.effects = 0.001, {"no-query": 0.3}
    assert finding(claim).answer == FAILS


def test_it_is_undecided_where_the_noise_is_too_large(claim, finding, runner):
    runner.noise = 0.3
    assert finding(claim).answer == UNDECIDED


def test_arms_that_the_claim_does_not_speak_of_do_not_count(claim, finding, runner):
    runner.noise, runner.effects = 0.001, {"no-value": 0.3}
    found = finding(claim)
    assert found.answer == HOLDS
    assert found.arms["steps"][2].verdict.word == "worse"


@pytest.fixture
def arms_with(verdict_of_one_seed):
    """Arms that ended with these words."""
    return lambda words: [
        ArmFinding(arm=arm, verdict=verdict_of_one_seed(word=word)) for arm, word in words.items()
    ]


def test_a_refuted_part_refutes_the_whole(claim, arms_with):
    words = {"one": "worse", "two": "undecided"}
    claim = replace(claim, expects={"one": ("equivalent",), "two": ("equivalent",)})
    assert answer_of(claim, arms_with(words)) == FAILS


def test_an_undecided_part_leaves_the_whole_undecided(claim, arms_with):
    claim = replace(claim, expects={"one": ("equivalent",), "two": ("equivalent",)})
    assert answer_of(claim, arms_with({"one": "equivalent", "two": "undecided"})) == UNDECIDED


def test_an_arm_that_was_refused_decides_nothing(claim):
    claim = replace(claim, expects={"one": ("equivalent",)})
    assert answer_of(claim, ()) == UNDECIDED


def test_ranks_are_compared_as_the_claim_asks(claim, finding, runner):
    grow = runner._outcome

    def with_ranks(trial):
        rank = 12.0 if trial.arm == "no-query" else 6.0
        ranks = (RankPoint(step=8, scores=rank + 0.01 * trial.seed, value_outputs=1.0),)
        return replace(grow(trial), ranks=ranks)

    runner._outcome = with_ranks
    expects = {"no-query": ("better",)}
    found = finding(replace(claim, metric="score rank", expects=expects, delta=0.25))
    assert found.answer == HOLDS
    assert found.arms["steps"][1].value == pytest.approx(12.015)


def test_claims_share_trainings(claim, finding, runner):
    finding(claim)
    before = len(runner.done)
    finding(replace(claim, name="other"))
    assert len(runner.done) == before


@pytest.fixture
def small_model(monkeypatch, story):
    """Checks a model of a few thousand weights, trained on a short text."""
    small = {
        "data": str(story),
        "tokenizer": "char",
        "context_length": 24,
        "emb_dim": 16,
        "n_heads": 2,
        "n_layers": 2,
        "batch_size": 4,
        "steps": 30,
        "warmup": 2,
        "eval_every": 0,
        "qkv_bias": True,
        "optimizer": "adamw",
    }
    monkeypatch.setattr(checks, "SETTINGS", small)
    checks._trained.cache_clear()
    yield
    checks._trained.cache_clear()


@pytest.mark.parametrize(
    ("claim", "expected"),
    [
        ("merging-is-exact", {}),
        # head_dim^2 = 64 weights of a query-key and of a value-output pair, 2 heads, 2 layers
        ("weights-can-be-shrunk", {"weights removed": 2 * 2 * 2 * 64}),
        ("key-cache-is-enough", {"cache, times the original": 0.5, "same greedy text": 1}),
        ("key-bias-is-inert", {}),
        (
            "merging-costs",
            {
                "query-key weights, times separate": 6,
                "score multiply-adds, times separate": 12,
                "attention weights, times separate": pytest.approx(3.5, abs=0.01),
            },
        ),
    ],
)
def test_the_algebra_holds(small_model, claim, expected):
    numbers, holds = checks.check(claim)
    assert holds
    assert {name: numbers[name] for name in expected} == expected


def test_every_claim_without_arms_has_a_check():
    assert {claim.name for claim in CHECKED} == set(checks._CHECKS)


def test_a_bias_that_matters_would_be_noticed(small_model, monkeypatch):
    def with_query_bias(model):
        for block in model.trf_blocks:
            block.att.W_query.bias = block.att.W_query.bias + 1.0
        return logits(model)

    logits = checks._logits
    monkeypatch.setattr(checks, "_logits", with_query_bias)
    _, holds = checks.check("key-bias-is-inert")
    assert not holds
