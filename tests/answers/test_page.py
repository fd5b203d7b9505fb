"""The page is what registration and records make of it, and any digit that is not is found."""

import json
import shutil

import msgspec
import pytest

from mlx_attn.answers.book import RecordBook
from mlx_attn.answers.page import Contents, page_of, verify, write_page
from mlx_attn.answers.registration import check_registered, read_registration, register
from mlx_attn.answers.study import BESIDES, digest_of, study_from, the_study
from mlx_attn.errors import RunError

STUDY = the_study()


@pytest.fixture(scope="module")
def made(tmp_path_factory, trained):
    """A folder with the package's study, registered, one question of a world answered, its page."""
    folder = tmp_path_factory.mktemp("made") / "answers"
    register(STUDY, folder, 0, today="2026-01-02")
    book = RecordBook(folder / "records")
    book.add(*trained(STUDY, worlds=["tales"], questions=["heads"]).values())
    write_page(STUDY, folder)
    return folder


@pytest.fixture
def written(made, tmp_path):
    """A copy of it, that a test may change."""
    shutil.copytree(made.parent, tmp_path, dirs_exist_ok=True)
    return tmp_path / "answers"


def test_registration_records_and_page_agree(written):
    assert [*verify(STUDY, written)] == []


def test_the_page_says_what_is_finished_and_judges_nothing_else(written):
    page = page_of(written).read_text()
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
    write_page(STUDY, written)
    assert [*(written / "figures").iterdir()] == []


def test_a_digit_changed_in_the_page_is_found(written):
    page = page_of(written)
    text = page.read_text()
    row = next(line for line in text.splitlines() if line.startswith("| one-head | tales |"))
    page.write_text(text.replace(row, row.replace("1.00", "1.01", 1)))
    (complaint,) = verify(STUDY, written)
    assert "1.01" in complaint


def test_a_page_that_lacks_a_line_is_found(written):
    page = page_of(written)
    page.write_text("\n".join(page.read_text().splitlines()[:-1]))
    assert "lines, and the records make" in next(verify(STUDY, written))


def test_a_record_of_other_settings_than_its_key_says_is_found(written):
    book = RecordBook(written / "records")
    record = next(iter(book.records.values()))
    other = msgspec.structs.replace(record, seed=99)
    book.add(other.sealed())
    page_of(written).write_text(Contents.read(STUDY, written).text())
    (complaint,) = verify(STUDY, written)
    assert "seed 99" in complaint
    assert "is not that of its settings" in complaint


def test_a_record_of_an_arm_that_is_not_asked_for_is_found(written):
    book = RecordBook(written / "records")
    record = next(iter(book.records.values()))
    book.add(msgspec.structs.replace(record, key="0", arm="no-kye").sealed())
    assert any("unknown arm 'no-kye'" in line for line in verify(STUDY, written))


@pytest.fixture
def asked_besides(written, trained):
    """The same with the study of widths, of which width 32 is finished."""
    widths, known = the_study("widths"), RecordBook(written / "records").records
    register(widths, written / "widths", 0, today="2026-01-02")
    found = trained(widths, worlds=["width-32"])
    RecordBook(written / "widths" / "records").add(*(found[k] for k in {*found} - {*known}))
    write_page(STUDY, written)
    return written


def test_a_study_asked_besides_has_its_place_and_its_picture(asked_besides):
    page = page_of(asked_besides).read_text()
    assert (asked_besides / "figures" / "widths.svg").exists()
    row = next(
        line for line in page.splitlines() if line.startswith("| no-query | ") and "%" in line
    )
    protocol = the_study("widths").protocol
    searched = len(protocol.factors + protocol.refine) * len(protocol.tuning_seeds)
    wanted = 3 * len(protocol.verdict_seeds) + 3 * searched  # of control, reference and arm
    assert row.count(f"0 of {wanted} runs") == 2  # widths 64 and 128
    assert [*verify(STUDY, asked_besides)] == []


def test_every_study_asked_besides_has_its_questions_on_the_page(asked_besides, trained):
    for name in BESIDES:
        register(the_study(name), asked_besides / name, 0)
    chapter5 = trained(the_study("chapter5"))
    RecordBook(asked_besides / "chapter5" / "records").add(*chapter5.values())
    page = write_page(STUDY, asked_besides).read_text()
    titles = [q.title for name in BESIDES for q in the_study(name).questions.values()]
    assert all(f"### {title}\n" in page for title in titles)
    assert "of 8 single runs have the sign of the mean" in page
    assert (asked_besides / "figures" / "chapter5.svg").exists()


def test_a_record_of_it_with_other_settings_than_its_key_says_is_found(asked_besides):
    book = RecordBook(asked_besides / "widths" / "records")
    record = next(iter(book.records.values()))
    book.add(msgspec.structs.replace(record, seed=99).sealed())
    assert any("seed 99" in line for line in verify(STUDY, asked_besides))


def test_a_study_that_changed_after_its_registration_is_found(study, tables, tmp_path):
    register(study, tmp_path, 0)
    tables["worlds"]["near"]["margin"] = 0.1
    with pytest.raises(RunError, match=r"worlds\.near\.margin changed"):
        next(verify(study_from(tables), tmp_path))


def test_a_registration_changed_by_hand_is_found(study, tmp_path):
    register(study, tmp_path, 0)
    file = tmp_path / "registration.json"
    file.write_text(file.read_text().replace('"margin": 0.03', '"margin": 0.3', 1))
    with pytest.raises(RunError, match="changed after it was registered"):
        read_registration(tmp_path)


def test_a_registration_with_an_empty_key_of_earlier_versions_is_that_of_the_study(study, tmp_path):
    _write_with_alternatives(register(study, tmp_path, 0), tmp_path, {})
    assert check_registered(study, tmp_path).study == study


def test_a_registration_that_an_earlier_version_alone_can_ask_is_refused(study, tmp_path):
    _write_with_alternatives(register(study, tmp_path, 0), tmp_path, {"merged": [{"lr": 1}]})
    with pytest.raises(RunError, match="alternatives"):
        check_registered(study, tmp_path)


def _write_with_alternatives(registration, folder, alternatives):
    """The registration as it was written when an arm could have settings tried beside its own."""
    written = msgspec.to_builtins(registration)
    written["study"]["worlds"]["near"]["alternatives"] = alternatives
    written["digest"] = digest_of(written["study"])
    (folder / "registration.json").write_text(json.dumps(written))


def test_without_a_registration_there_is_a_way(study, tmp_path):
    with pytest.raises(RunError, match="`mlx-attn claims register` first"):
        next(verify(study, tmp_path))


def test_the_same_study_is_registered_once(study, tmp_path):
    assert register(study, tmp_path, 0, today="1") == register(study, tmp_path, 5, today="2")


def test_another_study_replaces_one_without_trainings(study, tables, tmp_path):
    register(study, tmp_path, 0)
    tables["worlds"]["near"]["margin"] = 0.1
    assert register(study_from(tables), tmp_path, 0).amendments == ()


def test_a_study_with_trainings_changes_for_a_reason_that_is_kept(study, tables, tmp_path):
    register(study, tmp_path, 0, today="1")
    tables["worlds"]["near"]["margin"] = 0.1
    changed = study_from(tables)
    with pytest.raises(RunError, match="say with --amend why"):
        register(changed, tmp_path, 7)
    (amendment,) = register(changed, tmp_path, 7, "it was too small", today="2").amendments
    assert (amendment.reason, amendment.records, amendment.digest) == (
        "it was too small",
        7,
        study.digest,
    )
