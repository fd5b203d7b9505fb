"""A word that was taken back is printed with its number, and no longer answers."""

import pytest

from mlx_attn.answers.findings import WITHDRAWN, findings
from studies import FOLLOW_UPS, follow_up, withdrawn
from studies.tables import overview
from studies.withdrawn import FIRST, Withdrawal, take_back, withdrawals


@pytest.fixture
def withdraws_no_query(monkeypatch):
    row = Withdrawal(arm="no-query", worlds=("near",), reason="so")
    monkeypatch.setattr(withdrawn, "withdrawals", lambda: {FIRST: (row,)})


def test_a_withdrawn_word_is_no_answer_and_its_number_stays(study, trained, withdraws_no_query):
    before = findings(study, trained(study, effects={"no-query": 0.1}))
    after = take_back(before, FIRST)
    answers = {(f.contrast.arm, f.world): f.answer for f in after}
    assert answers["no-query", "near"] == WITHDRAWN
    assert WITHDRAWN not in {answers["no-query", "far"], answers["no-key", "near"]}
    assert [f.verdict for f in after] == [f.verdict for f in before]
    assert "withdrawn (worse at 10 steps): +0.0" in overview(study, after)


def test_a_contrast_without_a_word_has_none_to_take_back(study, withdraws_no_query):
    assert WITHDRAWN not in {f.answer for f in take_back(findings(study, {}), FIRST)}


def test_every_word_that_is_taken_back_is_one_of_a_study():
    for name, rows in withdrawals().items():
        assert name == FIRST or name in FOLLOW_UPS
        if name != FIRST:
            asked = {(c.arm, world) for _, c, world in follow_up(name).asked()}
            assert {(row.arm, world) for row in rows for world in row.worlds} <= asked
