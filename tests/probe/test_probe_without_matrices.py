"""Heads without matrices: their maps are shown, the rest is left out and said why."""

import json
from typing import Any

import numpy as np
import pytest

from mlx_attn.attention.config import VARIANTS
from mlx_attn.probe.show import heads_table, how_many_maps, legend, record, save_figures

SIZES = {"emb_dim": 16, "n_heads": 4}
LEFT_OUT = {
    "gated": {"VO": "output=gated is not affine in x"},
    "nonlinear-query": {"S": "score=nonlinear_query is not affine in x"},
    "differential": {
        "S": "score=paired has 2 queries for each head",
        "VO": "output=differential is not affine in x",
    },
    "scores-off": {},
}


@pytest.fixture(params=LEFT_OUT)
def variant(request) -> str:
    return request.param


@pytest.fixture
def probed(found, variant):
    return found(**SIZES, **VARIANTS[variant].maps)


def test_json_has_null_and_the_reason(probed, variant):
    made = json.loads(json.dumps(record(probed)))
    reasons = LEFT_OUT[variant]
    assert made["reasons"] == reasons
    for head in made["heads"]:
        assert head["entropy"] >= 0
        assert {letters for letters in ("S", "VO") if head[letters] is None} == {*reasons}
    assert {letters for letters, of in made["alignment"].items() if of is None} == {*reasons}


def test_the_terminal_says_why_in_one_line(probed, variant):
    said = legend(probed)[-1]
    names = {"S": "S_h", "VO": "V_h O_h"}
    for letters, reason in LEFT_OUT[variant].items():
        assert f"No {names[letters]} is shown: {reason}." in said
    table: Any = heads_table(probed).renderables[1]
    headings = " ".join(str(column.header) for column in table.columns)
    assert ("VO\nrank" in headings) == ("VO" not in LEFT_OUT[variant])
    assert "entropy" in headings


def test_figures_are_those_that_there_are(probed, variant, tmp_path):
    stems = {path.stem for path in save_figures(probed, tmp_path)}
    kept = [letters for letters in ("S", "VO") if letters not in LEFT_OUT[variant]]
    kinds = ("singular-values", "alignment")
    assert stems == {"maps", *(f"{kind}-{letters.lower()}" for letters in kept for kind in kinds)}


def test_two_softmaxes_of_a_head_are_two_maps(found):
    probed = found(**SIZES, **VARIANTS["differential"].maps)
    assert probed.statistics.entropy.shape == (2, 8)
    assert "4 heads with 2 maps each: 8 attention maps per layer, 16 in all" in how_many_maps(
        probed
    )
    np.testing.assert_allclose(probed.maps.sum(-1), 1, atol=1e-5)
