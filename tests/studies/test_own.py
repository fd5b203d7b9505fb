"""The study's questions on a text of one's own."""

import pytest
from msgspec.structs import replace

from mlx_attn.errors import ConfigError, RunError
from mlx_attn.training.config import resolve
from mlx_attn_studies.book import RecordBook
from mlx_attn_studies.follow_ups import follow_up
from mlx_attn_studies.page import path_of_page, verify, write_page
from mlx_attn_studies.registration import register, register_own, study_of
from mlx_attn_studies.study import OWN, own_study, the_study

STORY = "the red cat sat on a mat. an old dog sat by the wet door. " * 20


@pytest.fixture
def notes(tmp_path):
    file = tmp_path / "notes.txt"
    file.write_text(STORY)
    return str(file)


def test_all_that_means_the_same_elsewhere_is_asked_of_it(notes):
    asked = [contrast.arm for _, contrast, _ in own_study(notes, "", 0.01, 5).asked()]
    everywhere = {c.arm for _, c, _ in the_study().asked() if not c.worlds}
    assert everywhere | {"one-head-merged", "one-head-no-query"} == {*asked}


def test_with_rope_forms_that_are_one_function_elsewhere_are_left_out(notes, monkeypatch):
    monkeypatch.setattr("mlx_attn_studies.study.DEFAULTS", {"preset": "nano", "position": "rope"})
    asked = {contrast.arm for _, contrast, _ in own_study(notes, "", 0.01, 5).asked()}
    assert "one-head-merged" not in asked
    assert "merged" in asked


def test_the_margin_and_the_number_of_seeds_are_one_s_own(notes):
    study = own_study(notes, "tiny", 0.02, 7, ["query"])
    assert (study.worlds[OWN].margin, len(study.protocol.verdict_seeds)) == (0.02, 7)
    assert [*study.questions] == ["query"]


def test_every_arm_can_be_trained_at_the_preset_s_sizes_and_starts_as_in_the_book(notes):
    study = own_study(notes, "macbook", 0.02, 3)
    for name in study.arms:
        settings = resolve(study.trial(OWN, name, 0, 1.0).settings)
        assert settings.model_config(32).start == "book"
        assert settings.text.data == notes


@pytest.mark.parametrize(
    ("preset", "complaint"),
    [("book", "not bounded by steps"), ("speedrun", "has the attention local-global")],
)
def test_a_preset_that_the_questions_do_not_fit_is_refused(notes, preset, complaint):
    with pytest.raises(ConfigError, match=complaint):
        own_study(notes, preset, 0.01, 5)


def test_an_unknown_question_is_refused_with_the_nearest(notes):
    with pytest.raises(ConfigError, match="did you mean 'query'"):
        own_study(notes, "", 0.01, 5, ["querry"])


def test_its_folder_says_which_study_it_is_of(notes, tmp_path):
    study = own_study(notes, "", 0.01, 5, ["query"])
    register(study, tmp_path / "answers", 0)
    assert study_of(tmp_path / "answers") == study
    register(the_study(), tmp_path / "others", 0)
    assert study_of(tmp_path / "others") == the_study()


def test_its_page_is_made_of_its_records_and_agrees_with_them(notes, tmp_path, trained):
    study, folder = own_study(notes, "", 0.01, 5, ["query"]), tmp_path / "answers"
    register(study, folder, 0)
    RecordBook(folder / "records").add(*trained(study).values())
    write_page(study, folder)
    assert "3 of 3 contrasts are finished, in own" in path_of_page(folder).read_text()
    assert (folder / "figures" / "query.svg").exists()
    assert [*verify(study, folder)] == []


def test_a_folder_with_trainings_keeps_its_study(notes, tmp_path, trained):
    study, folder = own_study(notes, "", 0.01, 5, ["query"]), tmp_path / "answers"
    register_own(study, folder)
    RecordBook(folder / "records").add(*trained(study, most=3).values())
    assert register_own(study, folder).digest == study.digest
    with pytest.raises(RunError, match="another study is registered there, with 3 trainings"):
        register_own(own_study(notes, "", 0.02, 5, ["query"]), folder)


def test_a_new_study_of_one_s_own_text_registers_the_test_that_compare_uses(notes):
    study = own_study(notes, "", 0.01, 5, ["query"])
    assert study.protocol.test == "moderated-t"
    assert sum(line.startswith("p-values") for line in study.protocol.analysis) == 1


@pytest.mark.parametrize(
    ("study", "test"),
    [
        (the_study, "worst-of-five"),
        (lambda: follow_up("replication"), "worst-of-five"),
        (lambda: follow_up("horizon"), "shrunk-t"),
    ],
)
def test_studies_are_judged_by_the_test_that_they_registered(study, test):
    assert study().protocol.test == test


def test_a_study_with_trainings_keeps_its_test(notes, tmp_path, monkeypatch):
    new, folder = own_study(notes, "", 0.01, 5, ["query"]), tmp_path / "answers"
    old = replace(new, protocol=replace(new.protocol, analysis=the_study().protocol.analysis))
    register(old, folder, 0)
    monkeypatch.setattr("mlx_attn_studies.registration.RecordBook", _BookOfOne)
    assert register_own(new, folder).study.protocol.test == "worst-of-five"


class _BookOfOne:
    """The records of a folder with one training."""

    def __init__(self, folder):
        self.records = {"key": None}
