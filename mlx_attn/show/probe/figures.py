"""Figures of a probe: maps, singular values, alignment between heads; as SVG, PNG or in a page."""

import io
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mlx_attn.errors import RunError
from mlx_attn.files import write_bytes
from mlx_attn.lab.probe import Probe

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = ("#d55e00", "#0072b2", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6bb1", "#7f7f7f")
"""Told apart by most eyes, on light and on dark grounds (after Okabe and Ito)."""

_INK = "#010203"
"""Stands for the page's own colour of text, in figures that are made for a page."""
_STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "mlx_attn",
    "text.parse_math": False,
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "sans-serif"],
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 9,
    "legend.frameon": False,
}
_INK_STYLE = {f"{part}.color": _INK for part in ("text", "xtick", "ytick")} | {
    f"axes.{part}color": _INK for part in ("edge", "label")
}

Draw = Callable[[], "Figure"]


def style(**changes: Any) -> Any:
    """A context in which every figure of the project looks alike.

    Raises:
        RunError: matplotlib is not installed.
    """
    try:
        import matplotlib as mpl
    except ImportError as error:
        raise RunError("figures need matplotlib: pip install 'mlx-attn[lab]'") from error
    settings: Any = {**_STYLE, **changes}
    return mpl.rc_context(settings)


def save_figure(draw: Draw, path: Path) -> list[Path]:
    """Write a figure as SVG and as PNG; returns the two paths.

    Args:
        draw: Makes the figure.
        path: Where, without the ending.

    Raises:
        RunError: matplotlib is not installed, or the files cannot be written.
    """
    paths = [path.with_name(f"{path.name}.{kind}") for kind in ("svg", "png")]
    with style():
        figure = draw()
        for target in paths:
            write_bytes(target, _bytes(figure, target.suffix[1:], facecolor="white"))
    return paths


def figure_for_page(draw: Draw) -> str:
    """A figure as SVG that takes the colour of the text around it."""
    with style(**_INK_STYLE):
        svg = _bytes(draw(), "svg", transparent=True).decode()
    return svg[svg.index("<svg") :].replace(_INK, "currentColor")


def panels(
    count: int, columns: int, size: tuple[float, float], **sharing: Any
) -> "tuple[Figure, list[Any]]":
    """A figure with so many axes, in rows of so many columns; size is that of one, in inches."""
    from matplotlib.figure import Figure

    columns = min(columns, count)
    rows = -(-count // columns)
    figure = Figure(figsize=(size[0] * columns, size[1] * rows), layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False, **sharing).flat)
    for unused in axes[count:]:
        unused.axis("off")
    return figure, axes[:count]


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


def _bytes(figure: "Figure", kind: str, **looks: Any) -> bytes:
    buffer = io.BytesIO()
    dated = {"Date": None} if kind == "svg" else {}
    with warnings.catch_warnings():
        # A glyph that a font lacks is no reason to go without the figure.
        warnings.filterwarnings("ignore", "Glyph .* missing")
        figure.savefig(buffer, format=kind, dpi=160, metadata=dated, **looks)
    return buffer.getvalue()
