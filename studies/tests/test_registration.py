"""A study is written down before it is trained, and a change of it is found, or has a reason."""

import json

import msgspec
import pytest

from mlx_attn.errors import RunError
from studies.answers_page import AnswersPage
from studies.page import verify
from studies.registration import check_registered, read_registration
from studies.study import digest_of, study_from
from studies.tests.conftest import register


def test_a_study_that_changed_after_its_registration_is_found(study, tables, tmp_path):
    register(study, tmp_path)
    tables["worlds"]["near"]["margin"] = 0.1
    with pytest.raises(RunError, match=r"worlds\.near\.margin changed"):
        next(verify(study_from(tables), tmp_path, AnswersPage))


def test_a_registration_changed_by_hand_is_found(study, tmp_path):
    register(study, tmp_path)
    file = tmp_path / "registration.json"
    file.write_text(file.read_text().replace('"margin":0.03', '"margin":0.3', 1))
    with pytest.raises(RunError, match="changed after it was registered"):
        read_registration(tmp_path)


def test_a_registration_with_an_empty_key_of_earlier_versions_is_that_of_the_study(study, tmp_path):
    _write_with_alternatives(register(study, tmp_path), tmp_path, {})
    assert check_registered(study, tmp_path).study == study


def test_a_registration_that_an_earlier_version_alone_can_ask_is_refused(study, tmp_path):
    _write_with_alternatives(register(study, tmp_path), tmp_path, {"merged": [{"lr": 1}]})
    with pytest.raises(RunError, match="alternatives"):
        check_registered(study, tmp_path)


def _write_with_alternatives(registration, folder, alternatives):
    """The registration as it was written when an arm could have settings tried beside its own."""
    written = msgspec.to_builtins(registration)
    written["study"]["worlds"]["near"]["alternatives"] = alternatives
    written["digest"] = digest_of(written["study"])
    (folder / "registration.json").write_text(json.dumps(written))


def test_without_a_registration_there_is_no_page(study, tmp_path):
    with pytest.raises(RunError, match="the study was never registered"):
        next(verify(study, tmp_path, AnswersPage))
