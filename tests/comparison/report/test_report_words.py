"""How numbers and verdicts are put into words."""

import math
from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console
from rich.text import Text

from mlx_attn.cli.output import emit
from mlx_attn.comparison.show import (
    between,
    comparison_parts,
    meanings_text,
    number,
    places,
    probability,
    signed,
    summary_lines,
    visible,
)


def test_a_verdict_is_a_sentence_with_its_numbers_and_its_words_are_explained(comparison):
    made = comparison(budgets=["steps"])
    lines = summary_lines(made)
    assert lines[0] == (
        "merged is equivalent to standard within 0.02 nats per token: +0.005, 95 % interval "
        "-0.001 to +0.012, 5 seeds."
    )
    assert lines[1].startswith("no-out-proj is worse than standard: +0.038 nats per token, 95 %")
    assert meanings_text(made) == (
        "Equivalent: the difference is shown to be smaller than the margin; "
        "worse: the loss is higher, whatever the margin."
    )


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({}, ", 5 seeds; a new comparison with about 22 seeds would decide."),
        ({"seeds_needed": 1000}, "a new comparison with about 1000 or more seeds would decide."),
        (
            {"below_margin": 0.876},
            "would decide; it is below 0.02 nats per token with a probability of 88 %.",
        ),
        (
            {"interval": (0.01, 0.2), "p_holm": 0.07},
            "5 seeds; corrected for all arms, p is 0.070; a new comparison with about 22 seeds "
            "would decide.",
        ),
    ],
    ids=["how many seeds would decide", "too many", "how probable it is", "no 0 in the interval"],
)
def test_an_undecided_arm_is_told_what_would_decide(comparison, facts, said):
    made = comparison(budgets=["seconds"])
    verdict = replace(made.budgets[0].verdicts["no-value"], **{"below_margin": None, **facts})
    verdicts = {**made.budgets[0].verdicts, "no-value": verdict}
    lines = summary_lines(replace(made, budgets=(replace(made.budgets[0], verdicts=verdicts),)))
    assert lines[2].startswith("no-value against standard is undecided: ")
    assert lines[2].endswith(said)


def test_other_budgets_follow_in_short(comparison):
    found = summary_lines(comparison(budgets=["steps", "seconds"]))[1]
    assert found.startswith("With equal steps, no-out-proj is worse than standard: +0.038")
    assert found.endswith(" Worse with equal training time (+0.067).")


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
        (signed(-0.5, 3), "-0.500"),
        # No end of an interval is rounded to zero that is beside it.
        (between((-0.0333, -0.00016), 3), "-0.033 to -0.0002"),
        (between((0.00004, 0.5), 3), "+0.00004 to +0.500"),
        (between((0.0, 1e-9), 3), "+0.000 to +0.000"),
        (visible("a\u202eb\x00\n龍"), "a\\u202eb\\x00\n龍"),
    ],
)
def test_numbers_and_names_are_shown_so_that_nothing_misleads(shown, text):
    assert shown == text
    assert number(math.nan, 2) == between(None, 2) == probability(None) == signed(None, 3) == "-"


@pytest.fixture
def printed(comparison, monkeypatch):
    """What is printed of a comparison; `is_terminal` wraps it at 60 columns."""

    def show(is_terminal: bool, **facts) -> str:
        screen = StringIO()
        setattr(screen, "isatty", lambda: is_terminal)  # noqa: B010 - a screen of this test
        console = Console(file=screen, width=60, force_terminal=is_terminal, highlight=False)
        monkeypatch.setattr("mlx_attn.ui.terminal.stdout_console", lambda: console)
        emit({}, False, lambda: comparison_parts(comparison(**facts)))
        return screen.getvalue()

    return show


def test_the_answer_comes_before_the_table_and_no_line_breaks_inside_a_number(printed):
    shown = printed(True, budgets=["steps"])
    first, *rest = shown.splitlines()
    assert first.startswith("\x1b[1mmerged is equivalent to standard within 0.02 nats per")
    assert any(line.startswith("equal steps: nats per token") for line in rest)
    assert all(len(Text.from_ansi(line).plain) <= 60 for line in shown.splitlines())
    assert "-0.001 to +0.012," in " ".join(Text.from_ansi(shown).plain.split())


def test_in_a_pipe_every_answer_is_one_line(printed, comparison):
    lines = printed(False).splitlines()
    assert lines[: len(summary_lines(comparison()))] == summary_lines(comparison())


def test_of_several_budgets_only_the_first_has_its_table(printed):
    shown = printed(False, budgets=["steps", "seconds"])
    assert shown.count("differences to standard") == 1
    assert "The report has the same for equal training time." in shown
