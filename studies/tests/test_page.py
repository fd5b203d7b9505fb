"""The page is what registration and records make of it, and any digit that is not is found."""

import json
import shutil

import msgspec
import pytest

from studies import FOLLOW_UPS
from studies.answers_page import AnswersPage, record_of
from studies.book import RecordBook
from studies.follow_ups import follow_up
from studies.identities import CHECKED
from studies.page import verify, write_page
from studies.study import the_study
from studies.tests.conftest import register

STUDY = the_study()


@pytest.fixture(scope="module")
def made(tmp_path_factory, trained):
    """A folder with the package's study, registered, one question of a world answered, its page."""
    folder = tmp_path_factory.mktemp("made") / "answers"
    register(STUDY, folder)
    book = RecordBook(folder / "records")
    book.add(*trained(STUDY, worlds=["tales"], questions=["heads"]).values())
    write_page(STUDY, folder, AnswersPage)
    return folder


@pytest.fixture
def written(made, tmp_path):
    """A copy of it, that a test may change."""
    shutil.copytree(made.parent, tmp_path, dirs_exist_ok=True)
    return tmp_path / "answers"


def test_registration_records_and_page_agree(written):
    assert [*verify(STUDY, written, AnswersPage)] == []


def test_the_page_says_what_is_finished_and_judges_nothing_else(written):
    page = record_of(written).read_text()
    assert f"2 of {len(STUDY.asked())} contrasts are finished, in tales" in page
    row = next(
        line for line in page.splitlines() if line.startswith("| one head is worse than four")
    )
    assert "does not hold" in row
    assert page.count("not finished") > 40


def test_a_finished_question_has_its_picture(written):
    names = sorted(file.name for file in (written / "figures").iterdir())
    assert names == ["heads.svg", "rates.svg"]


def test_a_picture_that_is_no_longer_shown_goes(written):
    (written / "figures" / "output.svg").write_text("<svg/>")
    (written / "records" / "tales.jsonl").unlink()
    write_page(STUDY, written, AnswersPage)
    assert [*(written / "figures").iterdir()] == []


def test_a_digit_changed_in_the_page_is_found(written):
    page = record_of(written)
    text = page.read_text()
    row = next(line for line in text.splitlines() if line.startswith("| one-head | tales |"))
    page.write_text(text.replace(row, row.replace("1.00", "1.01", 1)))
    (complaint,) = verify(STUDY, written, AnswersPage)
    assert "1.01" in complaint


def test_a_page_that_lacks_a_line_is_found(written):
    page = record_of(written)
    page.write_text("\n".join(page.read_text().splitlines()[:-1]))
    assert "lines, and the records make" in next(verify(STUDY, written, AnswersPage))


def test_a_figure_that_was_changed_or_deleted_is_found(written):
    figure = written / "figures" / "heads.svg"
    figure.write_text(figure.read_text() + "<!-- -->")
    (changed,) = verify(STUDY, written, AnswersPage)
    figure.unlink()
    (deleted,) = verify(STUDY, written, AnswersPage)
    assert "figures" in changed
    assert "figures" in deleted


def test_a_measured_number_that_the_page_does_not_print_is_found(written):
    shutil.copy("docs/answers/identities.json", written)
    write_page(STUDY, written, AnswersPage)
    file = written / CHECKED
    changed = json.loads(file.read_text())
    changed["merging-is-exact"]["numbers"]["unprinted"] = 1.0
    file.write_text(json.dumps(changed))
    (complaint,) = verify(STUDY, written, AnswersPage)
    assert CHECKED in complaint


def test_every_word_names_the_length_of_its_trainings(written):
    page = record_of(written).read_text()
    row = next(line for line in page.splitlines() if line.startswith("| one-head | tales |"))
    assert " at 300 steps |" in row


def test_a_record_of_other_settings_than_its_key_says_is_found(written):
    book = RecordBook(written / "records")
    record = next(iter(book.records.values()))
    other = msgspec.structs.replace(record, seed=99)
    book.add(other.sealed())
    write_page(STUDY, written, AnswersPage)
    (complaint,) = verify(STUDY, written, AnswersPage)
    assert "seed 99" in complaint
    assert "is not that of its settings" in complaint


def test_a_record_of_an_arm_that_is_not_asked_for_is_found(written):
    book = RecordBook(written / "records")
    record = next(iter(book.records.values()))
    book.add(msgspec.structs.replace(record, key="0", arm="no-kye").sealed())
    assert any("unknown arm 'no-kye'" in line for line in verify(STUDY, written, AnswersPage))


@pytest.fixture
def asked_besides(written, trained):
    """The same with the study of widths, of which width 32 is finished."""
    widths, known = follow_up("widths"), RecordBook(written / "records").records
    register(widths, written / "widths")
    found = trained(widths, worlds=["width-32"])
    RecordBook(written / "widths" / "records").add(*(found[k] for k in {*found} - {*known}))
    write_page(STUDY, written, AnswersPage)
    return written


def test_a_study_asked_besides_has_its_place_and_its_picture(asked_besides):
    page = record_of(asked_besides).read_text()
    assert (asked_besides / "figures" / "widths.svg").exists()
    row = next(
        line for line in page.splitlines() if line.startswith("| no-query | ") and "%" in line
    )
    protocol = follow_up("widths").protocol
    searched = len(protocol.factors + protocol.refine) * len(protocol.tuning_seeds)
    wanted = 3 * len(protocol.verdict_seeds) + 3 * searched  # of control, reference and arm
    assert row.count(f"0 of {wanted} runs") == 2  # widths 64 and 128
    assert [*verify(STUDY, asked_besides, AnswersPage)] == []


def test_every_study_asked_besides_has_its_questions_on_the_page(asked_besides, trained):
    for name in FOLLOW_UPS:
        register(follow_up(name), asked_besides / name)
    chapter5 = trained(follow_up("chapter5"))
    RecordBook(asked_besides / "chapter5" / "records").add(*chapter5.values())
    write_page(STUDY, asked_besides, AnswersPage)
    page = record_of(asked_besides).read_text()
    titles = [q.title for name in FOLLOW_UPS for q in follow_up(name).questions.values()]
    assert all(f"### {title}\n" in page for title in titles)
    assert "of 8 single runs have the sign of the mean" in page
    assert (asked_besides / "figures" / "chapter5.svg").exists()


def test_a_record_of_it_with_other_settings_than_its_key_says_is_found(asked_besides):
    book = RecordBook(asked_besides / "widths" / "records")
    record = next(iter(book.records.values()))
    book.add(msgspec.structs.replace(record, seed=99).sealed())
    assert any("seed 99" in line for line in verify(STUDY, asked_besides, AnswersPage))
