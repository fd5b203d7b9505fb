"""Figures of a probe: maps, singular values, alignment between heads; as SVG, PNG or in a page."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mlx_attn.lab.probe import Probe
from mlx_attn.show.figures import COLOURS, Draw, panels, save_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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
