"""The site: what its hooks make of the repository's pages."""

import importlib
import json
import re
from pathlib import Path
from types import ModuleType

import gallery
import pytest

ROOT = Path(__file__).parents[2]
GALLERY = (ROOT / "docs" / "gallery.md").read_text(encoding="utf-8")


@pytest.fixture
def hooks() -> ModuleType:
    pytest.importorskip("mkdocs")
    pytest.importorskip("latex2mathml")
    return importlib.import_module("site_hooks")


def test_formulas_become_mathml(hooks):
    line = r'<p>Tokens <span class="arithmatex">\(j \le i\)</span> only.</p>'
    block = r'<div class="arithmatex">\[w &lt; 1\]</div>'
    made = hooks.on_page_content(line + block)
    assert "arithmatex" not in made
    assert [*re.findall(r'<math[^>]* display="(\w+)"', made)] == ["inline", "block"]
    assert "<mo>&#x02264;</mo>" in made
    assert "<mo>&#x0003C;</mo>" in made


def test_links_of_the_repository_become_links_of_the_site(hooks):
    assert hooks.rewritten("[a](docs/tour.md#x)", "README.md") == "[a](tour.md#x)"
    assert hooks.rewritten("[a](../ARCHITECTURE.md)", "docs/reference.md") == "[a](ARCHITECTURE.md)"
    assert hooks.rewritten('src="docs/pictures/a.png"', "README.md") == 'src="pictures/a.png"'


def test_the_readme_s_first_screen_is_the_home_page_s_hero(hooks):
    home = hooks.as_home((ROOT / "README.md").read_text(encoding="utf-8"))
    hero = re.search(r'<div class="hero" markdown>(.*?)</div>', home, re.DOTALL)
    assert hero
    assert "uvx mlx-attn demo" in hero[1]
    assert "\n## " not in hero[1]


def test_the_gallery_describes_the_models_that_its_script_trains():
    assert re.findall(r"<!-- live: ([\w-]+) -->", GALLERY) == [*gallery.MODELS]


def test_the_gallery_links_the_pages_that_were_made_and_tells_how_to_make_the_others(
    hooks, tmp_path, monkeypatch
):
    monkeypatch.setattr(hooks, "LIVE", tmp_path / "gallery")
    assert "run `python docs/gallery.py`" in hooks.live(GALLERY)
    hooks.LIVE.mkdir()
    facts = {"params": 1000, "bits_per_byte": 0.25, "bytes": 400_000}
    (hooks.LIVE / "facts.json").write_text(json.dumps({"merged": facts}))
    page = hooks.live(GALLERY)
    assert re.findall(r'href="gallery/([\w-]+).html"', page) == ["merged"]
    assert "1,000 parameters, 0.250 bits per byte, 400 kB" in page


@pytest.mark.slow
def test_a_page_of_the_gallery_runs_its_model(tmp_path, browse):
    options = ["--steps=2", "--eval-every=0"]
    page = gallery.make("merged", options, tmp_path / "pages", tmp_path / "runs")
    facts = json.loads((tmp_path / "pages" / "facts.json").read_text())
    assert facts["merged"]["bytes"] == page.stat().st_size < 700_000
    shown = 'return $("#answers").textContent'
    assert "nats per token" in " ".join(browse(page.read_text("utf-8"), shown).split())
