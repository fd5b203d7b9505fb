"""A comparison as a report, and the files that it becomes."""

from pathlib import Path

from mlx_attn.files import write_text
from mlx_attn.lab.compare.result import Comparison
from mlx_attn.show.figures import save_figure
from mlx_attn.show.report.answer import answer_section, noise_section
from mlx_attn.show.report.budgets import budget_section
from mlx_attn.show.report.content import Report
from mlx_attn.show.report.grounds import (
    reproduction_section,
    samples_section,
    settings_section,
    tuning_section,
)
from mlx_attn.show.report.markdown import as_markdown
from mlx_attn.show.report.marks import marks_of
from mlx_attn.show.report.page import as_html

HTML, MARKDOWN = "report.html", "report.md"


def report_of(comparison: Comparison) -> Report:
    """The report of a comparison: the answer first, what it rests on last."""
    marks = marks_of(comparison)
    sections = (
        answer_section(comparison),
        noise_section(comparison),
        *(budget_section(budget, comparison, marks) for budget in comparison.budgets),
        tuning_section(comparison, marks),
        samples_section(comparison),
        settings_section(comparison),
        reproduction_section(comparison),
    )
    kept = tuple(section for section in sections if section.blocks or section.parts)
    return Report(comparison.name, comparison.question, kept)


def write_report(comparison: Comparison, directory: Path) -> list[Path]:
    """Write report.html and report.md into a directory; returns their paths.

    Raises:
        RunError: jinja2 or matplotlib is not installed, or a file cannot be written.
    """
    report = report_of(comparison)
    texts = {HTML: as_html(report), MARKDOWN: as_markdown(report)}
    for name, text in texts.items():
        write_text(directory / name, text)
    return [directory / name for name in texts]


def save_figures(comparison: Comparison, directory: Path) -> list[Path]:
    """Write every figure as SVG and PNG; returns their paths.

    Raises:
        RunError: matplotlib is not installed, or a file cannot be written.
    """
    plots = report_of(comparison).plots()
    return [path for plot in plots for path in save_figure(plot.draw, directory / plot.name)]
