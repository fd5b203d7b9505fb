"""The numbers of every head, and the curves of tracked trainings: tables, JSON and figures."""

import io
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from rich.console import Console, RenderableType

from mlx_attn.attention.catalog import VARIANTS
from mlx_attn.model.config import GPTConfig
from mlx_attn.model.gpt import GPT
from mlx_attn.probe.heads import Probe, probe
from mlx_attn.probe.show import (
    caveat,
    heads_table,
    legend,
    number,
    record,
    save_figures,
    save_tracks,
    track_record,
)
from mlx_attn.probe.tracks import Track


@pytest.fixture(scope="session")
def found() -> Callable[..., Probe]:
    """Probes a small random model with opinions that reads random tokens."""

    def make(texts: int = 1, tokens: int = 12, **choices: Any) -> Probe:
        sizes: dict[str, Any] = {"context_length": 16, "emb_dim": 12, "n_heads": 3, "n_layers": 2}
        recipe: dict[str, Any] = {"vocab_size": 20, "start": "book"}
        mx.random.seed(2)
        model = GPT(GPTConfig(**(recipe | sizes | choices)))
        model.apply(lambda weight: 2 * weight)
        model.eval()
        return probe(model, np.random.default_rng(0).integers(0, 20, (texts, tokens)))

    return make


def lines(shown: RenderableType) -> list[str]:
    stream = io.StringIO()
    Console(width=80, file=stream).print(shown)
    return stream.getvalue().splitlines()


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


def test_a_matrix_that_heads_do_not_have_is_left_out_with_the_reason(found, tmp_path):
    probed = found(emb_dim=16, n_heads=4, **VARIANTS["gated"].maps)
    facts, reason = json.loads(json.dumps(record(probed))), "output=gated is not affine in x"
    assert facts["reasons"] == {"VO": reason}
    for head in facts["heads"]:
        assert head["entropy"] >= 0
        assert head["S"]
        assert head["VO"] is None
    assert facts["alignment"]["VO"] is None
    assert f"No V_h O_h is shown: {reason}." in legend(probed)[-1]
    shown = "".join(lines(heads_table(probed)))
    assert number(probed.statistics.entropy[1, 3]) in shown
    assert "…" not in shown  # it fits a terminal of 80 columns whole
    assert {path.stem for path in save_figures(probed, tmp_path)} == {"maps"}


def track(name: str = "merged", n: int = 3, drift: bool = True) -> Track:
    steps = 10 * np.arange(n)
    curve = np.arange(n * 4, dtype=np.float64).reshape(n, 2, 2) / 10
    curves: dict[str, np.ndarray] = dict.fromkeys(("effective_rank", "norm", "symmetry"), curve)
    drifts: dict[str, np.ndarray] = dict.fromkeys(("matrices", "scores", "maps"), curve)
    return Track(name, steps, curves, curves, drifts if drift else {})


def test_json_of_a_track_holds_every_step_layer_and_head():
    facts = json.loads(json.dumps(track_record(track())))
    assert (facts["run"], facts["steps"]) == ("merged", [0, 10, 20])
    assert np.shape(facts["scores"]["norm"]) == np.shape(facts["drift"]["maps"]) == (3, 2, 2)


def test_figures_are_drawn_of_the_curves_that_there_are(tmp_path):
    paths = save_tracks([track(drift=False)], None, tmp_path)
    assert sorted({path.stem for path in paths}) == ["track-s", "track-vo"]
