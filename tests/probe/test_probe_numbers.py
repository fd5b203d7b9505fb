"""The numbers of every head in a table and in JSON."""

import io
import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from rich.console import Console, RenderableType

from mlx_attn.probe.show import (
    COLUMNS,
    caveat,
    heads_table,
    how_many_maps,
    legend,
    number,
    patterns,
    record,
)


def lines(shown: RenderableType) -> list[str]:
    stream = io.StringIO()
    Console(width=80, file=stream).print(shown)
    return stream.getvalue().splitlines()


def test_the_table_has_a_row_per_head_with_its_numbers_and_one_to_compare_with(found):
    probed = found()
    shown = lines(heads_table(probed))
    assert "…" not in "".join(shown)  # it fits a terminal of 80 columns whole
    *rows, last = [line.split() for line in shown]
    places = [f"{layer} {head}" for layer in range(2) for head in range(3)]
    assert [" ".join(row[:2]) for row in rows[-6:]] == places
    assert last[0] == "uniform"
    values = [column.values(probed)[1, 2] for column in COLUMNS if column.short]
    assert rows[-1][2:] == [number(value) for value in values]


def test_its_headings_are_whole_words_and_a_rank_has_its_maximum(found):
    probed = found()
    table: Any = heads_table(probed).renderables[1]
    headings = [str(column.header) for column in table.columns]
    most = probed.scores.singular_values.shape[-1]
    assert f"S\nrank\nof {most}" in headings
    assert {"previous\ntoken", "induction", "VO\nsymmetry"} < set(headings)
    assert not [heading for heading in headings if "-" in heading or "." in heading]


@pytest.mark.parametrize(
    ("value", "text"), [(-0.001, "0.00"), (1.005, "1.00"), (-2.5, "-2.50"), (float("nan"), "-")]
)
def test_numbers_have_two_decimals_and_no_negative_zero(value, text):
    assert number(value) == text


def test_it_is_said_why_it_is_called_multi_headed(found):
    assert "3 attention maps per layer, 6 in all" in how_many_maps(found())
    assert "2 layers of one head: one attention map per layer" in how_many_maps(found(n_heads=1))


def test_it_is_said_when_scores_are_not_one_matrix(found):
    assert caveat(found()) == ""
    rotated = found(position="rope")
    assert "RoPE" in caveat(rotated)
    assert legend(rotated)[-1] == caveat(rotated)


@pytest.mark.parametrize("mixing", ["off_by_one", "sink"])
def test_it_is_said_when_weights_do_not_add_up_to_one(found, mixing):
    probed = found(mixing=mixing)
    low, high = probed.row_sums
    assert 0 < low < high < 1
    words = f"add up to between {low:.2f} and {high:.2f} here, not to 1 (mixing={mixing})"
    assert words in caveat(probed)
    assert record(probed)["row_sums"] == (low, high)


def test_json_holds_every_number_of_every_head(found):
    probed = found(texts=2)
    facts = json.loads(json.dumps(record(probed), allow_nan=False))
    assert (facts["texts"], facts["tokens"], len(facts["heads"])) == (2, 12, 6)
    head = facts["heads"][4]
    assert (head["layer"], head["head"]) == (1, 1)
    assert head["entropy"] == probed.statistics.entropy[1, 1]
    assert head["S"]["singular_values"] == probed.scores.singular_values[1, 1].tolist()
    assert head["VO"]["symmetry"] == probed.value_outputs.symmetry[1, 1]
    assert np.shape(facts["alignment"]["S"]) == (2, 3, 3)


def test_what_is_not_known_is_null_in_json(found):
    probed = found()
    unknown = replace(probed.statistics, induction=np.full((2, 3), np.nan))
    facts = record(replace(probed, statistics=unknown))
    assert facts["heads"][0]["induction"] is None


def test_the_heads_with_a_pattern_are_named(found):
    probed = found()
    shares = np.zeros((2, 3))
    quiet = replace(probed.statistics, previous=shares, first=shares, induction=shares)
    assert patterns(replace(probed, statistics=quiet)).startswith("No head keeps to the previous")
    loud = shares.copy()
    loud[1, 2] = 0.5
    said = patterns(replace(probed, statistics=replace(quiet, previous=loud)))
    assert said.startswith("Layer 1, head 2 attends to the previous token most: 50 %, where ")
