"""docs/answers.md, its numbers and the README's findings agree with the records."""

import json
import re
import shlex

import click
import pytest

from mlx_attn.cli import compare
from mlx_attn.cli.main import group
from mlx_attn.errors import ConfigError
from studies import answers
from studies.answers import NUMBERS, PAGE, ROOT
from studies.lengths import table

TEXT = PAGE.read_text(encoding="utf-8")
NUMBER = r"[+-]\d\.\d{3}(?: ±\d\.\d{3})?"


def test_records_page_figure_and_numbers_agree():
    assert [*answers.verify()] == []


def test_a_changed_number_is_noticed(tmp_path, monkeypatch):
    changed = tmp_path / "answers.md"
    changed.write_text(re.sub(NUMBER, "+9.999 ±0.001", TEXT, count=1), encoding="utf-8")
    monkeypatch.setattr(answers, "PAGE", changed)
    (complaint,) = answers.verify()
    assert "+9.999 ±0.001" in complaint


def test_the_page_fits_on_a_screen():
    assert len(TEXT.splitlines()) <= 60
    assert len(TEXT.split()) <= 900
    assert TEXT.index("answer-lengths.svg") < TEXT.index("\n## ")


def test_every_question_is_answered_in_bold_below_it_and_in_the_numbers():
    numbers = json.loads(NUMBERS.read_text(encoding="utf-8"))["questions"]
    assert [*numbers] == [*table().questions]
    for name, question in table().questions.items():
        assert re.search(rf"^## {re.escape(question.title)}\n\*\*", TEXT, re.MULTILINE)
        assert numbers[name]["answer"]
        assert numbers[name]["measured"] or question.holds_for


@pytest.mark.parametrize("question", [q for q in table().questions if q != "chapter5"])
def test_every_number_of_a_question_has_a_command_that_compare_understands(question):
    lines = [*answers.show(question)]
    assert len(lines) % 3 == 0
    for line in lines[2::3]:
        program, name, *arguments = shlex.split(line)
        assert (program, name) == ("mlx-attn", "compare")
        parent = click.Context(group, **group.context_settings)
        context = compare.command.make_context(name, arguments, parent)
        assert context.params["start"] == "book"


def test_the_lowest_losses_of_chapter_5_are_those_of_the_page():
    lines = [*answers.show("chapter-5")]
    assert len(lines) == 3
    assert all(line.split()[1] in TEXT for line in lines)


def test_an_unknown_question_is_refused_with_the_nearest_name():
    with pytest.raises(ConfigError, match="query"):
        list(answers.show("querry"))


def test_the_readme_s_findings_are_on_the_page():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (found,) = re.findall(r"## What we found\n(.+?)\n## ", readme, re.DOTALL)
    said = re.findall(NUMBER, found)
    assert len(said) >= 5
    assert [number for number in said if number not in TEXT] == []
    (of_sizes,) = re.findall(r"With 0\.8 M parameters: (.+?)\.\n", found)
    assert of_sizes in TEXT


def test_the_package_s_numbers_round_to_those_of_the_page():
    questions = json.loads(NUMBERS.read_text(encoding="utf-8"))["questions"]
    rows = [row for one in questions.values() for row in one["measured"]]
    long = [row for row in rows if row["tokens_per_parameter"] >= answers.ENOUGH]
    assert len(long) >= 7
    assert [row for row in long if f"{row['difference']:+.3f} ±" not in TEXT] == []
