"""docs/answers.md says what the committed findings say, and these are whole."""

import importlib.util
import re
from pathlib import Path

import pytest

from mlx_attn.comparison.claim import CLAIMS

ROOT = Path(__file__).parents[2]
ANSWERS = ROOT / "docs" / "answers"


def regenerate():
    spec = importlib.util.spec_from_file_location("regenerate", ANSWERS / "regenerate.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def found():
    return regenerate().findings()


@pytest.fixture(scope="module")
def page():
    return (ROOT / "docs" / "answers.md").read_text(encoding="utf-8")


def contests(found):
    return [finding for finding in found.values() if finding["arms"]]


def test_the_page_is_what_the_findings_make_of_the_template(found, page):
    assert page == regenerate().render(found)


def test_every_claim_was_tested(found):
    assert set(found) == set(CLAIMS)


def test_the_findings_are_of_the_claims_as_they_are(found):
    for name, finding in found.items():
        assert finding["statement"] == CLAIMS[name].statement
        assert finding["source"] == CLAIMS[name].source


def test_the_control_against_itself_is_never_better_or_worse(found):
    words = {finding["claim"]: finding["noise"]["word"] for finding in contests(found)}
    assert set(words.values()) <= {"equivalent", "undecided"}


def test_every_difference_rests_on_all_seeds(found):
    for finding in contests(found):
        for arms in finding["arms"].values():
            verdicts = [arm["verdict"] for arm in arms if arm["verdict"]]
            assert all(len(v["differences"]) == finding["seeds"] for v in verdicts)


def test_a_finding_s_mean_is_that_of_its_differences(found):
    for finding in contests(found):
        for arms in finding["arms"].values():
            for verdict in (arm["verdict"] for arm in arms if arm["verdict"]):
                mean = sum(verdict["differences"]) / len(verdict["differences"])
                assert verdict["mean"] == pytest.approx(mean, abs=1e-12)


def test_every_figure_of_the_page_is_there(page):
    figures = re.findall(r"\]\(answers/(figures/[^)]+)\)", page)
    assert figures
    assert all((ANSWERS / figure).is_file() for figure in figures)


def test_every_question_says_how_to_ask_it_again(page):
    for question in re.split(r"^## (?=Q\d)", page, flags=re.MULTILINE)[1:]:
        assert re.search(r"^    mlx-attn (claims run|probe) ", question, re.MULTILINE), question[
            :60
        ]


def test_the_commands_of_the_page_name_claims_that_there_are(page):
    named = re.findall(r"^    mlx-attn claims run (.+)$", page, re.MULTILINE)
    assert {name for line in named for name in line.split()} <= set(CLAIMS)
