"""The numbers of every head, and the curves of tracked trainings: tables, JSON and figures."""

import io
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from mlx_attn.attention.catalog import VARIANTS
from mlx_attn.errors import ConfigError, RunError
from mlx_attn.probe.heads import Probe, probe
from mlx_attn.probe.show import (
    caveat,
    draw_maps,
    heads_table,
    legend,
    number,
    patterns,
    record,
    save_figures,
    save_tracks,
    track_record,
)
from mlx_attn.probe.tracking import Track, pair_drift, read_track, save_snapshot
from mlx_attn.run_directory import Run
from tests.runs import create_run, small_gpt


def found(texts: int = 1, /, **choices: Any) -> Probe:
    """Probe a small random model with opinions that reads random tokens."""
    model = small_gpt(**{"emb_dim": 12, "n_heads": 3, "n_layers": 2, "start": "book", **choices})
    model.apply(lambda weight: 2 * weight)
    return probe(model, np.random.default_rng(0).integers(0, 20, (texts, 12)))


def test_it_is_said_when_weights_do_not_add_up_to_one():
    probed = found(mixing="sink")
    low, high = probed.row_sums
    sums = probed.maps.sum(-1, dtype=np.float64)
    assert 0 < low == sums.min() < high == sums.max() < 1 + 1e-6  # float32's rounding
    assert f"between {low:.2f} and {high:.2f} here, not to 1 (mixing=sink)" in caveat(probed)
    assert record(probed)["row_sums"] == (low, high)


def test_the_head_that_shows_a_pattern_most_clearly_is_named_with_its_share():
    probed, shares = found(), np.full((2, 3), 0.1)
    shares[1, 2] = 0.61
    statistics = {**probed.statistics, "previous": shares, "first": 0.6 * shares}
    alike = {**probed.uniform, "previous": 0.25, "first": 0.25, "induction": 1.0}
    said = "head 2 attends to the previous token most: 61 %, where attending to all alike is 25 %."
    assert patterns(replace(probed, statistics=statistics, uniform=alike)) == f"Layer 1, {said}"


def test_json_holds_every_number_of_every_head():
    probed = found(2)
    unknown = {**probed.statistics, "induction": np.full((2, 3), np.nan)}
    facts = json.loads(json.dumps(record(replace(probed, statistics=unknown)), allow_nan=False))
    assert (facts["texts"], facts["tokens"], len(facts["heads"])) == (2, 12, 6)
    head = facts["heads"][4]
    assert (head["layer"], head["head"], head["induction"]) == (1, 1, None)
    assert head["entropy"] == probed.statistics["entropy"][1, 1]
    assert head["S"]["singular_values"] == probed.spectra["S"]["singular_values"][1, 1].tolist()
    assert head["VO"]["symmetry"] == probed.spectra["VO"]["symmetry"][1, 1]
    assert np.shape(facts["alignment"]["S"]) == (2, 3, 3)


def test_a_matrix_that_heads_do_not_have_is_left_out_with_the_reason(tmp_path):
    probed = found(emb_dim=16, n_heads=2, **VARIANTS["gated"].maps)
    facts, reason = json.loads(json.dumps(record(probed))), "output=gated is not affine in x"
    assert facts["reasons"] == {"VO": reason}
    for head in facts["heads"]:
        assert head["entropy"] >= 0
        assert head["S"]
        assert head["VO"] is None
    assert facts["alignment"]["VO"] is None
    assert f"No V_h O_h is shown: {reason}." in legend(probed)[-1]
    stream = io.StringIO()
    Console(width=80, file=stream).print(heads_table(probed))
    *_, row, _ = shown = [line.split() for line in stream.getvalue().splitlines() if line.strip()]
    assert row[:3] == ["1", "1", number(probed.statistics["entropy"][1, 1])]
    assert "…" not in str(shown)  # it fits a terminal of 80 columns whole
    assert {path.stem for path in save_figures(probed, tmp_path)} == {"maps"}
    (figure := draw_maps(probed)).draw_without_rendering()
    edges = [text.get_window_extent().intervalx for text in figure.texts]
    assert 0 <= np.min(edges) < np.max(edges) <= figure.bbox.width  # no label is cut off


def track(name: str = "merged", n: int = 3, drift: bool = True) -> Track:
    steps = 10 * np.arange(n)
    curve = np.arange(n * 4, dtype=np.float64).reshape(n, 2, 2) / 10
    curves: dict[str, np.ndarray] = dict.fromkeys(("effective_rank", "norm", "symmetry"), curve)
    drifts: dict[str, np.ndarray] = dict.fromkeys(("matrices", "scores", "maps"), curve)
    kinds = {"scores": curves, "value_outputs": curves, "drift": drifts if drift else {}}
    return Track(name, steps, kinds)


def test_json_of_a_track_holds_every_step_layer_and_head():
    facts = json.loads(json.dumps(track_record(track())))
    assert (facts["run"], facts["steps"]) == ("merged", [0, 10, 20])
    assert np.shape(facts["scores"]["norm"]) == np.shape(facts["drift"]["maps"]) == (3, 2, 2)


def test_figures_are_drawn_of_the_curves_that_there_are(tmp_path):
    paths = save_tracks([track(drift=False)], None, tmp_path)
    assert sorted({path.stem for path in paths}) == ["track-s", "track-vo"]


TOKENS = np.arange(16).reshape(2, 8)


def event(step: int, drift: dict | None = None) -> dict[str, Any]:
    numbers = {key: [[step, 2.0]] for key in ("effective_rank", "norm", "symmetry")}
    matrices = {"scores": numbers, "value_outputs": numbers}
    return {"event": "track", "step": step, **matrices, "drift": drift}


@pytest.fixture
def make(tmp_path) -> Callable[..., Run]:
    """Makes a run directory of a one-layer model, with weights of some steps."""

    def run(name: str, kept: Mapping[int, int], **choices: Any) -> Run:
        config = small_gpt(**choices).config
        made = create_run(tmp_path / name, {"model": config.as_dict(), "training": {}, "text": {}})
        for step, seed in kept.items():
            save_snapshot(made, small_gpt(seed, start="book", **choices), step)
        return made

    return run


@pytest.mark.parametrize("drift", [None, {"matrices": [[0.0, 5.0]]}], ids=["no drift", "drift"])
def test_curves_are_arrays_by_step_layer_and_head(make, drift):
    run = make("tracked", {})
    for report in ({"event": "step", "step": 1}, event(0, drift), event(5, drift)):
        run.add_report(report)
    track = read_track(run)
    assert track.steps.tolist() == [0, 5]
    assert track.curves["scores"]["effective_rank"].tolist() == [[[0, 2]], [[5, 2]]]
    assert {name: of.shape for name, of in track.curves["drift"].items()} == (
        {"matrices": (2, 1, 2)} if drift else {}
    )


def test_a_run_that_was_not_tracked_says_how_to_track_and_a_damaged_one_what_it_lacks(make):
    run = make("plain", {})
    with pytest.raises(RunError, match="train with --track 50"):
        read_track(run)
    run.add_report({"event": "track", "step": 0})
    with pytest.raises(RunError, match=r"damaged track records \('scores'\)"):
        read_track(run)


def test_two_runs_are_compared_at_the_steps_that_both_kept(make):
    one, other = make("one", {0: 1, 5: 2, 10: 3}), make("other", {0: 1, 10: 4, 15: 5})
    found = pair_drift(one, other, TOKENS)
    assert found.steps.tolist() == [0, 10]
    for curve in found.curves["drift"].values():
        assert curve.shape == (2, 1, 2)
        np.testing.assert_allclose(curve[0], 0, atol=1e-6)
        assert curve[1].min() > 0.01


@pytest.mark.parametrize(
    ("kept", "sizes", "message"),
    [
        ({5: 1}, {}, "kept no weights of the same steps"),
        ({0: 1}, {"n_heads": 4}, r"n_heads=2 and .* has 4"),
    ],
    ids=["no step in common", "other sizes"],
)
def test_runs_that_cannot_be_compared_say_why(make, kept, sizes, message):
    with pytest.raises((ConfigError, RunError), match=message):
        pair_drift(make("one", {0: 1}), make("other", kept, **sizes), TOKENS)
