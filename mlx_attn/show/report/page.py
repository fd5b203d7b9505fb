"""The report as one HTML file: no network, no script, light and dark, readable on a phone."""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mlx_attn.show.figures import figure_for_page
from mlx_attn.show.pages import markup, render
from mlx_attn.show.report.content import Block, Plot, Report, Section
from mlx_attn.show.report.words import shown

if TYPE_CHECKING:
    from markupsafe import Markup

_GROUP = re.compile(r'<g id="[^"]*">')
_METADATA = re.compile(r"<metadata>.*?</metadata>\s*", re.DOTALL)


def as_html(report: Report) -> str:
    """The page as text.

    Raises:
        RunError: jinja2 or matplotlib is not installed.
    """
    return render(
        "report",
        report=report,
        abreast=_abreast,
        kind=_kind,
        drawn=_drawn,
        shown=shown,
        slug=_slug,
    )


def _abreast(blocks: Sequence[Block]) -> list[tuple[Plot | None, list[Block]]]:
    """Every figure with what is said beside it; what comes before the first has none."""
    groups: list[tuple[Plot | None, list[Block]]] = [(None, [])]
    for block in blocks:
        if isinstance(block, Plot):
            groups.append((block, []))
        else:
            groups[-1][1].append(block)
    return [group for group in groups if any(group)]


def _kind(block: Any) -> str:
    """Which part of the template shows a block."""
    if isinstance(block, tuple):
        return f"{type(block[0]).__name__.lower()}s"
    return type(block).__name__.lower()


def _drawn(plot: Plot) -> "Markup":
    """A figure without what only an editor of figures needs; names would repeat within a page."""
    svg = _METADATA.sub("", figure_for_page(plot.draw))
    return markup(_GROUP.sub("<g>", svg))


def _slug(*sections: Section) -> str:
    """What an address calls a section."""
    headings = " ".join(section.heading for section in sections)
    return re.sub(r"\W+", "-", headings.lower()).strip("-")
