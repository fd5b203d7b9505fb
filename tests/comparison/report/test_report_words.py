"""How numbers and verdicts are put into words, and shown in a terminal."""

from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from mlx_attn.comparison.show import answer_of, comparison_parts, notes_of
from mlx_attn.comparison.tables import between, interval_name, number, places, signed


def test_a_verdict_is_a_sentence_with_its_numbers(comparison):
    made = comparison()
    same, worse, unknown, diverged = (answer_of(made, arm)[1] for arm in made.judged)
    notes = notes_of(made)
    assert same.startswith("merged is the same as standard within 0.02 nats per token: +0.00")
    assert worse.startswith("no-out-proj is worse than standard: +0.1")
    assert " nats per token on average, 95 % interval +0.1" in worse
    assert unknown.startswith("whether no-value is better or worse than standard is not known: ")
    assert unknown.endswith(" seeds would decide.")
    assert notes[0].startswith("Branches start at zero here")
    assert notes[1].startswith("standard: the best learning rate is the last one tried")
    assert diverged == f"merged-both is worse than standard: {made.diverged['merged-both']}."
    told = notes_of(replace(made, reference="merged-both"))
    assert told[-1] == "merged-both has no result: with seed 0 it diverged: loss nan at step 3."


def test_an_arm_whose_settings_change_nothing_is_told_to_have_no_effect(comparison):
    made = comparison(["standard", "merged"])
    same = replace(made.verdicts["merged"], differences=(0.0,) * 5, mean=0.0)
    _, told = answer_of(replace(made, verdicts={"merged": same}), "merged")
    assert told.startswith("merged computes exactly what standard does, with each of 5 seeds: ")
    assert told.endswith("what was changed has no effect here.")


def test_an_arm_that_reads_more_tokens_than_the_control_is_told(comparison):
    made = comparison(["standard", "merged"])
    control, arm = made.arms
    longer = replace(arm, trainings=tuple(replace(one, tokens=250) for one in arm.trainings))
    told = notes_of(replace(made, arms=(control, longer)))
    assert "merged is trained on 2.5 times the control's tokens." in told


def test_numbers_are_shown_so_that_nothing_misleads():
    assert [places(delta) for delta in (0.5, 0.004, 0.0001, 1e-300, 0.0)] == [3, 4, 5, 9, 3]
    # A difference has a sign; zero is never negative.
    assert [signed(-0.0001, 3), signed(0.0126, 3)] == ["+0.000", "+0.013"]
    # An end of an interval near zero is not rounded to zero.
    assert between((-0.0333, -0.00016), 3) == "-0.033 to -0.0002"
    assert number(None, 2) == between(None, 2) == "-"
    # Nothing is certain.
    found = [interval_name(share) for share in (0.95, 0.999, 1 - 1e-9)]
    assert found == ["95 % interval", "99.9 % interval", "99.9999999 % interval"]


@pytest.mark.parametrize("width", [50, 60, 80])
def test_a_terminal_shows_the_answers_first_and_every_name_and_number(comparison, width):
    screen, made = StringIO(), comparison()
    Console(file=screen, width=width).print(*comparison_parts(made), sep="\n")
    lines, shown = screen.getvalue().splitlines(), " ".join(screen.getvalue().split())
    assert shown.startswith("merged is the same as standard within 0.02")
    assert all(word in shown for word in ("the same", "worse", "not known"))
    assert all(f"{arm.params:,}" in shown for arm in made.arms)
    for arm, verdict in made.verdicts.items():
        assert sum(line.startswith(arm) for line in lines) >= 3  # tables
        assert between(verdict.interval, 3) in shown
        assert all(f"{difference:+.3f}" in shown for difference in verdict.differences)
