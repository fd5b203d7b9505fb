"""`mlx-attn claims`, run as a person runs it."""

import json
import re

import pytest

from mlx_attn.files import lock
from mlx_attn_studies import FOLLOW_UPS
from mlx_attn_studies.follow_ups import follow_up
from mlx_attn_studies.study import the_study
from tests.cli.conftest import done, refused

STUDIES = [the_study(), *map(follow_up, FOLLOW_UPS)]
QUESTIONS = [question for study in STUDIES for question in study.questions]


def test_the_list_has_every_question_and_needs_no_subcommand(run_command):
    found = json.loads(run_command("claims", "list", "--json").stdout)["questions"]
    assert list(found) == QUESTIONS
    assert run_command("claims").stdout == run_command("claims", "list").stdout


def test_a_question_is_shown_world_by_world_with_every_contrast_in_its_json(workshop, run_command):
    run_command("claims", "register")
    shown = run_command("claims", "show", "heads").stdout
    assert "python: not finished, 0 of 99 runs" in shown
    found = json.loads(run_command("claims", "show", "output", "--json").stdout)["findings"]
    assert len(found) == 6
    assert {row["answer"] for row in found} == {"not finished"}


def test_outside_a_clone_the_answers_of_the_packages_own_clone_are_shown(workshop, run_command):
    shown = run_command("claims", "show", "out_proj")  # the book's name of its part
    assert "\n  tales: undecided at 300 steps, +0." in shown.stdout
    assert "not finished" not in shown.stdout
    assert not (workshop / "runs").exists()


def test_a_contrast_that_was_asked_again_is_shown_with_its_new_seeds(workshop, run_command):
    shown = run_command("claims", "show", "alternatives").stdout
    first, again = re.findall(r".*worse at 600 steps, \+0\.0.*", shown)[:2]
    assert first.startswith("  shakespeare-600: does not hold: ")
    assert again.startswith("    again, with 6 other seeds: ")
    found = json.loads(run_command("claims", "show", "alternatives", "--json").stdout)
    assert {row["world"] for row in found["again"]} == {"shakespeare-600"}


def test_an_unknown_question_is_refused_with_the_nearest_of_all_studies(workshop, run_command):
    run_command("claims", "register")
    error = refused(run_command("claims", "show", "horizn"), 2)
    assert error == "Error: unknown question 'horizn': did you mean 'horizon'?\n"


def test_a_check_prints_and_keeps_what_it_measured(workshop, run_command):
    result = run_command("claims", "check", "merging-costs", "--out", "tested")
    assert "merging-costs: holds" in result.stdout
    kept = json.loads((workshop / "tested" / "identities.json").read_text())
    assert kept["merging-costs"]["numbers"]["heads"] == 12


def test_registered_then_wanted_then_written_then_verified(workshop, run_command):
    assert the_study().digest in run_command("claims", "register").stdout
    wanted = run_command("claims", "run", "--dry-run", "--world", "tales")
    assert "0 runs are there, 210 or more are wanted" in wanted.stderr
    assert run_command("claims", "page").stdout.strip() == "runs/answers.md"
    assert "0 records and page agree" in run_command("claims", "verify").stdout


@pytest.mark.parametrize("name", FOLLOW_UPS)
def test_a_page_can_be_written_with_one_study_asked_besides(workshop, run_command, name):
    run_command("claims", "register")
    run_command("claims", "register", "--study", name)
    done(run_command("claims", "page"))
    assert f"claims run --study {name}\n" in (workshop / "runs/answers/record.md").read_text()


def test_a_study_asked_besides_is_registered_and_run_in_a_folder_of_its_own(workshop, run_command):
    run_command("claims", "register", "--study", "widths")
    assert (workshop / "runs" / "answers" / "widths" / "registration.json").is_file()
    wanted = run_command("claims", "run", "--dry-run", "--study", "widths", "--world", "width-32")
    protocol, searched = follow_up("widths").protocol, 5  # arms with rates of their own
    first = searched * len(protocol.factors) * len(protocol.tuning_seeds)
    assert f"0 runs are there, {first} or more are wanted" in wanted.stderr


def test_a_page_that_is_not_written_yet_or_was_changed_fails(workshop, run_command):
    run_command("claims", "register")
    line, *_ = run_command("claims", "verify").stderr.splitlines()
    hint = "not written yet: 'mlx-attn claims page' makes it of the records"
    assert line == f"runs/answers.md: {hint}"
    run_command("claims", "page")
    page = workshop / "runs" / "answers" / "record.md"
    page.write_text(page.read_text().replace("0 trainings", "9 trainings"))
    result = run_command("claims", "verify")
    assert result.exit_code == 1
    assert "9 trainings" in result.stderr
    assert "1 thing of runs/answers does not agree" in result.stderr


def test_two_that_train_for_the_same_records_are_one_too_many(workshop, run_command):
    run_command("claims", "register")
    with lock(workshop / "runs" / "answers" / "records"):
        line = refused(run_command("claims", "run"), 1)
    assert "another process trains for these records" in line


def test_of_a_text_of_one_s_own_the_questions_are_registered_and_asked(workshop, run_command):
    (workshop / "notes.txt").write_text("the red cat sat on a mat. " * 40)
    own = ["--data", "notes.txt", "--question", "query", "--delta", "0.02", "--seeds", "3"]
    wanted = run_command("claims", "run", *own, "--dry-run")
    assert "0 runs are there, 105 or more are wanted" in wanted.stderr
    folder = ["-o", "runs/answers-notes"]
    again = run_command("claims", "run", *folder, "--dry-run")
    assert "105 or more" in again.stderr
    assert (
        "own: not finished, 0 of 72 runs" in run_command("claims", "show", "query", *folder).stdout
    )
    assert run_command("claims", "page", *folder).stdout.strip() == "runs/answers-notes.md"
    assert "page agree" in run_command("claims", "verify", *folder).stdout
