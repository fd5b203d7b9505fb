"""Show the numbers and curves of every head as tables, JSON and figures."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float64
from rich.console import Group
from rich.text import Text

from mlx_attn.convert import circuits
from mlx_attn.errors import plural
from mlx_attn.probe import tracking
from mlx_attn.probe.heads import Probe
from mlx_attn.records import package_table
from mlx_attn.ui.plots import COLOURS, DASHES, Figure, panels, save_figure
from mlx_attn.ui.terminal import number_table

MATRICES = {"S": "S_h", "VO": "V_h O_h"}
"""The names of a head's matrices, by the keys of `Probe.spectra`."""
GROUPS = {
    "": "attention",
    "S": "S_h, the matrix of its scores",
    "VO": "V_h O_h, the matrix of its output",
}
"""The headings above several columns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A number of every head; see columns.toml."""

    of: str = ""  # a matrix, or "" for the attention
    key: str
    meaning: str
    short: str = ""
    full: float = 0.0

    def values(self, probe: Probe) -> Float64[np.ndarray, "L maps"]:
        """Return the numbers of all heads."""
        return (probe.spectra[self.of] if self.of else probe.statistics)[self.key]

    def uniform(self, probe: Probe) -> str:
        """Return the number of a head with uniform attention; "" for a matrix."""
        return "" if self.of else number(probe.uniform[self.key])


_ROWS = package_table("mlx_attn.probe", "columns")
COLUMNS = (
    *(Column(**row) for row in _ROWS["statistics"]),
    *(Column(of=of, **row) for of in MATRICES for row in _ROWS["matrices"]),
)


def columns(probe: Probe) -> list[Column]:
    """Return the available columns, without missing matrices."""
    return [column for column in COLUMNS if column.of not in probe.reasons]


def number(value: Any) -> str:
    """Format a number with two decimals, never -0.00; NaN becomes a dash."""
    return f"{round(float(value), 2) + 0.0:.2f}" if math.isfinite(value) else "-"


def how_many_maps(probe: Probe) -> str:
    """Return a sentence with the number of maps."""
    L, H = probe.config.n_layers, probe.n_maps
    heads = f"{plural(L, 'layer')} of {plural(probe.config.n_heads, 'head')}"
    return f"{heads}: {plural(H, 'attention map')} per layer, {L * H} in all."


_UNLIKE = 1.5  # times the number of a head that attends to all tokens alike
_PATTERNS = {
    "previous": "attends to the previous token most",
    "first": "rests on the first token most",
    "induction": "attends most to what followed last time",
}


def patterns(probe: Probe) -> str:
    """Return a sentence for each pattern, about the head that shows it most clearly."""
    sentences: list[str] = []
    for key, words in _PATTERNS.items():
        shares, alike = np.nan_to_num(probe.statistics[key]), probe.uniform[key]
        layer, head = np.unravel_index(shares.argmax(), shares.shape)
        share = shares[layer, head]
        if share >= max(_UNLIKE * alike, 0.01):
            most, usual = (f"{100 * value:.0f} %" for value in (share, alike))
            sentences.append(
                f"Layer {layer}, head {head} {words}: {most}, where attending to all alike is "
                f"{usual}."
            )
    nothing = "No head keeps to the previous token, to the first, or to what followed last time."
    return " ".join(sentences) or nothing


_SHARES = 0.005
"""Largest deviation from 1 of the sum of weights that count as shares; two decimals are shown."""


def caveat(probe: Probe) -> str:
    """Explain missing matrices, scores beyond S_h, and weights that do not add up to 1."""
    left_out = [f"No {MATRICES[of]} is shown: {why}." for of, why in probe.reasons.items()]
    kinds = probe.config.kinds()
    reason = "; ".join(dict.fromkeys(filter(None, map(circuits.why_not_one_matrix, kinds))))
    if reason and "S" in probe.spectra:
        left_out.append(f"Scores are not one matrix here: {reason}.")
    mixings = [mixing for kind in kinds for mixing in kind.choices("mixing")]
    loose = dict.fromkeys(mixing.name for mixing in mixings if not mixing.sums_to_one)
    low, high = probe.row_sums
    if low < 1 - _SHARES or high > 1 + _SHARES:
        left_out.append(
            f"The weights of a token add up to between {low:.2f} and {high:.2f} here, not to 1 "
            f"(mixing={' or '.join(loose)}): they are no shares, and entropy and distance are sums "
            "over them as they are."
        )
    return " ".join(left_out)


def heads_table(probe: Probe) -> Group:
    """Return a table with a row per head that fits a terminal."""
    shown = [column for column in columns(probe) if column.short]
    headings = ["layer,\nhead"]
    for column in shown:
        headings.append(column.short.format(S=column.of))
        if "rank" in column.key:
            headings[-1] += f"\nof {probe.spectra[column.of]['singular_values'].shape[-1]}"
    table = number_table(headings, gap=1)
    values = [column.values(probe) for column in shown]
    for layer, head in np.ndindex(probe.config.n_layers, probe.n_maps):
        numbers = [number(value[layer, head]) for value in values]
        table.add_row(f"{layer}  {head}", *numbers)
    table.add_row("uniform", *(column.uniform(probe) for column in shown), style="dim")
    return Group(Text(how_many_maps(probe)), table)


def legend(probe: Probe) -> list[str]:
    """Explain the table's numbers in a few lines."""
    lines = [
        "entropy in nats, distance in tokens, shares of 1; uniform attends to all tokens alike",
        *(f"{of}: effective rank and symmetry of {MATRICES[of]}" for of in probe.spectra),
        caveat(probe),
    ]
    return [line for line in lines if line]


def record(probe: Probe) -> dict[str, Any]:
    """Return all numbers for JSON, without the maps."""
    matrices = {name: probe.spectra.get(name) for name in MATRICES}
    heads = [
        {"layer": layer, "head": head}
        | {key: _json(array[layer, head]) for key, array in probe.statistics.items()}
        | {
            name: of and {key: of[key][layer, head].tolist() for key in of if key != "alignment"}
            for name, of in matrices.items()
        }
        for layer, head in np.ndindex(probe.config.n_layers, probe.n_maps)
    ]
    return {
        "texts": len(probe.tokens),
        "tokens": probe.tokens.shape[1],
        "heads": heads,
        "uniform": {key: _json(value) for key, value in probe.uniform.items()},
        "alignment": {name: of and of["alignment"].tolist() for name, of in matrices.items()},
        "row_sums": probe.row_sums,
        "reasons": probe.reasons,
    }


def _json(value: Any) -> float | None:
    return float(value) if math.isfinite(value) else None


def draw_maps(probe: Probe) -> Figure:
    """Draw the attention map of every head on the first text, a row of panels per layer."""
    L, H = probe.config.n_layers, probe.n_maps
    figure, axes = panels(L * H, H, (1.5, 1.6))
    maps = probe.maps[:, 0]  # [layers, heads, T, T]
    weights = np.sign(maps) * np.sqrt(np.abs(maps))
    for axis, (layer, head) in zip(axes, np.ndindex(L, H), strict=True):
        shades = weights[layer, head]
        axis.imshow(shades, cmap="PuOr_r", vmin=-1, vmax=1, interpolation="nearest")
        axis.set(title=f"layer {layer}, head {head}", xticks=[], yticks=[])
    figure.supylabel("query token")
    figure.supxlabel("key token (shade: square root of the weight, purple if negative)", wrap=True)
    return figure


def save_figures(probe: Probe, directory: Path) -> list[Path]:
    """Write the figure of all maps as SVG and PNG; return their paths."""
    return save_figure(partial(draw_maps, probe), directory / "maps")


ROWS = 20
"""Most rows of a table; longer tracks are shown at evenly spread steps."""

NAMES = {
    "effective_rank": "effective rank",
    "norm": "norm",
    "symmetry": "symmetry",
    "matrices": "drift of S_h",
    "scores": "drift of scores",
    "maps": "attention moved",
}
"""The curves' names for people."""


def track_table(track: tracking.Track) -> Group:
    """Return a table with a row per step, averaged over all heads."""
    letters = {"scores": "S\n", "value_outputs": "VO\n", "drift": ""}
    headings, means = ["step"], []
    for kind, curves in track.curves.items():
        for key, curve in curves.items():
            headings.append(letters[kind] + NAMES[key].replace("effective", "eff."))
            means.append(curve.mean(axis=(1, 2)))
    table = number_table([heading.replace(" ", "\n") for heading in headings], gap=1)
    for i in np.unique(np.linspace(0, len(track.steps) - 1, ROWS).astype(int)):
        table.add_row(str(track.steps[i]), *(number(mean[i]) for mean in means))
    return Group(Text(f"{track.name}: means over heads"), table)


def track_record(track: tracking.Track) -> dict[str, Any]:
    """Return all curves for JSON, as lists [step][layer][head]."""
    curves = {
        kind: {key: curve.tolist() for key, curve in of_kind.items()}
        for kind, of_kind in track.curves.items()
    }
    return {"run": track.name, "steps": track.steps.tolist(), **curves}


def draw_tracks(runs: Sequence[tracking.Track], kind: str) -> Figure:
    """Draw every head's curves, a column per layer; a look per head, or per run if several.

    All runs have the same number of layers; `kind` is one of `tracking.KINDS`.
    """
    runs = [track for track in runs if track.curves[kind]]
    first = runs[0].curves[kind]
    keys, n_layers = list(first), next(iter(first.values())).shape[1]
    figure, axes = panels(len(keys) * n_layers, n_layers, (2.3, 1.8), sharex=True, sharey="row")
    for axis, (row, layer) in zip(axes, np.ndindex(len(keys), n_layers), strict=True):
        for place, track in enumerate(runs):
            for head, line in enumerate(track.curves[kind][keys[row]][:, layer].T):
                at, label = head, f"head {head}"
                if len(runs) > 1:
                    at, label = place, track.name if head == 0 else None
                looks = {"color": COLOURS[at % len(COLOURS)], "ls": DASHES[at % len(DASHES)]}
                axis.plot(track.steps, line, **looks, linewidth=1, alpha=0.9, label=label)
        if row == 0:
            axis.set_title(f"layer {layer}")
        if layer == 0:
            axis.set_ylabel(NAMES[keys[row]])
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right upper")
    figure.supxlabel("step")
    return figure


def save_tracks(
    runs: Sequence[tracking.Track], pair: tracking.Track | None, directory: Path
) -> list[Path]:
    """Write all figures of tracks as SVG and PNG; return their paths."""
    figures = {"s": (runs, "scores"), "vo": (runs, "value_outputs")}
    if any(track.curves["drift"] for track in runs):
        figures["drift"] = runs, "drift"
    if pair:
        figures["pair"] = [pair], "drift"
    paths: list[Path] = []
    for name, shown in figures.items():
        paths += save_figure(partial(draw_tracks, *shown), directory / f"track-{name}")
    return paths
