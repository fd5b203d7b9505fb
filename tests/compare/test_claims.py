"""The table of claims, and what a comparison says of one."""

from dataclasses import replace

import pytest

from mlx_attn.compare.claim import (
    CLAIMS,
    FAILS,
    HOLDS,
    UNDECIDED,
    ArmFinding,
    Budget,
    Claim,
    ClaimResult,
    Contest,
    Examination,
    answer_of,
    find_claim,
    run_claim,
    shared_settings,
)
from mlx_attn.compare.plan import ComparisonConfig, arms_from
from mlx_attn.compare.result import RankPoint
from mlx_attn.compare.statistics import Verdict
from mlx_attn.errors import ConfigError

CONTESTS = [claim for claim in CLAIMS.values() if isinstance(claim.test, Contest)]
EXAMINATIONS = [claim for claim in CLAIMS.values() if isinstance(claim.test, Examination)]


def name(claim):
    return claim.name


@pytest.fixture
def claim():
    """Two arms on the loss."""
    test = Contest(
        arms=("standard", "no-query", "no-value"),
        expects={"no-query": ("equivalent", "better")},
    )
    return Claim(name="free", statement="it is free", source="me", protocol="so", test=test)


@pytest.fixture
def finding(crew, shared):
    """What testing a claim finds; trainings by formula."""

    def find(claim, seeds=4):
        effort = Budget(seeds=seeds, settings=shared)
        *_, last = run_claim(claim, crew, effort, "mlx-attn claims run x", {"mlx": "0"})
        assert isinstance(last, ClaimResult)
        return last.finding

    return find


@pytest.mark.parametrize("claim", CONTESTS, ids=name)
def test_every_contest_can_be_had_and_speaks_of_its_own_arms(claim):
    arms = arms_from(claim.test.arms)
    protocol = ComparisonConfig(arms=arms, shared=shared_settings(claim.test, Budget()))
    for arm in arms:
        protocol.settings(arm).model_config(1024)
    assert set(claim.test.expects) <= {arm.name for arm in arms[1:]}


@pytest.mark.parametrize("claim", CLAIMS.values(), ids=name)
def test_every_claim_says_who_made_it_and_how_it_is_tested(claim):
    assert claim.statement
    assert claim.source
    assert claim.protocol


def test_an_unknown_claim_is_refused_with_the_nearest():
    with pytest.raises(ConfigError, match="did you mean 'merging-costs'"):
        find_claim("merging-cost")


def test_a_claim_that_nothing_is_lost_holds_where_arms_are_equivalent(claim, finding, crew):
    crew.noise = 0.001
    assert finding(claim).answer == HOLDS


def test_it_does_not_hold_where_the_arm_is_worse(claim, finding, crew):
    crew.noise, crew.effects = 0.001, {"no-query": 0.3}
    assert finding(claim).answer == FAILS


def test_it_is_undecided_where_the_noise_is_too_large(claim, finding, crew):
    crew.noise = 0.3
    assert finding(claim).answer == UNDECIDED


def test_arms_that_the_claim_does_not_speak_of_do_not_count(claim, finding, crew):
    crew.noise, crew.effects = 0.001, {"no-value": 0.3}
    found = finding(claim)
    assert found.answer == HOLDS
    assert found.arms["steps"][2].verdict.word == "worse"


def test_a_refuted_part_refutes_the_whole():
    words = {"one": "worse", "two": "undecided"}
    contest = Contest(arms=("standard",), expects={"one": ("equivalent",), "two": ("equivalent",)})
    assert answer_of(contest, arms_with(words)) == FAILS


def test_an_undecided_part_leaves_the_whole_undecided():
    contest = Contest(arms=("standard",), expects={"one": ("equivalent",), "two": ("equivalent",)})
    assert answer_of(contest, arms_with({"one": "equivalent", "two": "undecided"})) == UNDECIDED


def test_an_arm_that_was_refused_decides_nothing():
    contest = Contest(arms=("standard",), expects={"one": ("equivalent",)})
    assert answer_of(contest, ()) == UNDECIDED


def test_ranks_are_compared_as_the_claim_asks(claim, finding, crew):
    grow = crew._outcome

    def with_ranks(cell):
        rank = 12.0 if cell.arm == "no-query" else 6.0
        ranks = (RankPoint(step=8, scores=rank + 0.01 * cell.seed, value_outputs=1.0),)
        return replace(grow(cell), ranks=ranks)

    crew._outcome = with_ranks
    test = replace(claim.test, measure="score rank", expects={"no-query": ("better",)}, delta=0.25)
    found = finding(replace(claim, test=test))
    assert found.answer == HOLDS
    assert found.arms["steps"][1].value == pytest.approx(12.015)


def test_claims_share_trainings(claim, finding, crew):
    finding(claim)
    before = len(crew.done)
    finding(replace(claim, name="other"))
    assert len(crew.done) == before


def arms_with(words):
    return tuple(
        ArmFinding(
            arm=arm,
            value=1.0,
            params=1,
            multiply_adds=1,
            cache_bytes_per_token=1,
            verdict=Verdict(
                word=word,
                differences=(0.0,),
                mean=0.0,
                interval=None,
                bootstrap=None,
                p_value=1.0,
                p_holm=1.0,
                p_equivalence=1.0,
                resolves=None,
                seeds_needed=2,
            ),
        )
        for arm, word in words.items()
    )
