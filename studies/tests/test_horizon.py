"""Delay or ceiling: words and steps of courses whose answers are known."""

import zlib
from math import log

import numpy as np
import pytest

from studies import horizon
from studies.figures import length_figure
from studies.findings import UNDECIDED, UNFINISHED, findings
from studies.follow_ups import follow_up
from studies.horizon import courses, statement, steps_to, word_of
from studies.show import question_figure

STUDY = follow_up("horizon")


def course_of(trained, costs):
    """Every arm's word and delays on shakespeare, with costs by length of no-query alone."""

    def loss(run):
        steps = run.settings["steps"]
        own = costs[steps] if run.arm == "no-query" else 0.0
        seed = zlib.crc32(repr((run.arm, run.seed, steps)).encode())
        noise = 1e-4 * np.random.default_rng(seed).standard_normal()
        return 3 - 0.2 * log(steps / 300) + own + noise

    records = trained(STUDY, loss=loss, worlds=["shakespeare-300", "shakespeare-1200"])
    judged = courses(horizon.trained(STUDY, records), 1200)
    return {(one.text, one.arm): one for one in judged}


@pytest.mark.parametrize(
    ("first", "last", "word"),
    [
        (0.10, 0.02, "delayed, and worse at the end"),
        (0.10, 0.09, "worse at the end"),
        (-0.05, 0.05, "sooner but worse"),
        (0.10, 0.0, "delayed"),
        (0.0, 0.0, UNDECIDED),
    ],
)
def test_a_course_has_its_word(trained, first, last, word):
    course = course_of(trained, {300: first, 1200: last})
    assert course["shakespeare", "no-query"].word == word
    assert course["shakespeare", "one-head"].word == UNDECIDED


def test_a_text_that_is_not_trained_has_no_word(trained):
    course = course_of(trained, {300: 0.1, 1200: 0.1})
    assert course["tales", "no-query"].word == UNFINISHED


def test_a_cost_is_so_many_steps_of_the_standard_form(trained):
    """It gains 0.2 nats with each factor e: 0.2 ln 2 nats are half of its steps."""
    course = course_of(trained, {300: 0.1, 1200: 0.2 * log(2)})
    delays = course["shakespeare", "no-query"].delays
    assert sum(delays) / len(delays) == pytest.approx(600, rel=0.02)


@pytest.mark.parametrize(("loss", "steps"), [(3.0, 300), (2.9, 600), (2.7, 2400), (3.1, 150)])
def test_steps_are_read_off_straight_lines_in_their_logarithm(loss, steps):
    curve = [(300, 3.0), (600, 2.9), (1200, 2.8)]
    assert steps_to(loss, curve) == pytest.approx(steps)


def test_a_cost_that_is_not_shown_at_the_end_is_not_worse_there():
    assert word_of({"start": 0.1}) == UNDECIDED


@pytest.mark.parametrize(
    ("last", "said"),
    [
        (0.09, "does not hold: worse at the end and not shown to be delayed are no-query on shake"),
        (0.0, "is not decided"),
    ],
)
def test_the_statement_falls_with_a_cost_that_stays_and_waits_for_arms_that_lack(
    trained, last, said
):
    assert statement([*course_of(trained, {300: 0.1, 1200: last}).values()]).startswith(said)


STEPS: tuple[int, ...] = (300, 600, 1200, 2400)
CURVE = np.array([3.0, 2.5, 2.3, 2.25])
HALF_AS_FAR = np.array([3.5, 3.0, 2.5, 2.3])  # the same curve at half of the steps, extended


def lengths_of(costs, seeds=4):
    noise = 1e-4 * np.random.default_rng(0).standard_normal((len(STEPS), 2, seeds))
    means = np.array([CURVE, CURVE + costs]).T
    return dict(zip(STEPS, means[:, :, None] + noise, strict=True))


@pytest.mark.parametrize(
    ("costs", "shift", "constant"),
    [
        (0.02, 0.0, 0.02),
        (HALF_AS_FAR - CURVE, log(2), 0.0),
        (HALF_AS_FAR - CURVE + 0.02, log(2), 0.02),
    ],
)
def test_costs_are_split_into_a_delay_and_a_constant(costs, shift, constant):
    fit = horizon.fit(lengths_of(costs))
    assert fit
    assert fit.shift == pytest.approx(shift, abs=0.01)
    assert fit.constant == pytest.approx(constant, abs=0.005)
    assert fit.shifts[0] <= fit.shift <= fit.shifts[1]
    assert fit.constants[0] <= fit.constant <= fit.constants[1]


def test_two_lengths_are_not_split():
    assert horizon.fit({300: np.ones((2, 3)), 600: np.ones((2, 3))}) is None


def test_two_studies_are_joined_seed_by_seed_at_their_common_lengths():
    one, other = lengths_of(0.1, seeds=3), lengths_of(0.2, seeds=2)
    del other[300]
    joined = horizon.joined({("tales", "merged"): one}, {("tales", "merged"): other})
    both = joined["tales", "merged"]
    assert [*both] == [600, 1200, 2400]
    assert horizon.differences(both, 2400) == pytest.approx([0.1] * 3 + [0.2] * 2, abs=0.001)


def test_a_longer_study_adds_its_length_to_those_of_its_text():
    shorter = {(text, "merged"): lengths_of(0.1) for text in ("tales", "shakespeare")}
    longer = {("tales", "merged"): {4800: np.array([[2.2] * 4, [2.25] * 4])}}
    whole = horizon.extended(shorter, longer)
    assert [*whole["tales", "merged"]] == [*STEPS, 4800]
    assert [*whole["shakespeare", "merged"]] == [*STEPS]
    (after,) = courses({("tales", "merged"): whole["tales", "merged"]}, 4800)
    assert after.samples["end"].mean == pytest.approx(0.05)


def test_the_picture_of_costs_has_a_panel_for_each_text_and_a_line_for_each_arm():
    trained = {(text, "merged"): lengths_of(0.1) for text in ("tales", "shakespeare")}
    axes = length_figure(trained).axes
    assert [axis.get_title() for axis in axes] == ["tales", "shakespeare"]
    (line,) = [line for line in axes[0].get_lines() if np.size(line.get_xdata()) == len(STEPS)]
    assert line.get_xdata() == pytest.approx(STEPS)
    assert line.get_ydata() == pytest.approx([0.1] * 4, abs=0.001)


def test_each_text_is_a_row_of_panels_with_its_lengths_in_order(trained):
    found = findings(STUDY, trained(STUDY))
    titles = [axis.get_title() for axis in question_figure(found, STUDY).axes]
    steps = (300, 600, 1200, 2400)
    assert titles == [f"{text}-{n}" for text in ("shakespeare", "tales") for n in steps]
