"""A training that was interrupted continues as if it had never stopped, bit for bit."""

import fcntl

import numpy as np
import pytest

from mlx_attn.arrays import named_arrays
from mlx_attn.attention.catalog import VARIANTS
from mlx_attn.machine import blas
from mlx_attn.run_directory import open_run
from mlx_attn.training.events import Evaluated, Stepped, Tracked
from mlx_attn.training.loop import train
from mlx_attn.training.recording import train_recorded

STOP, STEPS = 4, 9
NOISY = {"drop_rate": 0.2, "windows": "random", "steps": STEPS, "log_every": 1, "eval_every": 3}


def finish(trainer, stop_at: int | None = None) -> list:
    """The reports of a training, which somebody stops after a step."""
    return list(train(trainer, lambda: trainer.progress.step == stop_at))


def losses(reports) -> list[tuple[int, float]]:
    return [(r.step, r.loss) for r in reports if isinstance(r, Stepped)]


def validations(reports) -> list[tuple[int, float]]:
    return [(r.step, r.evaluation.val_loss) for r in reports if isinstance(r, Evaluated)]


def state(trainer) -> dict[str, np.ndarray]:
    states = named_arrays([trainer.model.parameters(), *trainer.optimizer.state])
    return {name: np.array(array) for name, array in states.items()}


def interrupted_and_resumed(trainer, path, stop_at: int, **settings) -> tuple:
    first = finish(trainer(run=path, **settings), stop_at)
    second = trainer(**settings)
    second.resume(open_run(path))
    return second, first, finish(second)


@pytest.mark.parametrize(
    ("optimizer", "accumulate", "compile", "windows"),
    [
        ("adamw", 2, "off", "epochs"),  # of which the second has begun
        ("muon", 1, "off", "random"),
        ("adamw", 1, "on", "random"),
        pytest.param("muon", 2, "on", "random", marks=pytest.mark.slow),
    ],
)
def test_weights_optimizer_and_later_losses_are_the_same_bits(
    trainer, tmp_path, monkeypatch, optimizer, accumulate, compile, windows
):
    monkeypatch.setattr(blas, "preload", lambda: blas.Blas("a library", "", threads=2))
    # No other process may keep it waiting.
    monkeypatch.setattr(fcntl, "flock", lambda _, how: how & fcntl.LOCK_NB or pytest.fail("waits"))
    settings = {"optimizer": optimizer, "accumulate": accumulate, "compile": compile}
    settings = {**NOISY, **settings, "windows": windows, "batch_size": 24}
    straight = trainer(**settings)
    expected = finish(straight)
    resumed, first, second = interrupted_and_resumed(trainer, tmp_path / "run", STOP, **settings)
    assert losses(first) + losses(second) == losses(expected)
    assert validations(first) + validations(second) == validations(expected)
    for name, array in state(straight).items():
        assert np.array_equal(array, state(resumed)[name]), name


QUICK = ("standard", "value-residual")
"""Variants whose bits on a GPU's path the ordinary suite compares; `-m slow` compares all."""


@pytest.mark.parametrize(
    "variant",
    [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in VARIANTS],
)
def test_on_the_path_of_a_gpu_a_seed_gives_the_same_bits_again_and_after_a_resume(
    trainer, tmp_path, gpu_path, variant
):
    settings = {**NOISY, "n_layers": 2, "emb_dim": 32, **VARIANTS[variant].settings}
    straight, again = trainer(**settings), trainer(**settings)
    assert losses(finish(straight)) == losses(finish(again))
    resumed, _, _ = interrupted_and_resumed(trainer, tmp_path / "run", STOP, **settings)
    for name, array in state(straight).items():
        assert np.array_equal(array, state(again)[name]), name
        assert np.array_equal(array, state(resumed)[name]), name


@pytest.mark.parametrize("stop_at", [0, 3, STEPS])
def test_it_may_stop_before_the_first_step_at_a_validation_or_at_the_end(
    trainer, tmp_path, stop_at
):
    expected = finish(trainer(**NOISY))
    resumed, first, second = interrupted_and_resumed(trainer, tmp_path / "run", stop_at, **NOISY)
    assert losses(first) + losses(second) == losses(expected)
    assert validations(first) + validations(second) == validations(expected)
    assert resumed.progress.best.val_loss == min(loss for _, loss in validations(expected))
    # The clock continues, and each start has one step that is not timed.
    seconds = [report.seconds for report in first + second if isinstance(report, Stepped)]
    assert seconds == sorted(seconds)
    assert resumed.progress.timed_steps == STEPS - (2 if stop_at == 3 else 1)


def test_reports_of_heads_and_losses_are_neither_lost_nor_made_twice(trainer, tmp_path):
    settings = {**NOISY, "track": 2, "log_every": 3, "eval_every": 2}
    expected = finish(trainer(**settings))
    for stop_at in (0, 2, 4, 5):
        run = tmp_path / str(stop_at)
        _, first, second = interrupted_and_resumed(trainer, run, stop_at, **settings)
        reports = [report for report in first + second if isinstance(report, Stepped | Tracked)]
        alike = [report for report in expected if isinstance(report, Stepped | Tracked)]
        assert [(type(r), r.step) for r in reports] == [(type(r), r.step) for r in alike]
        assert losses(reports) == losses(alike)


@pytest.mark.parametrize("kept", ["its reports", "its checkpoint too"])
def test_a_validation_that_an_interruption_left_out_is_reported_once(trainer, tmp_path, kept):
    """Though it ends after the validation is reported, before or after it is in a checkpoint."""
    finish(trainer(run=tmp_path / "run", **{**NOISY, "log_every": 2}), STEPS)
    for _ in range(2):
        resumed = trainer(**{**NOISY, "log_every": 2})
        resumed.resume(open_run(tmp_path / "run"))
        for event in train_recorded(resumed):
            if isinstance(event, Evaluated) and kept == "its reports":
                break
    reports = [r for r in open_run(tmp_path / "run").metrics() if r.get("step") == STEPS]
    assert [r["event"] for r in reports if r["event"] in ("step", "eval")] == ["step", "eval"]
    assert (tmp_path / "run" / "samples.txt").read_text().count(f"--- step {STEPS}") == 1
    last = trainer(**NOISY)
    last.resume(open_run(tmp_path / "run"))
    assert (last.progress.evaluated_step == STEPS) == (kept != "its reports")
