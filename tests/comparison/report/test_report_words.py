"""How numbers and verdicts are put into words."""

import math
from dataclasses import replace

import pytest

from mlx_attn.comparison.show import (
    between,
    comparison_parts,
    number,
    places,
    probability,
    signed,
    summary_lines,
    visible,
)


def test_a_verdict_is_a_sentence_with_its_numbers(comparison):
    same, worse, unknown, *notes = summary_lines(comparison())
    assert same.startswith("merged is the same as standard within 0.02 nats per token: +0.00")
    assert worse.startswith("no-out-proj is worse than standard: +0.04")
    assert "95 % interval +0.0" in worse
    assert unknown.startswith("whether no-value is better or worse than standard is not known: ")
    assert unknown.endswith(" seeds would decide.")
    assert notes[0].startswith("no-out-proj: the best learning rate is the last one tried")
    assert notes[1] == "merged-both has no result: with seed 2 it diverged: loss nan at step 3."


@pytest.mark.parametrize(
    ("facts", "note"),
    [
        ({"settings": {"start": "zero"}}, "Branches start at zero here"),
        ({"settings": {"start": "book"}}, "no-out-proj: the best learning rate is the last"),
        ({"reference": "merged"}, "Attention is worth, merged against standard: +0.0"),
    ],
)
def test_what_limits_an_answer_is_said(comparison, facts, note):
    made = comparison(**facts)
    assert summary_lines(made)[len(made.judged)].startswith(note)


def test_an_arm_whose_spread_nothing_else_shows_comes_with_a_warning(comparison):
    notes = summary_lines(comparison(arms=["standard", "merged"]))[1:]
    assert "if one run in ten of one form fails" in notes[0]


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"seeds_needed": 22}, "5 seeds; a new comparison with 22 seeds would decide."),
        ({"seeds_needed": 1000}, "a new comparison with 1000 or more seeds would decide."),
        (
            {"interval": (0.01, 0.2), "p_holm": 0.07, "seeds_needed": 22},
            "5 seeds; corrected for all arms, p is 0.070; a new comparison with 22 seeds would "
            "decide.",
        ),
    ],
    ids=["how many seeds would decide", "too many", "no 0 in the interval"],
)
def test_an_arm_that_is_not_known_is_told_what_would_decide(comparison, facts, said):
    made = comparison()
    verdict = replace(made.verdicts["no-value"], **facts)
    made = replace(made, verdicts={**made.verdicts, "no-value": verdict})
    assert summary_lines(made)[2].endswith(said)


def test_a_margin_that_the_part_caps_says_so(comparison):
    made = comparison(reference="no-out-proj")
    capped = replace(made.verdicts["merged"], margin=0.012)
    line = summary_lines(replace(made, verdicts={**made.verdicts, "merged": capped}))[0]
    assert "within 0.012 nats per token (half of what attention is worth)" in line


@pytest.mark.parametrize(
    ("delta", "decimals"), [(0.5, 3), (0.004, 4), (0.0001, 5), (0.0, 3), (2.0, 3)]
)
def test_decimals_show_a_tenth_of_delta(delta, decimals):
    assert places(delta) == decimals


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        # A difference has its sign, and zero has no minus.
        (signed(-0.0001, 3), "+0.000"),
        (signed(0.0126, 3), "+0.013"),
        # No end of an interval is rounded to zero that is beside it.
        (between((-0.0333, -0.00016), 3), "-0.033 to -0.0002"),
        (between((0.0, 1e-9), 3), "+0.000 to +0.000"),
        (visible("a\u202eb\x00\n龍"), "a\\u202eb\\x00\n龍"),
    ],
)
def test_numbers_and_names_are_shown_so_that_nothing_misleads(shown, text):
    assert shown == text
    assert number(math.nan, 2) == between(None, 2) == probability(None) == signed(None, 3) == "-"


def test_the_answers_come_first_and_in_bold(comparison):
    made = comparison()
    parts = list(comparison_parts(made))
    lines = summary_lines(made)
    assert [part.plain for part in parts[: len(lines)]] == lines
    assert [part.style for part in parts[: len(lines)]] == ["bold", "bold", "bold", "", ""]
