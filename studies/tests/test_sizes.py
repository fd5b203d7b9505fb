"""The costs in tokens of the study of two sizes follow from its records as it registered."""

from math import exp, log
from typing import Any

import msgspec
import numpy as np
import pytest
from scipy import stats

from studies.plan import SHORTER, registered
from studies.run import missing
from studies.sizes import MARGIN, Sizes, fieller
from studies.trainings import SIZES, TUNING, Training, read

STUDY = registered()
PRICE = 0.2  # nats for each factor e of tokens
TRUE = {"no-out-proj": 0.01, "no-query": 0.03, "one-head": 0.0, "merged": -0.05}


def trainings(seeds: int = 4, **more: float) -> list[Training]:
    """Return trainings at both sizes, whose costs are known but for noise of the seeds."""
    noise, found = np.random.default_rng(0), list[Training]()
    above = {"standard": 0.0, SHORTER: PRICE * log(1 / STUDY.shorter), **TRUE, **more}
    for size in STUDY.sizes:
        for seed in STUDY.seeds[size][:seeds]:
            for arm, nats in above.items():
                loss = 1 + seed / 1000 + nats + noise.normal(0, 0.0005)
                of = {"study": STUDY.name, "world": f"source-{size}", "arm": arm, "seed": seed}
                key = f"{size} {arm} {seed}"
                found.append(Training(**of, rate=1.0, loss=loss, key=key, params=9, seconds=1.0))
    return found


def test_a_cost_in_tokens_is_the_difference_divided_by_the_price_of_tokens():
    costs = Sizes(STUDY, trainings()).costs["M"]
    for arm, nats in TRUE.items():
        mean, low, high = costs[arm].percent
        assert low < 100 * (exp(nats / PRICE) - 1) < high
        assert mean == pytest.approx(100 * (exp(nats / PRICE) - 1), abs=1)
    said = {"no-out-proj": "worse", "no-query": "worse", "merged": "better"}
    found = {arm: cost.word for arm, cost in costs.items()}
    assert found == {**said, "one-head": "the same"}


def test_fieller_s_interval_holds_the_ratios_that_a_paired_t_does_not_refute():
    of, to = np.array([0.02, 0.05, 0.04, 0.03]), np.array([0.2, 0.25, 0.19, 0.22])
    found = fieller(of, to)
    assert found
    for end in found[1:]:
        test: Any = stats.ttest_1samp(of - end * to, 0)
        assert test.pvalue == pytest.approx(0.05)
    assert found[0] == pytest.approx(of.mean() / to.mean())
    assert fieller(of, np.array([0.2, -0.2, 0.3, -0.1])) is None


def test_only_whole_pairs_count_and_a_form_that_diverged_has_no_cost():
    found = trainings(seeds=3)[:-1]  # the last form at S has a seed less
    cut = Sizes(STUDY, found).costs
    assert cut["M"]["merged"].nats.seeds == cut["S"]["no-query"].nats.seeds == 3
    assert cut["S"]["merged"].nats.seeds == 2
    (last,) = [t for t in trainings(seeds=3) if t.key == "S merged 402"]
    lost = msgspec.structs.replace(last, loss=None)
    assert "merged" not in Sizes(STUDY, [*found, lost]).costs["S"]
    assert Sizes(STUDY, []).costs == {"M": {}, "S": {}}


def test_a_prediction_is_refuted_by_an_interval_outside_of_it():
    refuted = Sizes(STUDY, trainings()).refuted()
    assert refuted == {"constant-delay": ["no-out-proj", "merged"], "can-go": ["no-query"]}


def test_every_number_is_told():
    lines = [*Sizes(STUDY, trainings()).lines()]
    assert len(lines) == 4 + 4 + 4 + 2 + 1
    assert MARGIN == 5


def test_the_page_says_of_the_predictions_what_the_records_say():
    sizes = Sizes.read("two-sizes")
    assert sizes.refuted() == {"constant-delay": [], "can-go": ["no-out-proj", "no-query"]}
    grown = {arm: change.interval()[0] > 0 for arm, change in sizes.changes().items()}
    assert grown == {"no-out-proj": True, "no-query": True, "one-head": True, "merged": False}
    tuned = Sizes.read("two-sizes-rates").refuted()
    assert tuned == {"rates-mislead": ["no-out-proj"], "grow-with-size": []}


def test_costs_at_the_rates_that_a_search_chose_are_told_beside_those_at_the_rule_s():
    search = STUDY.searches["S"]
    of = {"study": STUDY.name, "world": "source-S", "params": 9, "seconds": 1.0}
    found = [
        Training(**of, arm=arm, seed=seed, rate=rate, loss=2 - rate, key=f"{arm} {seed} {rate}")
        for arm in STUDY.forms
        for seed in search.seeds
        for rate in search.factors
    ]
    best = [
        msgspec.structs.replace(t, rate=2.0, key=f"{t.key} best")
        for t in trainings()
        if t.world == "source-S"
    ]
    lines = [*Sizes(STUDY, [*trainings(), *found, *best]).lines()]
    assert [line for line in lines if "S, rates x 1 for no-query" in line]
    assert [line for line in lines if "S, rates x 2 for no-query" in line]


SOURCES = {
    # Between the first two only `train --dry-run` changed, nothing that computes a training.
    "gpu, NVIDIA H100 80GB HBM3": {("97f4cb7", "acf039db3822"), ("2c1b785", "0e8392bd3c60")},
    "cpu, AMD EPYC": {("f1f46cb7", "3f9f92d64b95")},
}


@pytest.mark.parametrize(("name", "device"), [*zip(SIZES, SOURCES, strict=True)])
def test_trainings_are_of_one_device_and_one_arithmetic_and_read_what_was_registered(name, device):
    found = read(name)
    assert {(t.device, t.mlx, t.products) for t in found} == {(device, "0.32.4", "float32")}
    assert {(t.commit, t.source) for t in found} == SOURCES[device]
    for size, settings in registered(name).sizes.items():
        of = [t for t in found if t.world == f"source-{size}"]
        tokens = settings["steps"] * settings["batch_size"] * STUDY.shared["context_length"]
        assert {t.tokens for t in of if t.arm != SHORTER} == {tokens}
        assert {t.tokens for t in of if t.arm == SHORTER} == {STUDY.shorter * tokens}
        assert {len(t.curve) for t in of} <= {STUDY.points, STUDY.points + 1}


def test_only_the_last_two_parts_of_the_order_are_left():
    left = [*missing(STUDY, read(STUDY.name))]
    assert {one.seed >= TUNING for one in left} == {True}
    # A processor adds up in another order: there the search is a study of its own, and whole.
    assert len(left) == 52 + 15
    assert missing(registered(SIZES[1]), read(SIZES[1])) == []
