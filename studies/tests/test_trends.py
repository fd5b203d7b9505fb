"""How a cost changes with the width, on records whose costs are known."""

import zlib
from math import log

import msgspec
import numpy as np
import pytest

from mlx_attn.errors import ConfigError
from studies.book import CurvePoint
from studies.findings import FAILS, HOLDS, UNDECIDED, UNFINISHED
from studies.study import study_from
from studies.trends import ability_curves, trend_findings

WIDTHS = {"near": 16, "middle": 32, "far": 64}
TOKENS = 0.5  # nats that the control gains where its tokens are multiplied by e


@pytest.fixture
def widths(tables):
    """The tables of a study of one contrast in three worlds of width, and its trend."""
    near = tables["worlds"]["near"]
    tables["worlds"] = {
        name: {**near, "settings": near["settings"] | {"emb_dim": width}}
        for name, width in WIDTHS.items()
    }
    del tables["questions"]["key"]
    expects = ["stays", "rises within the margin", "falls within the margin"]
    tables["trends"] = [
        {"arm": "no-query", "statement": "it stays", "margin": 0.05, "reason": "so"}
        | {"expects": expects}
    ]
    return tables


@pytest.fixture
def found(widths, trained):
    """The one trend, where the arm costs p at width 32 and a slope more with each doubling."""

    def find(p=0.1, slope=0.0, noise=0.001, **kept):
        study = study_from(widths)

        def loss(run):
            octave = list(WIDTHS).index(run.world) - 1
            cost = TOKENS * (p + slope * octave) * (run.arm == "no-query")
            shorter = -TOKENS * log(0.8) * (run.arm == "shorter")
            off = 0.4 * run.arm.endswith("-off") + 0.1 * np.log2(run.lr_scale) ** 2
            seed = zlib.crc32(repr((run.world, run.arm, run.seed)).encode())
            drawn = noise * np.random.default_rng(seed).standard_normal()
            return float(1 + cost + shorter + off + drawn)

        records = trained(study, loss=loss)
        left = {k: r for k, r in records.items() if kept.get(r.world, True)}
        (trend,) = trend_findings(study, left)
        return trend

    return find


def test_a_cost_is_told_in_tokens_at_each_width(found):
    costs = found(p=0.1, slope=0.02).costs
    assert [cost.width for cost in costs] == [16, 32, 64]
    assert [np.mean(cost.costs) for cost in costs] == pytest.approx([0.08, 0.1, 0.12], abs=0.005)


def test_a_cost_that_is_the_same_at_all_widths_stays(found):
    one = found()
    assert (one.word, one.answer) == ("stays", HOLDS)


@pytest.mark.parametrize(("slope", "word"), [(0.2, "rises"), (-0.2, "falls")])
def test_one_that_changes_rises_or_falls_with_each_doubling(found, slope, word):
    one = found(slope=slope)
    assert (one.word, one.answer) == (word, FAILS)
    assert one.verdict.mean == pytest.approx(slope, abs=0.005)


def test_a_small_but_certain_change_is_within_the_margin(found):
    one = found(slope=0.02, noise=1e-4)
    assert (one.word, one.answer) == ("rises within the margin", HOLDS)


def test_much_noise_leaves_a_trend_undecided(found):
    assert found(slope=0.05, noise=0.1).answer == UNDECIDED


def test_no_trend_is_told_before_all_widths_are_there(found):
    one = found(slope=0.2, far=False)
    assert (one.answer, one.word, one.verdict) == (UNFINISHED, "", None)
    assert [cost.width for cost in one.costs] == [16, 32]


def test_what_is_not_known_of_the_worth_of_tokens_widens_the_interval(found):
    """Its error is a share of the cost: a large cost is known less well than none."""
    none, large = found(p=0.0, noise=0.01), found(p=1.0, noise=0.01)
    assert large.costs[0].error > 2 * none.costs[0].error


def test_a_trend_of_words_that_there_are_not_is_refused(widths):
    widths["trends"][0]["expects"] = ["stay"]
    with pytest.raises(ConfigError, match="did you mean 'stays'"):
        study_from(widths)


def test_the_course_of_an_arm_is_told_ability_by_ability(study, trained):
    def with_curve(record):
        late = 0.2 * (record.arm == "no-query")
        curve = (
            CurvePoint(step=1, tokens=64, loss=3.0, abilities={"recall": 3.0}),
            CurvePoint(step=2, tokens=128, loss=2.0, abilities={"recall": 2.0 + late}),
        )
        return msgspec.structs.replace(record, curve=curve)

    records = {key: with_curve(record) for key, record in trained(study).items()}
    asked = ["standard", "scores-off", "no-query", "shorter"]
    reference, arm = ability_curves(study, records, "far", asked)
    assert (reference.arm, reference.is_reference) == ("scores-off", True)
    assert (arm.arm, arm.is_reference, arm.tokens) == ("no-query", False, (64, 128))
    assert arm.differences["recall"] == pytest.approx((0.0, 0.2))


def test_a_text_without_abilities_has_no_such_course(study, trained):
    assert ability_curves(study, trained(study), "far", ["no-query"]) == []
