"""The report as a file, and as tables in a terminal."""

import xml.etree.ElementTree as ET
from functools import partial
from io import StringIO

import numpy as np
import pytest
from rich.console import Console

from mlx_attn.comparison.figures import forest_figure
from mlx_attn.comparison.report import as_html, write_report
from mlx_attn.comparison.show import tables_of
from mlx_attn.ui.plots import save_figure


def test_the_report_is_one_page_in_its_directory(no_figures, comparison, tmp_path):
    path = write_report(comparison(), tmp_path)
    assert path == tmp_path / "report.html"
    assert path.read_text() == as_html(comparison())


def test_every_seed_is_drawn_in_the_forest_plot(comparison, tmp_path):
    svg, _ = save_figure(partial(forest_figure, comparison(seeds=4)), tmp_path / "forest")
    words = "".join(ET.parse(svg).getroot().itertext())
    assert all(text in words for text in ("merged", "the same", "worse", "not known"))
    made = forest_figure(comparison(seeds=4))
    drawn = [np.size(line.get_xdata()) for line in made.axes[0].lines]
    # The line at zero; for each of three arms its seeds, its interval and its mean.
    assert drawn == [2, *(3 * [4, 2, 1])]


@pytest.mark.parametrize("width", [50, 80])
def test_a_terminal_sees_every_verdict_and_every_seed(comparison, width):
    screen = StringIO()
    made = comparison()
    Console(file=screen, width=width).print(*tables_of(made), sep="\n")
    shown = " ".join(screen.getvalue().split())
    assert all(word in shown for word in ("the same", "worse", "not known"))
    assert "134,000" in shown
    for verdict in made.verdicts.values():
        assert all(f"{difference:+.3f}" in shown for difference in verdict.differences)
