"""The numbers of every head, and the curves of tracked trainings: tables, JSON and figures."""

import io
import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from rich.console import Console, RenderableType

from mlx_attn.attention.catalog import VARIANTS
from mlx_attn.probe.show import (
    COLUMNS,
    caveat,
    heads_table,
    legend,
    number,
    record,
    save_figures,
    save_tracks,
    track_record,
    track_table,
)
from mlx_attn.probe.tracks import Track


def lines(shown: RenderableType) -> list[str]:
    stream = io.StringIO()
    Console(width=80, file=stream).print(shown)
    return stream.getvalue().splitlines()


def headings(table: Any) -> list[str]:
    return [str(column.header) for column in table.renderables[1].columns]


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
    most = probed.scores.singular_values.shape[-1]
    assert f"S\nrank\nof {most}" in headings(heads_table(probed))


def test_it_is_said_when_weights_do_not_add_up_to_one(found):
    probed = found(mixing="sink")
    low, high = probed.row_sums
    assert 0 < low < high < 1
    words = f"add up to between {low:.2f} and {high:.2f} here, not to 1 (mixing=sink)"
    assert words in caveat(probed)
    assert record(probed)["row_sums"] == (low, high)


def test_json_holds_every_number_of_every_head(found):
    probed = found(texts=2)
    unknown = replace(probed.statistics, induction=np.full((2, 3), np.nan))
    facts = json.loads(json.dumps(record(replace(probed, statistics=unknown)), allow_nan=False))
    assert (facts["texts"], facts["tokens"], len(facts["heads"])) == (2, 12, 6)
    head = facts["heads"][4]
    assert (head["layer"], head["head"], head["induction"]) == (1, 1, None)
    assert head["entropy"] == probed.statistics.entropy[1, 1]
    assert head["S"]["singular_values"] == probed.scores.singular_values[1, 1].tolist()
    assert head["VO"]["symmetry"] == probed.value_outputs.symmetry[1, 1]
    assert np.shape(facts["alignment"]["S"]) == (2, 3, 3)


LEFT_OUT = {
    "standard": {},
    "gated": {"VO": "output=gated is not affine in x"},
    "differential": {
        "S": "score=paired has 2 queries for each head",
        "VO": "output=differential is not affine in x",
    },
}


@pytest.mark.parametrize("variant", LEFT_OUT)
def test_a_matrix_that_heads_do_not_have_is_left_out_with_the_reason(found, variant, tmp_path):
    probed = found(emb_dim=16, n_heads=4, **VARIANTS[variant].maps)
    facts, reasons = json.loads(json.dumps(record(probed))), LEFT_OUT[variant]
    assert facts["reasons"] == reasons
    for head in facts["heads"]:
        assert head["entropy"] >= 0
        assert {letters for letters in ("S", "VO") if head[letters] is None} == {*reasons}
    assert {letters for letters, of in facts["alignment"].items() if of is None} == {*reasons}
    for letters, reason in reasons.items():
        name = {"S": "S_h", "VO": "V_h O_h"}[letters]
        assert f"No {name} is shown: {reason}." in legend(probed)[-1]
    assert ("VO\nrank\nof 4" in headings(heads_table(probed))) == ("VO" not in reasons)
    assert {path.stem for path in save_figures(probed, tmp_path)} == {"maps"}


def track(name: str = "merged", n: int = 3, drift: bool = True) -> Track:
    steps = 10 * np.arange(n)
    curve = np.arange(n * 4, dtype=np.float64).reshape(n, 2, 2) / 10
    curves: dict[str, np.ndarray] = dict.fromkeys(("effective_rank", "norm", "symmetry"), curve)
    drifts: dict[str, np.ndarray] = dict.fromkeys(("matrices", "scores", "maps"), curve)
    return Track(name, steps, curves, curves, drifts if drift else {})


def test_a_row_of_a_track_is_the_mean_over_all_heads_at_a_step():
    assert lines(track_table(track()))[-1].split() == ["20", *["0.95"] * 9]
    pair = lines(track_table(Track("one against other", track().steps, {}, {}, track().drift)))
    assert pair[0] == "one against other: means over heads"
    assert pair[-1].split() == ["20", "0.95", "0.95", "0.95"]


def test_json_of_a_track_holds_every_step_layer_and_head():
    facts = json.loads(json.dumps(track_record(track())))
    assert (facts["run"], facts["steps"]) == ("merged", [0, 10, 20])
    assert np.shape(facts["scores"]["norm"]) == np.shape(facts["drift"]["maps"]) == (3, 2, 2)


@pytest.mark.parametrize(
    ("drift", "names"), [(False, ["s", "vo"]), (True, ["drift", "pair", "s", "vo"])]
)
def test_figures_are_drawn_of_the_curves_that_there_are(tmp_path, drift, names):
    pair = track("one against other") if drift else None
    paths = save_tracks([track(drift=drift)], pair, tmp_path)
    assert sorted({path.stem for path in paths}) == [f"track-{name}" for name in names]
    assert all(path.stat().st_size > 0 for path in paths)
