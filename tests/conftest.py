"""Imported before any test, and so before MLX: the package loads a fast BLAS first."""

import json
import re
import shutil
import socket
import subprocess
from collections.abc import Callable
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from markupsafe import Markup

import mlx_attn
from mlx_attn.runs import create_run
from mlx_attn.text.corpus import Corpus, Split
from mlx_attn.text.tokenizers import train_tokenizer
from mlx_attn.training.config import resolve
from mlx_attn.training.trainer import Trainer

__all__ = ["mlx_attn"]


@pytest.fixture(scope="session")
def ring(tmp_path_factory) -> Callable[[int], Path]:
    """Writes a file of hosts for MLX: so many processes of this machine, on free ports."""

    def write(count: int) -> Path:
        sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
        ports = [made.getsockname()[1] for made in sockets]
        for made in sockets:
            made.close()
        path = tmp_path_factory.mktemp("ring") / "hosts.json"
        path.write_text(json.dumps([[f"127.0.0.1:{port}"] for port in ports]))
        return path

    return write


BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
MAC = Path("/Applications/Google Chrome.app/Contents/MacOS/Google Chrome")
BROWSER = next(filter(None, map(shutil.which, BROWSERS)), None) or (MAC.exists() and str(MAC))
OPTIONS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --hide-scrollbars "
    "--disable-background-networking --disable-component-update --disable-sync "
    "--allow-file-access-from-files --virtual-time-budget=20000 --dump-dom"
)
HARNESS = """<!doctype html><body><iframe width={width} height=900></iframe><pre></pre><script>
const frame = document.querySelector("iframe");
const errors = [];
const settled = () => new Promise((done) => setTimeout(done, 300));
async function act() {{
  const page = frame.contentDocument, view = frame.contentWindow;
  view.addEventListener("error", (event) => errors.push(event.message));
  await settled();
  const $ = (selector) => page.querySelector(selector);
  const all = (selector) => [...page.querySelectorAll(selector)];
  const press = (element, key) =>
    element.dispatchEvent(new view.KeyboardEvent("keydown", {{ key, bubbles: true }}));
  const point = (element) =>
    element.dispatchEvent(new view.PointerEvent("pointerover", {{ bubbles: true }}));
  const leave = (element) => element.dispatchEvent(new view.PointerEvent("pointerleave"));
  const from = () => all("#tokens button").findIndex((b) => b.classList.contains("from"));
  const found = await (async () => {{ {script} }})();
  document.querySelector("pre").textContent = JSON.stringify({{ found, errors }});
}}
frame.onload = act;
frame.src = "page.html" + {fragment};
</script>"""

TEXT = "no newline and no end here; " * 40


@pytest.fixture(scope="session")
def letters() -> Corpus:
    """A thousand characters, none of which is a newline."""
    tokenizer = train_tokenizer("char", TEXT, 0)
    train, val = (
        Split(tokens=tokenizer.encode(part), n_bytes=len(part)) for part in (TEXT[:900], TEXT[900:])
    )
    return Corpus("letters", "a digest", tokenizer, train, val)


@pytest.fixture
def learner(letters, tmp_path) -> Callable[..., Trainer]:
    """Makes a trainer of a tiny model, which keeps its run in `tmp_path`/run unless told not to."""

    def make(keep: bool = True, **settings) -> Trainer:
        sizes = {"context_length": 8, "emb_dim": 16, "n_heads": 2, "n_layers": 1, "batch_size": 4}
        recipe = {"steps": 6, "log_every": 2, "eval_every": 3, "warmup": 2, "tokenizer": "char"}
        trainer = Trainer(resolve({**sizes, **recipe}, settings), letters)
        if keep:
            record = trainer.settings.record(trainer.model.config)
            trainer.run = create_run(tmp_path / "run", record)
        return trainer

    return make


@pytest.fixture
def browse(tmp_path) -> Callable[..., Any]:
    """What a script finds in a page that Chromium shows.

    A page of our own holds the page in a frame, runs the script as a person would act, and writes
    down what it returns; Chromium prints that. `options` are Chromium's own.
    """
    if not BROWSER:
        pytest.skip("needs Chromium: apt install chromium")

    def run(
        page: str, script: str, fragment: str = "", width: int = 1280, options: str = ""
    ) -> Any:
        (tmp_path / "page.html").write_text(page, encoding="utf-8")
        harness = HARNESS.format(script=script, fragment=json.dumps(fragment), width=width)
        (tmp_path / "harness.html").write_text(harness, encoding="utf-8")
        profile = f"--user-data-dir={tmp_path / 'profile'}"
        address = (tmp_path / "harness.html").as_uri()
        command = [str(BROWSER), *OPTIONS.split(), *options.split(), profile, address]
        shown = subprocess.run(command, capture_output=True, text=True, timeout=60)
        said = re.search(r"<pre>(.+?)</pre>", shown.stdout, re.DOTALL)
        assert said, shown.stderr
        result = json.loads(unescape(said[1]))
        assert result["errors"] == []
        return result["found"]

    return run


class Elements(HTMLParser):
    """The tags of a page with their attributes."""

    def __init__(self, page: str):
        super().__init__()
        self.page = page
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.found if name == tag]

    def loaded(self) -> list[Any]:
        """All that a browser would fetch for the page."""
        links = [a.get(key) for _, a in self.found for key in ("src", "href", "xlink:href")]
        outside = [link for link in links if link and not link.startswith(("#", "data:"))]
        return [*outside, *self.all("link"), *re.findall(r"url\(http|@import", self.page)]


@pytest.fixture(scope="session")
def page_elements() -> Callable[[str], Elements]:
    """Reads the tags of a page."""
    return Elements


@pytest.fixture
def no_figures(monkeypatch):
    """Pages without figures, which take their time."""
    for page in ("compare.report", "probe.page"):
        monkeypatch.setattr(f"mlx_attn.{page}.figure_for_page", lambda draw: Markup("<svg></svg>"))


@pytest.fixture
def luminance() -> Callable[[str], float]:
    """Relative luminance of "rgb(r, g, b)" (WCAG 2)."""

    def of(colour: str) -> float:
        values = [int(value) / 255 for value in re.findall(r"\d+", colour)[:3]]
        linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in values]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    return of
