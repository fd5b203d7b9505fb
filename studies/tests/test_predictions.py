"""Predictions for GPT-2's size: computed from the study of lengths, and judged by an interval."""

import numpy as np
import pytest

from mlx_attn.errors import ConfigError
from studies import tables
from studies.book import RecordBook
from studies.findings import findings
from studies.follow_ups import follow_up
from studies.study import Prediction
from studies.tests.conftest import ANSWERS

STUDY = follow_up("gpt2-124m")
LENGTHS = (300, 600, 1200, 2400)


@pytest.fixture(scope="module")
def lengths():
    """The findings of the study of lengths on shakespeare, by arm and steps."""
    horizon = follow_up("horizon")
    records = RecordBook(ANSWERS / "horizon" / "records").records
    found = findings(horizon, records)
    return {(f.contrast.arm, f.steps): f for f in found if "shakespeare" in f.world}


@pytest.mark.parametrize("one", STUDY.predictions, ids=lambda one: one.arm)
def test_a_prediction_is_what_the_study_of_lengths_says(one, lengths):
    of_arm = [lengths[one.arm, steps] for steps in LENGTHS]
    shares = [f.verdict.mean / f.losses[0] for f in of_arm]
    last = of_arm[-1]
    assert one.low == 0
    assert one.high == pytest.approx(last.verdict.interval[1] / last.losses[0], abs=5e-5)
    slope, start = np.polyfit(np.log(LENGTHS), np.log(shares), 1)
    tokens_here = 8 * 64  # a step's, of shakespeare
    settings = STUDY.worlds["enwik8-124m"].settings
    batch = settings["batch_size"] * settings["accumulate"] * settings["context_length"]
    steps = settings["steps"] * batch / tokens_here
    assert one.point == pytest.approx(np.exp(start + slope * np.log(steps)), abs=5e-5)


@pytest.mark.parametrize(
    ("share", "noise", "word"),
    [
        (0.005, 1e-5, "holds"),
        (-0.01, 1e-5, "does not hold"),
        (0.05, 1e-5, "does not hold"),
        (0.0, 1e-2, "undecided"),
    ],
)
def test_a_prediction_holds_only_if_the_whole_interval_lies_inside(trained, share, noise, word):
    def loss(run):
        spread = noise * (run.seed - 1.5) * (run.arm != "standard")
        return 3.5 * (1 + share * (run.arm == "no-query")) + spread

    found = findings(STUDY, trained(STUDY, loss=loss))
    row = next(line for line in tables.predictions(STUDY, found).splitlines() if "no-query" in line)
    assert row.split(" | ")[-1] == f"{word} |"


def test_an_unmeasured_prediction_says_so():
    rows = tables.predictions(STUDY, findings(STUDY, {})).splitlines()[2:]
    assert len(rows) == 4
    assert all("not finished" in row for row in rows)


def test_a_prediction_outside_its_own_interval_is_refused():
    with pytest.raises(ConfigError, match=r"no-key: 0 <= 0\.3 <= 0\.2 is wrong"):
        Prediction(arm="no-key", low=0, point=0.3, high=0.2)
