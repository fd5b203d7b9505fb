"""Every word that was withdrawn is one that a study asked for."""

from pathlib import Path

import pytest

from mlx_attn_studies import FOLLOW_UPS
from mlx_attn_studies.findings import withdrawals
from mlx_attn_studies.follow_ups import follow_up
from mlx_attn_studies.study import the_study

ANSWERS = Path(__file__).parents[2] / "docs" / "answers"
STUDIES = {ANSWERS: the_study(), **{ANSWERS / name: follow_up(name) for name in FOLLOW_UPS}}
LISTED = [folder for folder in STUDIES if withdrawals(folder)]


def test_words_of_three_studies_were_withdrawn():
    assert len(LISTED) == 3


@pytest.mark.parametrize("folder", LISTED, ids=lambda folder: folder.name)
def test_every_withdrawn_word_is_one_of_its_study(folder):
    asked = {(contrast.arm, world) for _, contrast, world in STUDIES[folder].asked()}
    assert {(row.arm, world) for row in withdrawals(folder) for world in row.worlds} <= asked
