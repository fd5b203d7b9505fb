"""Imported before any test, and so before MLX: the package loads a fast BLAS first.

Models here are so small that a second thread costs more than it computes: the suite, and every
process that it starts, has one thread. Tests of work divided among streams ask for it: `two_cores`.
"""

import fcntl
import json
import os
import re
import select
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import nullcontext
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from markupsafe import Markup

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import mlx_attn
from mlx_attn import blas
from mlx_attn.comparison import runner
from mlx_attn.runs import create_run
from mlx_attn.text.corpus import Corpus, Split
from mlx_attn.text.tokenizers import train_tokenizer
from mlx_attn.training.config import resolve
from mlx_attn.training.trainer import Trainer

__all__ = ["mlx_attn"]


@pytest.fixture
def two_cores(monkeypatch) -> None:
    """Work is divided among two streams, as on a machine with two cores."""
    monkeypatch.setattr(blas, "preload", lambda: blas.Blas("a library", "", threads=2))


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


class ThisProcess:
    """A pool that does what it is given at once."""

    def submit(self, function: Callable[..., None], *arguments: object) -> Future[None]:
        done: Future[None] = Future()
        try:
            done.set_result(function(*arguments))
        except Exception as error:
            done.set_exception(error)
        return done


@pytest.fixture
def in_this_process(monkeypatch) -> None:
    """Trials of a comparison are trained without processes of their own."""
    monkeypatch.setattr(runner, "_pool", lambda size: nullcontext(ThisProcess()))


BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
MAC = Path("/Applications/Google Chrome.app/Contents/MacOS/Google Chrome")
BROWSER = next(filter(None, map(shutil.which, BROWSERS)), None) or (MAC.exists() and str(MAC))
OPTIONS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --hide-scrollbars "
    "--disable-background-networking --disable-component-update --disable-sync "
    "--remote-debugging-pipe"
)
ACTION = """(async () => {{
  const page = document, view = window;
  const settled = () => new Promise((done) => {{
    const rest = () => setTimeout(() => {{ watcher.disconnect(); done(); }}, 150);
    const watcher = new MutationObserver(() => {{ clearTimeout(waiting); waiting = rest(); }});
    watcher.observe(page, {{ subtree: true, childList: true, attributes: true }});
    let waiting = rest();
  }});
  await settled();
  const $ = (selector) => page.querySelector(selector);
  const all = (selector) => [...page.querySelectorAll(selector)];
  const press = (element, key) =>
    element.dispatchEvent(new view.KeyboardEvent("keydown", {{ key, bubbles: true }}));
  const point = (element) =>
    element.dispatchEvent(new view.PointerEvent("pointerover", {{ bubbles: true }}));
  const leave = (element) => element.dispatchEvent(new view.PointerEvent("pointerleave"));
  const from = () => all("#tokens button").findIndex((b) => b.classList.contains("from"));
  {script}
}})()"""
"""A script with the gestures of a person; `settled` waits until nothing has changed for a while."""


class Chromium:
    """A browser without a window, spoken to through its debugging pipe.

    Messages are JSON objects that end with NUL (https://chromedevtools.github.io/devtools-protocol).
    """

    def __init__(self, program: str, profile: Path):
        ours, theirs = [], []
        for _ in range(2):
            for end, fd in zip((ours, theirs), sorted(os.pipe(), reverse=bool(ours)), strict=True):
                end.append(fcntl.fcntl(fd, fcntl.F_DUPFD, 10))
                os.close(fd)
        self._read, self._write = ours[0], ours[1]
        command = [program, *OPTIONS.split(), f"--user-data-dir={profile}", "about:blank"]
        self._process = subprocess.Popen(
            command,
            stderr=subprocess.DEVNULL,
            close_fds=False,
            preexec_fn=lambda: (os.dup2(theirs[1], 3), os.dup2(theirs[0], 4)),
        )
        for end in theirs:
            os.close(end)
        self._received, self._count = b"", 0
        self.events: list[dict[str, Any]] = []

    def call(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        """What the browser answers."""
        self._count += 1
        message = {"id": self._count, "method": method, "params": parameters}
        content = json.dumps(message | ({"sessionId": session} if session else {}))
        os.write(self._write, content.encode() + b"\0")
        while (answer := self._next()).get("id") != self._count:
            self.events.append(answer)
        assert "error" not in answer, answer
        return answer["result"]

    def wait_for(self, event: str) -> None:
        while all(seen["method"] != event for seen in self.events):
            self.events.append(self._next())

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._received:
            assert select.select([self._read], [], [], 60)[0], "the browser says nothing"
            content = os.read(self._read, 2**16)
            assert content, "the browser ended"
            self._received += content
        message, _, self._received = self._received.partition(b"\0")
        return json.loads(message)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._read)
        os.close(self._write)


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


@pytest.fixture(scope="session")
def chromium(tmp_path_factory) -> Iterator[Chromium]:
    """One browser for all tests."""
    if not BROWSER:
        pytest.skip("needs Chromium: apt install chromium")
    browser = Chromium(str(BROWSER), tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


@pytest.fixture
def browse(chromium, tmp_path) -> Callable[..., Any]:
    """What a script finds in a page that Chromium shows, as light or dark as its user wishes."""

    def run(
        page: str, script: str, fragment: str = "", width: int = 1280, theme: str = "light"
    ) -> Any:
        (tmp_path / "page.html").write_text(page, encoding="utf-8")
        tab = chromium.call("Target.createTarget", url="about:blank")["targetId"]
        session = chromium.call("Target.attachToTarget", targetId=tab, flatten=True)["sessionId"]
        chromium.events.clear()
        sizes = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        chromium.call("Emulation.setDeviceMetricsOverride", session, **sizes)
        wish = {"name": "prefers-color-scheme", "value": theme}
        chromium.call("Emulation.setEmulatedMedia", session, features=[wish])
        chromium.call("Page.enable", session)
        chromium.call("Runtime.enable", session)
        chromium.call("Page.navigate", session, url=(tmp_path / "page.html").as_uri() + fragment)
        chromium.wait_for("Page.loadEventFired")
        action = {"expression": ACTION.format(script=script), "awaitPromise": True}
        found = chromium.call("Runtime.evaluate", session, returnByValue=True, **action)
        chromium.call("Target.closeTarget", targetId=tab)
        thrown = [e["params"] for e in chromium.events if e["method"] == "Runtime.exceptionThrown"]
        assert [*thrown, *found.get("exceptionDetails", ())] == []
        return found["result"].get("value")

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
    for page in ("comparison.report", "probe.page"):
        monkeypatch.setattr(f"mlx_attn.{page}.figure_for_page", lambda draw: Markup("<svg></svg>"))


@pytest.fixture
def luminance() -> Callable[[str], float]:
    """Relative luminance of "rgb(r, g, b)" (WCAG 2)."""

    def of(colour: str) -> float:
        values = [int(value) / 255 for value in re.findall(r"\d+", colour)[:3]]
        linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in values]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    return of
