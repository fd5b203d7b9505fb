"""`mlx-attn answers` prints the file's numbers, and commands that ask the same."""

import json
import re
import shlex

import pytest

from mlx_attn.cli import answers
from tests.cli.conftest import done

QUESTIONS = answers.QUESTIONS
NUMBER = r"[+-]\d\.\d{3}"


def test_without_a_question_there_is_a_line_for_each(run_command):
    lines = run_command("answers").stdout.splitlines()
    assert [line.split()[0] for line in lines] == [*QUESTIONS]


@pytest.mark.parametrize("name", QUESTIONS)
def test_the_numbers_on_the_screen_are_those_of_the_file(name, run_command):
    shown = run_command("answers", name).stdout
    assert QUESTIONS[name]["answer"] in shown
    lines = [line for line in shown.splitlines() if re.search(rf"{NUMBER} to {NUMBER}", line)]
    assert max(map(len, lines), default=0) <= 80
    printed = [number for line in lines for number in re.findall(NUMBER, line)]
    measured = [(row["difference"], *row["interval"]) for row in QUESTIONS[name]["measured"]]
    assert printed == [f"{number:+.3f}" for numbers in measured for number in numbers]


@pytest.mark.parametrize("name", QUESTIONS)
def test_the_command_of_an_answer_plans_a_comparison_from_the_book_s_start(
    name, workshop, run_command
):
    command = QUESTIONS[name]["compare"]
    assert command.startswith("mlx-attn compare ")
    assert " --start book " in command
    arguments = shlex.split(command.replace("FILE", "story.txt"))[1:]
    assert "standard" in done(run_command(*arguments, "--dry-run", "--json"))


@pytest.mark.parametrize("name", ["out_proj", "Out-Proj", "no-out-proj"])
def test_the_book_s_name_of_a_part_is_a_name_of_its_question(name, run_command):
    found = json.loads(run_command("answers", name, "--json").stdout)
    assert found == QUESTIONS["output"]
