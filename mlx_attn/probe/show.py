"""The numbers of every head: which there are, and how they are put into a table and into JSON."""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Group
from rich.table import Table
from rich.text import Text

from mlx_attn.attention.analysis import why_not_one_matrix
from mlx_attn.probe.heads import Probe
from mlx_attn.probe.tracks import Curves, PairDrift, Track
from mlx_attn.ui.plots import COLOURS, Draw, panels, save_figure
from mlx_attn.ui.terminal import plural

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True)
class Column:
    """A number that every head has.

    Attributes:
        group: What it is a number of.
        heading: Its name.
        meaning: What it says, for people.
        values: The number of every layer and head.
        uniform: Its name in `Probe.uniform`; empty where a uniform head has none.
        short: Its heading where there is little room; empty leaves it out there.
        full: The value that is shaded fully; 0 is the largest of the column.
    """

    group: str
    heading: str
    meaning: str
    values: Callable[[Probe], np.ndarray]
    uniform: str = ""
    short: str = ""
    full: float = 0.0


def _matrix_columns(group: str, letters: str, of: Callable[[Probe], Any]) -> tuple[Column, ...]:
    return (
        Column(
            group,
            "effective rank",
            "how many directions the matrix uses: the exponential of the entropy of its singular "
            "values (Roy and Vetterli, 2007)",
            lambda found: of(found).effective_rank,
            short=f"{letters}\nrank",
        ),
        Column(
            group,
            "stable rank",
            "squared Frobenius norm over squared largest singular value: a rank blind to small "
            "values",
            lambda found: of(found).stable_rank,
        ),
        Column(group, "norm", "Frobenius norm of the matrix", lambda found: of(found).norm),
        Column(
            group,
            "symmetry",
            "1 for a symmetric matrix, -1 for an antisymmetric one, 0 in between",
            lambda found: of(found).symmetry,
            short=f"{letters}\nsymm.",
            full=1.0,
        ),
    )


LOOKS = "what it looks at"
COLUMNS = (
    Column(
        LOOKS,
        "entropy",
        "spread of the attention in nats; e to the entropy is the number of tokens looked at",
        lambda found: found.statistics.entropy,
        "entropy",
        "entropy",
    ),
    Column(
        LOOKS,
        "distance",
        "how far back it looks, in tokens",
        lambda found: found.statistics.distance,
        "distance",
        "distance",
    ),
    Column(
        LOOKS,
        "previous",
        "share of the attention on the token before",
        lambda found: found.statistics.previous,
        "previous",
        "prev.\ntoken",
        1.0,
    ),
    Column(
        LOOKS,
        "first",
        "share of the attention on the first token",
        lambda found: found.statistics.first,
        "first",
        "first\ntoken",
        1.0,
    ),
    Column(
        LOOKS,
        "induction",
        "on random tokens read twice, the share on the token that followed last time (Olsson et "
        "al., 2022)",
        lambda found: found.statistics.induction,
        "induction",
        "induc-\ntion",
        1.0,
    ),
    *_matrix_columns("S_h, which makes its scores", "S", lambda found: found.scores),
    *_matrix_columns("V_h O_h, which it moves x by", "VO", lambda found: found.value_outputs),
)


def number(value: Any) -> str:
    """Two decimals, and never -0.00; a dash where there is no number."""
    return f"{round(float(value), 2) + 0.0:.2f}" if math.isfinite(value) else "-"


def why_multi_headed(found: Probe) -> str:
    """How many maps there are, in a sentence."""
    L, H = found.config.n_layers, found.config.n_heads
    if H == 1:
        return f"{plural(L, 'layer')} of one head: one attention map per layer, {L} in all."
    return (
        f"{plural(L, 'layer')} of {H} heads: {H} attention maps per layer, {L * H} in all. "
        "Each head looks at the text in its own way, hence multi-headed."
    )


def caveat(found: Probe) -> str:
    """What keeps S_h from being all there is to scores; empty if nothing does."""
    reason = why_not_one_matrix(found.config.attention())
    return f"Scores are not one matrix here: {reason}." if reason else ""


def heads_table(found: Probe) -> Group:
    """A row per head, as wide as a terminal."""
    columns = [column for column in COLUMNS if column.short]
    table = Table(box=None, padding=(0, 1, 0, 0))
    for heading in ("layer", "head", *(column.short for column in columns)):
        table.add_column(heading, justify="right", no_wrap=True)
    values = [column.values(found) for column in columns]
    for layer, head in np.ndindex(found.config.n_layers, found.config.n_heads):
        numbers = [number(value[layer, head]) for value in values]
        table.add_row(str(layer), str(head), *numbers)
    table.add_row("uniform", "", *_uniform(found, columns), style="dim")
    return Group(Text(why_multi_headed(found)), table)


def legend(found: Probe) -> list[str]:
    """What the table's numbers are, in a few lines."""
    lines = [
        "entropy in nats, distance in tokens, shares of 1; uniform looks at all tokens alike",
        "S and VO: effective rank and symmetry of S_h and V_h O_h",
    ]
    return [*lines, *filter(None, [caveat(found)])]


def record(found: Probe) -> dict[str, Any]:
    """All numbers, for JSON; the maps themselves are left out."""
    heads = [
        {"layer": layer, "head": head}
        | {key: _json(array[layer, head]) for key, array in asdict(found.statistics).items()}
        | {"S": _matrix(found.scores, layer, head)}
        | {"VO": _matrix(found.value_outputs, layer, head)}
        for layer, head in np.ndindex(found.config.n_layers, found.config.n_heads)
    ]
    uniform = {key: _json(value) for key, value in found.uniform.items()}
    alignment = {
        "S": found.scores.alignment.tolist(),
        "VO": found.value_outputs.alignment.tolist(),
    }
    facts = {"texts": len(found.tokens), "tokens": found.tokens.shape[1]}
    return facts | {"heads": heads, "uniform": uniform, "alignment": alignment}


def _matrix(matrices: Any, layer: int, head: int) -> dict[str, Any]:
    keys = ("effective_rank", "stable_rank", "norm", "symmetry", "singular_values")
    return {key: getattr(matrices, key)[layer, head].tolist() for key in keys}


def _json(value: Any) -> float | None:
    return float(value) if math.isfinite(value) else None


def _uniform(found: Probe, columns: list[Column]) -> list[str]:
    return [number(found.uniform[c.uniform]) if c.uniform else "" for c in columns]


def draw_maps(found: Probe, text: int = 0) -> "Figure":
    """The attention map of every head: a row of panels per layer."""
    L, H = found.config.n_layers, found.config.n_heads
    figure, axes = panels(L * H, H, (1.5, 1.6))
    for axis, (layer, head) in zip(axes, np.ndindex(L, H), strict=True):
        weights = np.sqrt(found.maps[layer, text, head])
        axis.imshow(weights, cmap="Oranges", vmin=0, vmax=1, interpolation="nearest")
        axis.set(title=f"layer {layer}, head {head}", xticks=[], yticks=[])
    figure.supylabel("the token that looks")
    figure.supxlabel("the token that is looked at (shade: square root of the weight)")
    return figure


def draw_singular_values(found: Probe, kind: str) -> "Figure":
    """The singular values of every head, a panel per layer; kind is "S" or "VO"."""
    values = _matrices(found, kind).singular_values
    figure, axes = panels(len(values), 4, (2.6, 2.1), sharex=True, sharey=True)
    for layer, axis in enumerate(axes):
        for head, line in enumerate(values[layer]):
            colour = COLOURS[head % len(COLOURS)]
            dashes = "-" if head < len(COLOURS) else "--"
            place = np.arange(1, len(line) + 1)
            axis.plot(place, line, dashes, color=colour, linewidth=1, label=f"head {head}")
        axis.set(title=f"layer {layer}")
    axes[0].set_ylim(bottom=0)
    heads = axes[0].get_legend_handles_labels()
    figure.legend(*heads, loc="outside right upper")
    figure.supxlabel("singular value, the largest first")
    return figure


def draw_alignment(found: Probe, kind: str) -> "Figure":
    """How alike the heads of a layer are, a panel per layer; kind is "S" or "VO"."""
    alignment = _matrices(found, kind).alignment
    figure, axes = panels(len(alignment), 4, (2.2, 2.2), sharex=True, sharey=True)
    for layer, axis in enumerate(axes):
        axis.imshow(alignment[layer], cmap="Oranges", vmin=0, vmax=1)
        places = range(len(alignment[layer]))
        axis.set(title=f"layer {layer}", xticks=places, yticks=places)
    figure.colorbar(axes[0].images[0], ax=axes, shrink=0.8, label="|cosine|")
    figure.supxlabel("head")
    figure.supylabel("head")
    return figure


def save_figures(found: Probe, directory: Path) -> list[Path]:
    """All figures, as SVG and PNG; returns their paths.

    Raises:
        RunError: matplotlib is not installed, or the files cannot be written.
    """
    draws: dict[str, Draw] = {
        "maps": lambda: draw_maps(found),
        "singular-values-s": lambda: draw_singular_values(found, "S"),
        "singular-values-vo": lambda: draw_singular_values(found, "VO"),
        "alignment-s": lambda: draw_alignment(found, "S"),
        "alignment-vo": lambda: draw_alignment(found, "VO"),
    }
    paths = [save_figure(draw, directory / name) for name, draw in draws.items()]
    return [path for pair in paths for path in pair]


def _matrices(found: Probe, kind: str) -> Any:
    return {"S": found.scores, "VO": found.value_outputs}[kind]


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
