"""The report as a page: what is in it and what is not."""

import re
from dataclasses import replace
from itertools import pairwise

import pytest

from mlx_attn.comparison.judging import judge_solving
from mlx_attn.comparison.report import as_html

NASTY = '</title></script><script>alert(1)</script><img src=x onerror="alert(2)">\u202e\x00\ud800'


def test_the_page_loads_nothing_and_its_references_lead_somewhere(page_elements, comparison):
    text, again = (as_html(comparison(arms=["standard", "merged"])) for _ in range(2))
    elements = page_elements(text)
    assert elements.loaded() == elements.all("script") == []
    assert elements.all("meta")[1]["content"] == "default-src 'none'; style-src 'unsafe-inline'"
    names = re.findall(r'\bid="([^"]+)"', text)
    used = set(re.findall(r'(?:href="#|url\(#|aria-labelledby=")([^")]+)', text))
    assert used <= set(names)
    assert text == again


def test_the_answer_is_first_headings_are_in_order_and_figures_have_a_text_alternative(
    page_elements, no_figures, comparison
):
    text = as_html(comparison())
    assert text.index("merged is the same as standard within 0.02") < text.index("<table")
    elements = page_elements(text)
    levels = [int(tag[1]) for tag, _ in elements.found if re.fullmatch(r"h\d", tag)]
    assert levels[:2] == [1, 2]
    assert all(after <= before + 1 for before, after in pairwise(levels))
    assert {cell.get("scope") for cell in elements.all("th")} == {"col", "row"}
    assert all(table["aria-label"] for table in elements.all("table"))
    images = [a for a in elements.all("div") if a.get("role") == "img"]
    assert len(images) == len(elements.all("svg")) == 2
    assert all(image["aria-label"] for image in images)


def test_markup_in_names_and_settings_is_text(page_elements, comparison):
    made = comparison(
        arms=["standard", NASTY, "$x_1$"],
        name=NASTY,
        question=NASTY,
        command=NASTY,
        settings={NASTY: NASTY},
        versions={"mlx": {NASTY: NASTY}},
    )
    text = as_html(made)
    assert page_elements(text).all("script") == page_elements(text).all("img") == []
    assert "&lt;/title&gt;&lt;/script&gt;" in text
    assert not {"\u202e", "\x00", "\ud800"} & set(text)


def test_tasks_show_accuracies_and_solved_seeds_and_no_bits(comparison):
    def task(training, share):
        curve = tuple(replace(point, accuracy=share) for point in training.curve)
        facts = {"bits_per_byte": None, "above_floor": None}
        return replace(training, accuracy=share, curve=curve, **facts)

    made = comparison(arms=["standard", "merged"], seeds=2)
    arms = tuple(
        replace(arm, trainings=tuple(map(task, arm.trainings, shares)))
        for arm, shares in zip(made.arms, [(1.0, 0.995), (0.4, 1.0)], strict=True)
    )
    steps = {arm.arm: [one.steps_to_solve for one in arm.trainings] for arm in arms}
    text = as_html(replace(made, arms=arms, solving=judge_solving(steps)))
    assert all(f"<td>{cell}</td>" in text for cell in ("2 of 2", "1 of 2", "70.0 %"))
    assert "share predicted right" in text
    assert "bits per byte" not in text


@pytest.mark.parametrize(
    ("choices", "said"),
    [
        ({"tunings": ()}, "How it was trained"),
        ({"question": ""}, "<h1>How does x compare with standard?</h1>"),
        ({"text": {"name": "a", "floor": None}}, "<td>none</td>"),
        ({"arms": ["standard"]}, "only one arm has a result"),
        ({"seeds": 1}, "1 seed, too few for an interval"),
        ({"points": 1}, "Through training"),
        ({"delta": 0.0}, "Differences"),
    ],
    ids=lambda choice: ",".join(choice) if isinstance(choice, dict) else "",
)
def test_what_is_not_there_is_left_out_or_said_and_little_can_be_drawn(comparison, choices, said):
    chosen = {"arms": ["standard", "x"], "seeds": 2, "points": 2, **choices}
    assert said in as_html(comparison(**chosen))
