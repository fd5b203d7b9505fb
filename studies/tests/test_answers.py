"""docs/answers.md says what the committed records say, and these are whole."""

import re
from pathlib import Path

from studies import FOLLOW_UPS
from studies.answers_page import AnswersPage
from studies.identities import IDENTITIES
from studies.page import verify
from studies.study import the_study
from studies.tables import SURE

ROOT = Path(__file__).parents[2]
ANSWERS = ROOT / "docs" / "answers"
SHORT = (ROOT / "docs" / "answers.md").read_text(encoding="utf-8")
PAGE = (ANSWERS / "record.md").read_text(encoding="utf-8")


def test_registration_records_and_page_agree():
    assert [*verify(the_study(), ANSWERS, AnswersPage)] == []


def test_every_figure_is_on_one_of_the_pages_and_those_of_answers_beside_them():
    figures = {file.name for file in (ANSWERS / "figures").glob("*")}
    of_answers = {name for name in figures if name.startswith("answer-")}
    assert {*re.findall(r"\]\(\./figures/([^)]+)\)", PAGE)} == figures - of_answers
    assert of_answers <= {*re.findall(r"\]\(answers/figures/([^)]+)\)", SHORT)} <= figures


def test_every_question_has_its_place_and_says_how_to_ask_it_again():
    named = {*re.findall(r"^    mlx-attn claims run --question (\S+)$", PAGE, re.MULTILINE)}
    assert {*the_study().questions} - {"instrument"} == named
    besides = re.findall(r"^    mlx-attn claims run --study (\S+)$", PAGE, re.MULTILINE)
    assert besides == [*FOLLOW_UPS]


def test_the_checks_of_the_page_are_checks_that_there_are():
    named = re.findall(r"^    mlx-attn claims check (.+)$", PAGE, re.MULTILINE)
    assert {name for line in named for name in line.split()} <= set(IDENTITIES)


def test_the_answers_fit_on_120_lines_and_each_has_a_picture_a_certainty_a_length_and_a_command():
    assert len(SHORT.splitlines()) <= 120
    questions = [part for part in SHORT.split("\n## ")[1:] if part.split("\n")[0].endswith("?")]
    assert len(questions) == 10
    for question in questions:
        assert "](answers/figures/" in question
        assert "`mlx-attn claims run --" in question
        assert f"| {SURE} |" in question or "*How sure:*" in question
        assert f"| {SURE} |" in question or "*At what length:*" in question
