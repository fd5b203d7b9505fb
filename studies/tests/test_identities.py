"""The checks of algebra and counting, as they were measured."""

from studies import identities
from studies.tests.conftest import ANSWERS

CHECKED = identities.read_checked(ANSWERS)


def test_every_identity_was_checked_and_holds():
    assert set(CHECKED) == set(identities.IDENTITIES)
    assert all(one.holds for one in CHECKED.values())


def test_two_forms_of_one_model_part_step_by_step():
    curves = identities.parting_curves(CHECKED["merged-learns-another-s"].numbers)
    assert [*curves["S"]] == [*range(0, 61, 6)]
    assert [*curves["attention"]] == [*range(6, 61, 6)]
    assert curves["S"][0] < 1e-5 < curves["S"][6] < curves["S"][60]


def test_a_cut_above_the_rank_of_the_separate_form_changes_nothing():
    numbers = CHECKED["merged-has-a-flatter-spectrum"].numbers
    curves, whole = identities.truncation_curves(numbers), int(numbers["head_dim"])
    assert max(curves["separate"]) == whole
    assert max(curves["merged"]) > whole
