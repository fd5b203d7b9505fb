"""The tables that only docs/answers.md has say what the records say."""

from dataclasses import replace

import pytest

from studies import show, tables
from studies.book import RecordBook
from studies.findings import findings
from studies.follow_ups import follow_up
from studies.study import study_from
from studies.tests.conftest import ANSWERS, record_of


def rows_of(table: str) -> list[list[str]]:
    """The cells below the heading."""
    return [[cell.strip() for cell in row.split("|")[1:-1]] for row in table.splitlines()[2:]]


def cells(table: str, first: str) -> list[str]:
    return next(row for row in rows_of(table) if row[0] == first)


def test_the_resolution_is_the_largest_difference_of_forms_that_compute_the_same(tables_of_nulls):
    study, records = tables_of_nulls
    table = tables.resolution(study, findings(study, records))
    rounding, difference, which, margin = cells(table, "near")[1:]
    assert (rounding, which, margin) == ("3e-03", "no-query", "0.03")
    assert difference.startswith("-0.0200 (")


def test_a_world_without_finished_null_controls_has_no_resolution(study, trained):
    assert rows_of(tables.resolution(study, findings(study, trained(study)))) == []


@pytest.fixture
def tables_of_nulls(tables, trained):
    """A study where all contrasts are null controls, one of them jittered, and its records."""
    tables["arms"]["twin"] = {"settings": {}, "says": "again", "rates_of": "standard"}
    tables["arms"]["twin"]["jitter"] = True
    (first,), (second,) = (q["contrasts"] for q in tables["questions"].values())
    first["null"] = second["null"] = True
    tables["questions"]["key"]["contrasts"] += [{**second, "arm": "twin"}]
    study = study_from(tables)
    effects = {"no-query": -0.02, "no-key": 0.01, "twin": 0.003}
    return study, trained(study, effects=effects, noise=0.0)


@pytest.fixture
def costs():
    """The table of costs of the study `alternatives`, row by row."""
    study, folder = follow_up("alternatives"), ANSWERS / "alternatives"
    first = RecordBook(ANSWERS / "records").records
    records = {**first, **RecordBook(folder / "records").records}
    return tables.costs(study, findings(study, records), folder)


def test_every_arm_has_its_costs_and_measured_speeds_beside_its_loss(costs):
    assert "| bytes of cache | training speed | decoding speed |" in costs
    standard = next(row for row in rows_of(costs) if row[1] == "standard")
    # A token's key and value are 2 layers x 2 x 64 numbers of 4 bytes.
    assert standard[5] == "1,024 a token"
    assert standard[-1] == "x 1.00"


def test_models_that_solved_a_task_are_counted_with_the_median_of_their_steps():
    study = follow_up("recall-time")
    records = RecordBook(ANSWERS / "recall-time" / "records").records
    assert cells(tables.solved(study, records), "key-as-value")[-2] == "4 of 6, 1019 steps"


def test_trainings_with_settings_that_are_no_longer_asked_are_told_apart(study, trained):
    records = trained(study, noise=0.0)
    old = [
        study.trial("near", "no-query", seed, 1.0, {"merged_lr": 1.0})
        for seed in study.protocol.verdict_seeds
    ]
    kept = {
        record.key: record
        for record in (record_of(run, 1.25, changes={"merged_lr": 1.0}) for run in old)
    }
    before = findings(study, records)
    assert tables.changed(study, records) == ""
    assert tables.changed(study, records | kept) == "no-query in near with merged_lr 1: +0.250"
    assert findings(study, records | kept) == before


@pytest.mark.parametrize(
    ("effect", "agreement"),
    # no-query and no-key in two worlds; only no-key has another effect than the first time.
    [(0.1, (4, 4)), (0.0, (4, 2)), (-0.1, (4, 2))],
)
def test_a_confirming_study_agrees_if_its_words_have_the_same_direction(
    study, trained, effect, agreement
):
    def judged(of_no_key):
        effects = {"no-query": 0.1, "no-key": of_no_key}
        return study, findings(study, trained(study, effects=effects))

    assert tables.confirmations(judged(effect), judged(0.1)) == agreement


def test_a_contrast_that_one_study_cannot_decide_neither_agrees_nor_disagrees(study, trained):
    decided = study, findings(study, trained(study, effects={"no-query": 0.1, "no-key": 0.1}))
    noisy = study, findings(study, trained(study, noise=0.3))
    assert tables.confirmations(decided, noisy) == (0, 0)


def test_findings_of_several_studies_stand_side_by_side_if_they_are_about_one_text(study, trained):
    found = findings(study, trained(study))
    later = [replace(one, world=f"{one.world}-later") for one in found if one.world == "near"]
    rows = rows_of(tables.beside(later, {"before": found, "elsewhere": []}))
    assert [row[1] for row in rows] == ["near"] * len(later)
    for row, one in zip(rows, later, strict=True):
        said = f"{show.difference(one, 3)}, {one.said}"
        assert row[2:] == [said, said, "not asked"]


def test_rows_of_one_label_share_a_line_of_the_evidence():
    rows = [("gate", {"tales": "+0.1"}), ("gate", {"python": "-0.1"}), ("MLA", {"tales": "0"})]
    lines = tables.evidence(rows).splitlines()
    assert lines[0] == f"| {tables.SURE} | tales | python |"
    assert lines[2:] == ["| gate | +0.1 | -0.1 |", "| MLA | 0 |  |"]
