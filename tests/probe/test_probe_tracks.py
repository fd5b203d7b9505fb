"""Curves read back from a run, and the drift between two runs."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from mlx_attn.errors import ConfigError, RunError
from mlx_attn.model.config import GPTConfig
from mlx_attn.model.gpt import GPT
from mlx_attn.probe.tracking import save_snapshot
from mlx_attn.probe.tracks import pair_drift, read_track
from mlx_attn.run_directory import Run
from tests.runs import create_run

SIZES: dict[str, Any] = {"vocab_size": 20, "context_length": 8, "emb_dim": 8, "n_heads": 2}
TOKENS = np.arange(16).reshape(2, 8)


def event(step: int, drift: dict | None = None) -> dict[str, Any]:
    numbers = {key: [[step, 2.0]] for key in ("effective_rank", "norm", "symmetry")}
    return {
        "event": "track",
        "step": step,
        "scores": numbers,
        "value_outputs": numbers,
        "drift": drift,
    }


@pytest.fixture
def make(tmp_path) -> Callable[..., Run]:
    """Makes a run directory of a one-layer model, with weights of some steps."""

    def run(name: str, kept: dict[int, int] | None = None, **choices: Any) -> Run:
        config = GPTConfig(**(SIZES | {"n_layers": 1, "start": "book"} | choices))
        made = create_run(tmp_path / name, {"model": config.as_dict(), "training": {}, "text": {}})
        for step, seed in (kept or {}).items():
            save_snapshot(made, GPT(config, seed=seed), step)
        return made

    return run


@pytest.mark.parametrize("drift", [None, {"matrices": [[0.0, 5.0]]}], ids=["no drift", "drift"])
def test_curves_are_arrays_by_step_layer_and_head(make, drift):
    run = make("tracked")
    for record in ({"event": "step", "step": 1}, event(0, drift), event(5, drift)):
        run.add_report(record)
    track = read_track(run)
    assert track.steps.tolist() == [0, 5]
    assert track.scores["effective_rank"].tolist() == [[[0, 2]], [[5, 2]]]
    assert {name: of.shape for name, of in track.drift.items()} == (
        {"matrices": (2, 1, 2)} if drift else {}
    )


def test_a_run_that_was_not_tracked_says_how_to_track(make):
    with pytest.raises(RunError, match="train with --track 50"):
        read_track(make("plain"))


def test_two_runs_are_compared_at_the_steps_that_both_kept(make):
    one, other = make("one", {0: 1, 5: 2, 10: 3}), make("other", {0: 1, 10: 4, 15: 5})
    found = pair_drift(one, other, TOKENS)
    assert found.steps.tolist() == [0, 10]
    for curve in found.drift.values():
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
