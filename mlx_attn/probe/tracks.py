"""Read the record of a tracked training: the matrices of every head, step by step."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np
from jaxtyping import Float64, Int64, Integer

from mlx_attn.errors import ConfigError, RunError
from mlx_attn.probe.tracking import TRACKED_TOKENS, drift, snapshots
from mlx_attn.run_directory import Run

Curves = Mapping[str, Float64[np.ndarray, "N L H"]]
"""A number for every tracked step, layer and head, by name."""


@dataclass(frozen=True, slots=True)
class Track:
    """The curves of one run at its tracked steps."""

    name: str
    steps: Int64[np.ndarray, " N"]
    scores: Curves  # effective rank, norm and symmetry of S_h
    value_outputs: Curves  # the same of V_h O_h
    # The distance of the heads from their start, or from another run's heads (see
    # `probe.tracking.drift`); empty if unknown.
    drift: Curves


def read_track(run: Run) -> Track:
    """Read the curves that `train --track` wrote."""
    records = [record for record in run.metrics() if record.get("event") == "track"]
    if not records:
        raise RunError(f"{run.path} was not tracked: train with --track 50, for example")
    try:
        drifts = [record["drift"] or {} for record in records]
        return Track(
            run.name,
            np.array([record["step"] for record in records], np.int64),
            _curves([record["scores"] for record in records]),
            _curves([record["value_outputs"] for record in records]),
            _curves(drifts),
        )
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
    return Track(name, np.array(steps, np.int64), {}, {}, _curves(drifts))


def _curves(records: Sequence[Mapping[str, Any]]) -> Curves:
    """Stack one record per step into one array per name; drop names that some record lacks."""
    shared = [name for name in records[0] if all(name in record for record in records)]
    return {name: np.array([r[name] for r in records], np.float64) for name in shared}
