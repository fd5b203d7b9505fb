"""How numbers and verdicts are put into words."""

import math
from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console
from rich.text import Text

from mlx_attn.comparison.show import (
    between,
    meanings_text,
    number,
    places,
    print_comparison,
    probability,
    seeds_needed,
    signed,
    summary_lines,
    visible,
)


def test_a_verdict_is_a_sentence_with_its_numbers_and_its_words_are_explained(comparison):
    made = comparison(budgets=["steps"])
    lines = summary_lines(made)
    assert lines[0] == (
        "merged is equivalent to standard within 0.02 nats per token: +0.005, 95 % interval "
        "+0.002 to +0.008, 5 seeds."
    )
    assert lines[1].startswith("no-out-proj is worse than standard: +0.038 nats per token, 95 %")
    assert meanings_text(made) == (
        "Equivalent: the difference is shown to be smaller than the margin; "
        "worse: the loss is higher, whatever the margin."
    )


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({}, ", 5 seeds; a new comparison with about 23 seeds would decide."),
        (
            {"below_margin": 0.876},
            "would decide; it is below 0.02 nats per token with a probability of 88 %.",
        ),
        (
            {"interval": (0.01, 0.2), "p_holm": 0.07},
            "5 seeds; corrected for all arms, p is 0.070; a new comparison with about 23 seeds "
            "would decide.",
        ),
    ],
    ids=["how many seeds would decide", "how probable it is", "an interval without 0"],
)
def test_an_undecided_arm_is_told_what_would_decide(comparison, facts, said):
    made = comparison(budgets=["seconds"])
    verdict = replace(made.budgets[0].verdicts["no-value"], **facts)
    verdicts = {**made.budgets[0].verdicts, "no-value": verdict}
    lines = summary_lines(replace(made, budgets=(replace(made.budgets[0], verdicts=verdicts),)))
    assert lines[2].startswith("no-value against standard is undecided: ")
    assert lines[2].endswith(said)


def test_other_budgets_follow_in_short(comparison):
    found = summary_lines(comparison(budgets=["steps", "seconds"]))[1]
    assert found.startswith("With equal steps, no-out-proj is worse than standard: +0.038")
    assert found.endswith(" Worse with equal training time (+0.067).")


@pytest.mark.parametrize(
    ("delta", "decimals"), [(0.02, 3), (0.5, 3), (0.004, 4), (0.0001, 5), (0.0, 3), (2.0, 3)]
)
def test_decimals_show_a_tenth_of_delta(delta, decimals):
    assert places(delta) == decimals


@pytest.mark.parametrize(
    ("value", "text"), [(-0.0001, "+0.000"), (0.0126, "+0.013"), (-0.5, "-0.500"), (None, "-")]
)
def test_a_difference_has_its_sign_and_zero_has_no_minus(value, text):
    assert signed(value, 3) == text


def test_what_is_no_number_or_cannot_be_seen_is_shown_as_a_dash_or_its_code(comparison):
    assert number(math.nan, 2) == between(None, 2) == probability(math.nan) == "-"
    assert visible("a\u202eb\x00\n龍") == "a\\u202eb\\x00\n龍"
    verdict = comparison(budgets=["seconds"]).budgets[0].verdicts["no-value"]
    assert seeds_needed(replace(verdict, seeds_needed=1000)) == "1000 or more"
    assert seeds_needed(replace(verdict, seeds_needed=None)) == "-"


@pytest.mark.parametrize(
    ("interval", "text"),
    [
        ((-0.0333, -0.00016), "-0.033 to -0.0002"),
        ((0.00004, 0.5), "+0.00004 to +0.500"),
        ((0.0, 1e-9), "+0.000 to +0.000"),
    ],
)
def test_no_end_of_an_interval_is_rounded_to_zero_that_is_beside_it(interval, text):
    assert between(interval, 3) == text


@pytest.fixture
def printed(comparison):
    """What is printed of a comparison; `is_terminal` wraps it at 60 columns."""

    def show(is_terminal: bool, **facts) -> str:
        screen = StringIO()
        setattr(screen, "isatty", lambda: is_terminal)  # noqa: B010 - a screen of this test
        console = Console(file=screen, width=60, force_terminal=is_terminal, highlight=False)
        print_comparison(comparison(**facts), console)
        return screen.getvalue()

    return show


def test_the_answer_comes_before_the_table_and_no_line_breaks_inside_a_number(printed):
    shown = printed(True, budgets=["steps"])
    first, *rest = shown.splitlines()
    assert first.startswith("\x1b[1mmerged is equivalent to standard within 0.02 nats per")
    assert any(line.startswith("equal steps: nats per token") for line in rest)
    assert all(len(Text.from_ansi(line).plain) <= 60 for line in shown.splitlines())
    assert "+0.002 to +0.008," in " ".join(Text.from_ansi(shown).plain.split())


def test_in_a_pipe_every_answer_is_one_line(printed, comparison):
    lines = printed(False).splitlines()
    assert lines[: len(summary_lines(comparison()))] == summary_lines(comparison())


def test_of_several_budgets_only_the_first_has_its_table(printed):
    shown = printed(False, budgets=["steps", "seconds"])
    assert shown.count("differences to standard") == 1
    assert "The report has the same for equal training time." in shown
