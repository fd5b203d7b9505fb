"""How every figure of the project looks, and how it is written: as SVG, as PNG or for a page.

matplotlib and jinja2 are imported when a figure or a page is made.
"""

import io
import re
import warnings
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from markupsafe import Markup

from mlx_attn.files import write_bytes

if TYPE_CHECKING:
    import matplotlib.figure

DASHES = ("-", "--", "-.", ":")
COLOURS = ("#d55e00", "#0072b2", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6bb1", "#7f7f7f")
"""Told apart by most eyes, on light and on dark grounds (after Okabe and Ito); dashes by all."""

_INK = "#010203"
"""Stands for the page's own colour of text, in figures that are made for a page."""
_INK_STYLE = {f"{part}.color": _INK for part in ("text", "xtick", "ytick")} | {
    f"axes.{part}color": _INK for part in ("edge", "label")
}

Figure: TypeAlias = "matplotlib.figure.Figure"
Draw = Callable[[], Figure]


def style(**changes: Any) -> Any:
    """Return a context in which every figure of the project looks alike."""
    import matplotlib.style

    return matplotlib.style.context([str(files("mlx_attn.ui") / "figures.mplstyle"), changes])


def save_figure(draw: Draw, path: Path) -> list[Path]:
    """Write a figure as SVG and as PNG; returns the two paths."""
    paths = [path.with_name(f"{path.name}.{kind}") for kind in ("svg", "png")]
    with style():
        figure = draw()
        for target in paths:
            write_bytes(target, _bytes(figure, target.suffix[1:], facecolor="white"))
    return paths


def figure_for_page(draw: Draw) -> Markup:
    """Return a figure as SVG markup that takes the colour of the text around it.

    Without what only an editor of figures needs: names of groups would repeat within a page.
    """
    with style(**_INK_STYLE):
        svg = _bytes(draw(), "svg", transparent=True).decode()
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    return Markup(re.sub(r'<g id="[^"]*">', "<g>", svg).replace(_INK, "currentColor"))


def panels(
    count: int, columns: int, size: tuple[float, float], **sharing: Any
) -> tuple[Figure, list[Any]]:
    """Return a figure of `count` axes in rows of `columns`; `size` is the size of one in inches."""
    import matplotlib.figure

    rows = count // columns
    figure = matplotlib.figure.Figure(
        figsize=(size[0] * columns, size[1] * rows), layout="constrained"
    )
    return figure, list(figure.subplots(rows, columns, squeeze=False, **sharing).flat)


def _bytes(figure: Figure, kind: str, **looks: Any) -> bytes:
    buffer = io.BytesIO()
    dated = {"Date": None} if kind == "svg" else {}
    with warnings.catch_warnings():
        # Draw the figure even if the font lacks a glyph.
        warnings.filterwarnings("ignore", "Glyph .* missing")
        figure.savefig(buffer, format=kind, dpi=160, metadata=dated, **looks)
    return buffer.getvalue()


def render(name: str, /, **values: Any) -> str:
    """Render the page of a template, with the project's style and the template's."""
    import jinja2

    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True, autoescape=True
    )
    style = Markup(template("page.css") + template(f"{name}.css"))
    return environment.from_string(template(f"{name}.html")).render(style=style, **values)


def template(name: str) -> str:
    """Return the text of a file for pages."""
    return (files("mlx_attn.ui") / "templates" / name).read_text(encoding="utf-8")
