"""Every head's matrices through training, and the drift from a common start."""

from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from mlx_attn.activations import run_with_cache
from mlx_attn.arrays import named_arrays
from mlx_attn.convert.circuits import qk_circuit
from mlx_attn.convert.model import starting_point
from mlx_attn.errors import ConfigError
from mlx_attn.probe.tracking import drift, snapshots
from mlx_attn.run_directory import Run, open_run
from mlx_attn.training.events import Stepped, Tracked, as_record
from mlx_attn.training.loop import train
from mlx_attn.training.trainer import Trainer
from tests.runs import small_gpt

SMALL: dict[str, Any] = {
    **{"n_layers": 2, "n_heads": 2, "emb_dim": 8, "context_length": 8},
    **{"steps": 6, "batch_size": 2, "log_every": 2, "warmup": 0},
}
TOKENS = np.arange(12).reshape(2, 6)


def tracked(training: Trainer) -> list[Tracked]:
    return [report for report in train(training) if isinstance(report, Tracked)]


def test_a_record_of_numbers_per_layer_and_head_is_made_at_the_start_and_every_k_steps(trainer):
    records = tracked(trainer(**SMALL, track=2))
    assert [report.step for report in records] == [0, 2, 4, 6]
    record = as_record(records[-1])
    assert record["event"] == "track"
    for matrices in ("scores", "value_outputs"):
        assert record[matrices].keys() == {"effective_rank", "norm", "symmetry"}


def test_matrices_that_are_none_are_refused_before_the_first_step(trainer):
    with pytest.raises(ConfigError, match="is not affine in x"):
        trainer(**SMALL, track=6, variant="exclusive")


def test_tracking_does_not_change_what_is_learned(trainer):
    runs = []
    for track in (0, 1):
        training = trainer(**SMALL, track=track, drop_rate=0.2)
        losses = [report.loss for report in train(training) if isinstance(report, Stepped)]
        runs.append((losses, named_arrays(training.model)))
    assert runs[0][0] == runs[1][0]
    assert all(mx.array_equal(array, runs[1][1][name]) for name, array in runs[0][1].items())


@pytest.mark.parametrize("window", [0, 3])
def test_drift_is_the_relative_difference_of_matrices_and_scores_and_the_attention_moved(window):
    one, other = (small_gpt(seed, window=window, n_layers=2, start="book") for seed in (0, 1))
    found = drift(one, other, mx.array(TOKENS))
    passes = [run_with_cache(model, mx.array(TOKENS))[1] for model in (one, other)]
    for layer in range(2):
        a, b = (model.trf_blocks[layer].att for model in (one, other))
        x, y = (activations[f"trf_blocks.{layer}.norm1"] for activations in passes)
        for head in range(2):
            S, S_other = qk_circuit(a).products[head], qk_circuit(b).products[head]
            expected = np.linalg.norm(S - S_other) / np.linalg.norm(S_other)
            assert expected > 0.1
            assert found["matrices"][layer][head] == pytest.approx(expected)
            scores = [seen(m, n, window) for m, n in ((S, x), (S_other, y))]
            expected = np.linalg.norm(scores[0] - scores[1]) / np.linalg.norm(scores[1])
            assert found["scores"][layer][head] == pytest.approx(expected, rel=1e-4)
            maps = [np.array(m.weights(n))[:, head] for m, n in ((a, x), (b, y))]
            moved = np.abs(maps[0] - maps[1]).sum(-1).mean() / 2
            assert found["maps"][layer][head] == pytest.approx(moved, rel=1e-4)


def seen(S: np.ndarray, x: mx.array, window: int) -> np.ndarray:
    """x S x^T of tokens that attend to each other, less the mean of every row, written out."""
    found = []
    for text in np.array(x).astype(np.float64):
        scores = text @ S @ text.T
        for i in range(len(scores)):
            row = scores[i, max(0, i + 1 - window) if window else 0 : i + 1]
            found.extend(row - row.mean())
    return np.array(found)


def test_a_training_that_starts_from_a_model_tracks_its_drift_and_keeps_its_weights(
    trainer, tmp_path
):
    training = started(trainer, tmp_path / "run")
    records = tracked(training)
    assert all(np.max(numbers) < 1e-6 for numbers in (records[0].drift or {}).values())
    assert all(np.min(numbers) > 1e-4 for numbers in (records[-1].drift or {}).values())
    run = Run(tmp_path / "run", training.settings.record(training.model.config))
    (run.path / "track" / "6 2.safetensors").touch()  # as iCloud names a conflict's other version
    assert list(snapshots(run)) == [0, 3, 6]
    last = run.load_model(snapshots(run)[6])
    trained = named_arrays(training.model)
    assert all(mx.array_equal(array, trained[n]) for n, array in named_arrays(last).items())


def test_a_resumed_training_goes_on_tracking_from_the_same_start(trainer, tmp_path):
    whole = tracked(started(trainer, tmp_path / "whole"))
    first = started(trainer, tmp_path / "halves")
    list(train(first, lambda: first.progress.step == 4))
    second = trainer(**SMALL, track=3, score="merged", seed=0)
    second.resume(open_run(tmp_path / "halves"))
    assert tracked(second) == whole[2:]


def started(trainer, path) -> Trainer:
    """A merged training that starts from a separate model, with a run directory."""
    training = trainer(path, **SMALL, track=3, score="merged", seed=0)
    source = small_gpt(**{**training.model.config.as_dict(), "score": "separate", "start": "book"})
    training.start_from(starting_point(source, training.model.config))
    return training
