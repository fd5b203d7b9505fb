"""A withdrawn word is printed with its number, and no longer answers; its study asked for it."""

import pytest

from mlx_attn.errors import RunError
from studies import FOLLOW_UPS
from studies.findings import WITHDRAWN, Withdrawal, findings, withdraw, withdrawals
from studies.follow_ups import follow_up
from studies.study import the_study
from studies.tables import overview
from studies.tests.conftest import ANSWERS

STUDIES = {ANSWERS: the_study(), **{ANSWERS / name: follow_up(name) for name in FOLLOW_UPS}}
LISTED = [folder for folder in STUDIES if withdrawals(folder)]
NO_QUERY = [Withdrawal(arm="no-query", worlds=("near",), reason="so")]


def test_a_withdrawn_word_is_no_answer_and_its_number_stays(study, trained):
    before = findings(study, trained(study, effects={"no-query": 0.1}))
    after = withdraw(before, NO_QUERY)
    answers = {(f.contrast.arm, f.world): f.answer for f in after}
    assert answers["no-query", "near"] == WITHDRAWN
    assert WITHDRAWN not in {answers["no-query", "far"], answers["no-key", "near"]}
    assert [f.verdict for f in after] == [f.verdict for f in before]
    assert "withdrawn (worse at 10 steps): +0.0" in overview(study, after)


def test_a_contrast_without_a_word_has_none_to_withdraw(study):
    assert WITHDRAWN not in {f.answer for f in withdraw(findings(study, {}), NO_QUERY)}


def test_a_folder_that_lists_none_has_none(tmp_path):
    assert withdrawals(tmp_path) == ()


def test_a_list_with_an_unknown_key_is_refused(tmp_path):
    (tmp_path / "withdrawn.toml").write_text('[[words]]\narm = "merged"\nworld = "near"\n')
    with pytest.raises(RunError, match=r"withdrawn\.toml: damaged"):
        withdrawals(tmp_path)


def test_words_of_three_studies_were_withdrawn():
    assert len(LISTED) == 3


@pytest.mark.parametrize("folder", LISTED, ids=lambda folder: folder.name)
def test_every_withdrawn_word_is_one_of_its_study(folder):
    asked = {(contrast.arm, world) for _, contrast, world in STUDIES[folder].asked()}
    assert {(row.arm, world) for row in withdrawals(folder) for world in row.worlds} <= asked
