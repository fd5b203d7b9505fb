"""How a comparison is shown: a table in the terminal, one page that needs no network, Markdown."""

from typing import TYPE_CHECKING

from mlx_attn.lazy import lazily

if TYPE_CHECKING:
    from mlx_attn.show.report.forest import forest_figure
    from mlx_attn.show.report.markdown import as_markdown
    from mlx_attn.show.report.page import as_html
    from mlx_attn.show.report.report import report_of, save_figures, write_report
    from mlx_attn.show.report.terminal import summary_lines, verdict_tables

__all__ = [
    "as_html",
    "as_markdown",
    "forest_figure",
    "report_of",
    "save_figures",
    "summary_lines",
    "verdict_tables",
    "write_report",
]

__getattr__ = lazily(
    __name__,
    {
        "as_html": "page",
        "as_markdown": "markdown",
        "forest_figure": "forest",
        "report_of": "report",
        "save_figures": "report",
        "summary_lines": "terminal",
        "verdict_tables": "terminal",
        "write_report": "report",
    },
)
