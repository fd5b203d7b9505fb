"""The report as files, and as tables in a terminal."""

import xml.etree.ElementTree as ET
from io import StringIO

import pytest
from rich.console import Console

from mlx_attn.comparison.figures import forest_figure
from mlx_attn.comparison.report import as_markdown, sections_of, write_report
from mlx_attn.comparison.result import read_comparison, save_comparison
from mlx_attn.comparison.show import verdict_tables
from mlx_attn.ui.plots import save_figure


def test_a_comparison_read_back_gives_the_same_page_and_markdown(no_figures, comparison, tmp_path):
    save_comparison(comparison(), tmp_path)
    paths = write_report(read_comparison(tmp_path), tmp_path / "there")
    assert [path.name for path in paths] == ["report.html", "report.md"]
    assert paths[1].read_text() == as_markdown(comparison())


def test_every_figure_has_a_file_name_of_its_own(comparison):
    sections = [part for section in sections_of(comparison()) for part in (section, *section.parts)]
    names = [plot.name for section in sections for plot in section.plots]
    assert len(names) == len(set(names)) == 3 * 5 + 1


def test_the_forest_plot_is_a_figure_of_its_own(comparison, tmp_path):
    made = comparison(budgets=["steps"])
    svg, png = save_figure(lambda: forest_figure(made.budget("steps"), made), tmp_path / "forest")
    words = "".join(ET.parse(svg).getroot().itertext())
    assert {"merged", "equivalent", "worse"} <= set(words.split())
    assert png.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("width", [50, 80])
def test_a_terminal_sees_every_verdict(comparison, width):
    screen = StringIO()
    Console(file=screen, width=width).print(verdict_tables(comparison()))
    shown = screen.getvalue()
    assert shown.count("equivalent") == 1
    assert shown.count("undecided") == 4
    assert "+0.029 to +0.047" in shown
    assert "merged-both is not feasible: its attention" in " ".join(shown.split())
