"""Changes of every head's matrices during training, and their drift from a start.

Two models that start as the same function, one with separate W_query and W_key and one with a
merged S, learn differently. Comparable are the spectra of S_h and V_h O_h, and the drift from each
other: of the matrices, and of their effect on fixed windows of text.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from jaxtyping import Float64, Int64, Integer

from mlx_attn.activations import run_with_cache
from mlx_attn.arrays import Arrays, named_arrays
from mlx_attn.attention.attention import Attention
from mlx_attn.convert import circuits
from mlx_attn.errors import ConfigError, RunError
from mlx_attn.model.gpt import GPT
from mlx_attn.run_directory import Run
from mlx_attn.training.events import Tracked
from mlx_attn.training.trainer import Trainer

TRACKED_TEXTS = 4
TRACKED_TOKENS = 64
"""The number of windows that the drift is measured on, and their greatest length."""

PerHead = list[list[float]]  # one number for every layer and head, as in metrics.jsonl


def track_heads(trainer: Trainer) -> None:
    """Have a trainer measure its heads, if its settings say so.

    Raises:
        NoMatrix: A map of its model is not affine.
    """
    if trainer.config.track:
        for block in trainer.model.trf_blocks:
            circuits.check_affine(block.att, "score", "value", "output")
        trainer.track = partial(_track, trainer)


def _track(trainer: Trainer) -> Tracked:
    """Measure the heads; if there is a start to compare with, save the weights too."""
    run, step = trainer.run, trainer.progress.step
    # The drift of a resumed training is from the first step's weights, not from the checkpoint's.
    if run and not trainer.origin and 0 in snapshots(run):
        trainer.origin = run.load_model(snapshots(run)[0])
    if run and trainer.origin:
        save_snapshot(run, trainer.model, step)
    tokens = mx.array(trainer.evaluator.texts(TRACKED_TEXTS))
    return track(trainer.model, step, tokens, trainer.origin)


def track(
    model: GPT, step: int, tokens: Integer[mx.array, "B T"], start: GPT | None = None
) -> Tracked:
    """Measure every head after a step; leave the model's training mode unchanged.

    The drift is from the model that it started from, in any form, on the beginning of each window.
    """
    training = model.training
    model.eval()
    tracked = Tracked(
        step=step,
        # S_h = W_query_h W_key_h^T makes the scores; V_h O_h maps x to head h's output.
        scores=_spectra(model, circuits.qk_circuit),
        value_outputs=_spectra(model, circuits.ov_circuit),
        drift=drift(model, start, tokens[:, :TRACKED_TOKENS]) if start else None,
    )
    model.train(training)
    return tracked


def _spectra(model: GPT, circuit: Callable[[Attention], Any]) -> dict[str, PerHead]:
    spectra = circuits.spectra(circuit(block.att) for block in model.trf_blocks)
    return {key: spectra[key].tolist() for key in ("effective_rank", "norm", "symmetry")}


def drift(model: GPT, start: GPT, tokens: Integer[mx.array, "B T"]) -> dict[str, PerHead]:
    """Measure how far every head of one model is from the same head of another.

    - matrices: |S_h - S'_h|_F / |S'_h|_F, where S_h is W_query_h W_key_h^T in separate form.
    - scores: |s - s'|_F / |s'|_F with s = scale * x S_h x^T over all pairs of tokens that attend to
      each other, minus the mean of every row, which the softmax ignores. Every model has its own x.
    - maps: sum_j |A_ij - A'_ij| / 2 of the attention weights, averaged over i: the fraction of
      its attention that a token moves to other tokens.

    Both models are in evaluation mode, have the same number of layers and heads, and read the same
    tokens; S', s' and A' belong to `start`.
    """
    rows: dict[str, PerHead] = {"matrices": [], "scores": [], "maps": []}
    passes = [run_with_cache(each, tokens)[1] for each in (model, start)]
    for layer, blocks in enumerate(zip(model.trf_blocks, start.trf_blocks, strict=True)):
        name = f"trf_blocks.{layer}.att"
        # [H, C, C]
        rows["matrices"].append(_relative(*(circuits.qk_circuit(b.att).products for b in blocks)))
        rows["scores"].append(_relative(*(_visible_scores(found, name) for found in passes)))
        weights = (np.array(p[f"{name}.attn_weights"].astype(mx.float32)) for p in passes)
        # [B, H, T, T] -> [H]: half the summed differences of a row, averaged over rows and windows.
        moved = np.abs(np.subtract(*weights)).sum(-1) / 2
        rows["maps"].append(moved.mean(axis=(0, 2), dtype=np.float64).tolist())
    return rows


def save_snapshot(run: Run, model: GPT, step: int) -> None:
    """Save the weights of this step, to compare with another run."""
    run.save(run.path / "track" / f"{step}.safetensors", named_arrays(model), {})


def snapshots(run: Run) -> dict[int, Path]:
    """Return the saved weights of a run, by step in order."""
    files = (run.path / "track").glob("*.safetensors")
    return dict(sorted((int(file.stem), file) for file in files if file.stem.isdecimal()))


def _visible_scores(activations: Arrays, name: str) -> Float64[np.ndarray, "H seen"]:
    """Return a layer's scores of tokens that attend to each other, minus the mean of every row."""
    scores = circuits.to_numpy(activations[f"{name}.raw_scores"])
    # [T, T]; softmax ignores a constant added to a row, so each row's mean is removed.
    seen = np.isfinite(activations[f"{name}.mask"])
    mean = (scores * seen).sum(-1, keepdims=True) / seen.sum(-1, keepdims=True)
    # [B, H, T, T] -> [H, B T T]; pairs that see nothing of each other are 0 in both models.
    return ((scores - mean) * seen).swapaxes(0, 1).reshape(scores.shape[1], -1)


def _relative(one: np.ndarray, other: np.ndarray) -> list[float]:
    """Return |one - other| / |other| for every head."""
    # [H, C, C] -> [H, C C]
    one, other = one.reshape(len(one), -1), other.reshape(len(other), -1)
    size = np.maximum(np.linalg.norm(other, axis=1), 1e-30)
    return (np.linalg.norm(one - other, axis=1) / size).tolist()


# The curves that a tracked training recorded.

Curves = Mapping[str, Float64[np.ndarray, "N L H"]]
"""A number for every tracked step, layer and head, by name."""
KINDS = ("scores", "value_outputs", "drift")
"""What is tracked: of S_h and of V_h O_h the effective rank, the norm and the symmetry, and the
distance of the heads from their start or from another run's heads; see `drift`."""


@dataclass(frozen=True, slots=True)
class Track:
    """The curves of one run at its tracked steps."""

    name: str
    steps: Int64[np.ndarray, " N"]
    curves: Mapping[str, Curves]  # of every kind; empty if unknown


def read_track(run: Run) -> Track:
    """Read the curves that `train --track` wrote."""
    records = [record for record in run.metrics() if record.get("event") == "track"]
    if not records:
        raise RunError(f"{run.path} was not tracked: train with --track 50, for example")
    try:
        steps = np.array([record["step"] for record in records], np.int64)
        curves = {kind: _curves([record[kind] or {} for record in records]) for kind in KINDS}
        return Track(run.name, steps, curves)
    except (KeyError, TypeError, ValueError) as error:
        raise RunError(f"{run.path / 'metrics.jsonl'}: damaged track records ({error})") from error


def pair_drift(run: Run, other: Run, tokens: Integer[np.ndarray, "B T"]) -> Track:
    """Measure the drift between two runs that started from the same weights.

    Both read the beginning of each window of tokens.
    """
    for key in ("n_layers", "n_heads", "emb_dim", "vocab_size"):
        one, two = (r.settings["model"].get(key) for r in (run, other))
        if one != two:
            raise ConfigError(
                f"{run.path} has {key}={one} and {other.path} has {two}: only runs of the same "
                "sizes can be compared head by head"
            )
    ours, theirs = snapshots(run), snapshots(other)
    steps = [step for step in ours if step in theirs]
    if not steps:
        raise RunError(
            f"{run.path} and {other.path} kept no weights of the same steps: start both with "
            "--init-from the same run, and train both with --track 50, for example"
        )
    windows = mx.array(tokens[:, :TRACKED_TOKENS])
    drifts = [
        drift(run.load_model(ours[step]), other.load_model(theirs[step]), windows) for step in steps
    ]
    name = f"{run.name} against {other.name}"
    curves: dict[str, Curves] = {"scores": {}, "value_outputs": {}, "drift": _curves(drifts)}
    return Track(name, np.array(steps, np.int64), curves)


def _curves(records: Sequence[Mapping[str, Any]]) -> Curves:
    """Stack one record per step into one array per name; drop names that some record lacks."""
    shared = [name for name in records[0] if all(name in record for record in records)]
    return {name: np.array([r[name] for r in records], np.float64) for name in shared}
