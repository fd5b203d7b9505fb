"""The report as a page: its contents, and that it loads nothing and runs no script."""

import re
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from mlx_attn.comparison.figures import curves_figure, forest_figure
from mlx_attn.comparison.judging import judge_solving
from mlx_attn.comparison.report import as_html
from mlx_attn.comparison.result import Solving

NASTY = '</title></script><script>alert(1)</script><img src=x onerror="alert(2)">\u202e\x00\ud800'


LOADED = r"""<script|<link|\b(?:src|href)=(?!["'](?:#|data:))|url\(http|@import"""
"""All that a browser would fetch for a page."""


def tags(name: str, page: str) -> list[str]:
    """The elements of a page by their opening tags."""
    return re.findall(rf"<{name}\b[^>]*>", page)


def test_the_answer_is_first_figures_have_a_text_alternative_and_nothing_is_loaded(comparison):
    text = as_html(comparison())
    assert text.index("merged is the same as standard within 0.02") < text.index("<table")
    levels = [int(tag[2]) for tag in tags(r"h\d", text)]
    assert levels[:2] == [1, 2]
    assert all(after <= before + 1 for before, after in pairwise(levels))
    images = [tag for tag in tags("div", text) if 'role="img"' in tag]
    assert len(images) == 2
    assert all(re.search(r'aria-label="\w', tag) for tag in (*images, *tags("table", text)))
    assert re.findall(LOADED, text, re.IGNORECASE) == []
    assert """content="default-src 'none'; style-src 'unsafe-inline'\"""" in tags("meta", text)[1]


def test_curves_are_subtracted_at_the_steps_that_both_have(comparison):
    given = comparison()
    control, *others = given.arms
    cut = [
        replace(arm, trainings=tuple(replace(t, curve=t.curve[1:]) for t in arm.trainings))
        for arm in others
    ]
    axis = curves_figure(replace(given, arms=(control, *cut)), "val_loss").axes[1]
    assert [np.array(line.get_xdata()).tolist() for line in axis.lines[-2:]] == [[10.0], [0, 1]]


def test_markup_in_names_and_settings_is_text(comparison):
    facts = dict.fromkeys(("name", "question", "command"), NASTY)
    arms = ["standard", NASTY.rstrip("\ud800"), "$x_1$"]  # a training's file holds no surrogate
    text = as_html(comparison(arms, settings={NASTY: NASTY}, **facts))
    assert not re.search("<script|<img", text)
    assert "&lt;/title&gt;&lt;/script&gt;" in text
    assert not {"\u202e", "\x00", "\ud800"} & set(text)


def test_every_seed_is_drawn_in_the_forest_plot_and_printed(no_figures, comparison):
    made = comparison(seeds=4)
    drawn = [np.array(line.get_xdata()) for line in forest_figure(made).axes[0].lines]
    # The line at zero; for each of three arms its seeds, its interval and its mean.
    assert [len(one) for one in drawn] == [2, *(3 * [4, 2, 1])]
    means = [verdict.mean for verdict in made.verdicts.values()]
    assert [one[0] for one in drawn if len(one) == 1] == pytest.approx(means)
    page = as_html(made)
    differences = [d for verdict in made.verdicts.values() for d in verdict.differences]
    assert all(f"<td>{difference:+.3f}</td>" in page for difference in differences)


def test_the_label_of_the_axis_is_whole_beside_long_names(comparison):
    name = "the standard form of the book with eight heads"
    figure = forest_figure(comparison([name, f"{name} of width 8"]))
    figure.draw_without_rendering()
    drawn = figure.get_tightbbox()
    assert 0 <= drawn.x0 < drawn.x1 <= figure.get_figwidth()


def test_tasks_show_accuracies_and_solved_seeds_and_no_bits(comparison):
    def task(training, share):
        curve = tuple(replace(point, accuracy=share) for point in training.curve)
        return replace(training, accuracy=share, curve=curve, bits_per_byte=None)

    made = comparison(arms=["standard", "merged"], seeds=2)
    arms = tuple(
        replace(arm, trainings=tuple(map(task, arm.trainings, shares)))
        for arm, shares in zip(made.arms, [(1.0, 0.995), (0.4, 1.0)], strict=True)
    )
    solving = {arm.arm: Solving.of([one.steps_to_solve for one in arm.trainings]) for arm in arms}
    text = as_html(replace(made, arms=arms, solving=judge_solving(solving)))
    assert all(f"<td>{cell}</td>" in text for cell in ("2 of 2", "1 of 2", "70.0 %"))
    assert "share predicted right" in text
    assert "bits per byte" not in text


@pytest.mark.parametrize(
    ("choices", "said"),
    [
        ({"arms": ["standard", "merged-both"]}, ">worse</strong> merged-both is w"),
        ({"seeds": 1}, "1 seed, too few for an interval"),
        ({"tunings": (), "delta": 0.0}, "Through training"),
    ],
)
def test_what_is_not_there_is_left_out_or_said_and_little_can_be_drawn(comparison, choices, said):
    assert said in as_html(comparison(**{"arms": ["standard", "x"], "seeds": 2, **choices}))
