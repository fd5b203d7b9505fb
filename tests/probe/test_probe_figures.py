"""Figures of a probe as files, and in a page."""

import xml.etree.ElementTree as ET

import pytest

from mlx_attn.probe.show import draw_singular_values, save_figures
from mlx_attn.ui.plots import figure_for_page

NAMES = ["alignment-s", "alignment-vo", "maps", "singular-values-s", "singular-values-vo"]


@pytest.mark.parametrize(
    "choices", [{"n_heads": 1}, pytest.param({"n_layers": 5}, marks=pytest.mark.slow)], ids=str
)
def test_every_figure_is_an_svg_and_a_png(found, tmp_path, choices):
    paths = save_figures(found(**choices), tmp_path)
    assert sorted({path.stem for path in paths}) == NAMES
    for path in paths:
        if path.suffix == ".png":
            assert path.read_bytes().startswith(b"\x89PNG")
        else:
            assert ET.parse(path).getroot().tag.endswith("svg")


def test_the_same_probe_gives_the_same_figure(found):
    one, two = (figure_for_page(lambda: draw_singular_values(found().scores)) for _ in range(2))
    assert one == two


def test_a_figure_in_a_page_has_the_page_s_colour_of_text(found):
    svg = figure_for_page(lambda: draw_singular_values(found().scores))
    assert svg.startswith("<svg")
    assert "fill: currentColor" in svg
    assert "#010203" not in svg
