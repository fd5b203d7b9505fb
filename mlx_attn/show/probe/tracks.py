"""Curves of a tracked training: as a table of means over heads, as JSON, and as figures."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Group
from rich.table import Table
from rich.text import Text

from mlx_attn.lab.probe import PairDrift, Track
from mlx_attn.lab.probe.tracks import Curves
from mlx_attn.show.figures import COLOURS, Draw, panels, save_figure
from mlx_attn.show.probe.numbers import number

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ROWS = 20
"""Most rows of a table; longer tracks are shown at so many steps, evenly spread."""

NAMES = {
    "effective_rank": "effective rank",
    "norm": "norm",
    "symmetry": "symmetry",
    "matrices": "drift of S_h",
    "scores": "drift of scores",
    "maps": "attention moved",
}
"""What the curves are called where people read them."""


def track_table(track: Track) -> Group:
    """A row per step, averaged over all heads."""
    groups = (("S", track.scores), ("VO", track.value_outputs), ("", track.drift))
    columns = [
        (f"{letters}\n{NAMES[key]}".strip(), curve)
        for letters, curves in groups
        for key, curve in curves.items()
    ]
    return _table(f"{track.name}: means over heads", track.steps, columns)


def pair_table(pair: PairDrift, title: str) -> Group:
    """A row per step, averaged over all heads."""
    return _table(title, pair.steps, [(NAMES[key], curve) for key, curve in pair.drift.items()])


def track_record(track: Track) -> dict[str, Any]:
    """All curves, for JSON: lists are [step][layer][head]."""
    return {
        "run": track.name,
        "steps": track.steps.tolist(),
        "scores": _lists(track.scores),
        "value_outputs": _lists(track.value_outputs),
        "drift": _lists(track.drift),
    }


def pair_record(pair: PairDrift) -> dict[str, Any]:
    """All curves, for JSON: lists are [step][layer][head]."""
    return {"steps": pair.steps.tolist(), **_lists(pair.drift)}


def draw_tracks(tracks: Sequence[Track], kind: str) -> "Figure":
    """Every head's curves, a column per layer; one run in colours by head, several by run.

    Args:
        tracks: Of runs with as many layers.
        kind: "scores", "value_outputs" or "drift".
    """
    named = [(track.name, track.steps, getattr(track, kind)) for track in tracks]
    return _draw([line for line in named if line[2]])


def draw_pair(pair: PairDrift) -> "Figure":
    """The drift of every head of a pair of runs, a column per layer."""
    return _draw([("", pair.steps, pair.drift)])


def save_tracks(tracks: Sequence[Track], pair: PairDrift | None, directory: Path) -> list[Path]:
    """All figures, as SVG and PNG; returns their paths.

    Raises:
        RunError: matplotlib is not installed, or the files cannot be written.
    """
    draws: dict[str, Draw] = {
        "track-s": lambda: draw_tracks(tracks, "scores"),
        "track-vo": lambda: draw_tracks(tracks, "value_outputs"),
    }
    if any(track.drift for track in tracks):
        draws["track-drift"] = lambda: draw_tracks(tracks, "drift")
    if pair:
        draws["track-pair"] = lambda: draw_pair(pair)
    paths = [save_figure(draw, directory / name) for name, draw in draws.items()]
    return [path for two in paths for path in two]


def _draw(lines: Sequence[tuple[str, np.ndarray, Curves]]) -> "Figure":
    keys = list(lines[0][2])
    n_layers = lines[0][2][keys[0]].shape[1]
    figure, axes = panels(len(keys) * n_layers, n_layers, (2.3, 1.8), sharex=True, sharey="row")
    for axis, (row, layer) in zip(axes, np.ndindex(len(keys), n_layers), strict=True):
        for run, (name, steps, curves) in enumerate(lines):
            _draw_heads(axis, steps, curves[keys[row]][:, layer], name, run, len(lines))
        if row == 0:
            axis.set_title(f"layer {layer}")
        if layer == 0:
            axis.set_ylabel(NAMES[keys[row]])
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right upper")
    figure.supxlabel("step")
    return figure


def _draw_heads(
    axis: Any, steps: np.ndarray, heads: np.ndarray, name: str, run: int, runs: int
) -> None:
    """A line per head; several runs have a colour each, and one label."""
    for head, line in enumerate(heads.T):
        colour = COLOURS[(head if runs == 1 else run) % len(COLOURS)]
        label = f"head {head}" if runs == 1 else name if head == 0 else None
        axis.plot(steps, line, color=colour, linewidth=1, alpha=0.9, label=label)


def _table(title: str, steps: np.ndarray, columns: Sequence[tuple[str, np.ndarray]]) -> Group:
    table = Table(box=None, padding=(0, 1, 0, 0))
    for heading in ("step", *(_stacked(heading) for heading, _ in columns)):
        table.add_column(heading, justify="right", no_wrap=True, vertical="bottom")
    shown = np.unique(np.linspace(0, len(steps) - 1, ROWS).astype(int))
    means = [curve.mean(axis=(1, 2)) for _, curve in columns]
    for i in shown:
        table.add_row(str(steps[i]), *(number(mean[i]) for mean in means))
    return Group(Text(title), table)


def _stacked(heading: str) -> str:
    """A heading over a narrow column."""
    return heading.replace("effective", "eff.").replace(" ", "\n")


def _lists(curves: Curves) -> dict[str, Any]:
    return {key: curve.tolist() for key, curve in curves.items()}
