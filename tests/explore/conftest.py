"""Small models of every kind as runs, and one Chromium for all tests of the page."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx.utils import tree_map

from mlx_attn.explore.manifest import page_model
from mlx_attn.explore.page import render_page
from mlx_attn.model.config import config_from
from mlx_attn.model.gpt import GPT
from mlx_attn.runs import Run, create_run
from mlx_attn.text.characters import CharacterTokenizer
from mlx_attn.text.tokenizers import Tokenizer
from mlx_attn.training.config import resolve

TEXT = "Ann has nine red kites.\nBen sees one of them; then it is gone?"
SIZES = {"n_layers": 2, "n_heads": 2, "emb_dim": 16, "context_length": 64}


@pytest.fixture(scope="session")
def make_run(tmp_path_factory) -> Callable[..., Run]:
    """Writes a run of a tiny model whose every weight is random, and keeps it."""

    def make(name: str = "run", tokenizer: Tokenizer | None = None, **settings: Any) -> Run:
        tokenizer = tokenizer or CharacterTokenizer.train(TEXT)
        chosen = resolve({"preset": "nano", **SIZES}, settings)
        record = chosen.record(config_from({**chosen.model, "vocab_size": tokenizer.vocab_size}))
        run = create_run(tmp_path_factory.mktemp("runs") / name, record)
        model = GPT(config_from(record["model"]))
        mx.random.seed(3)
        trained = model.trainable_parameters()
        model.update(tree_map(lambda w: w + 0.3 * mx.random.normal(w.shape), trained))
        run.save_model(model)
        tokenizer.save(run.path)
        return run

    return make


class Browser:
    """Chromium over its debugging pipe: one process, a new tab for each page."""

    def __init__(self, program: str, profile: Path):
        (read, self._write), (self._read, write) = os.pipe(), os.pipe()
        options = "--headless --no-sandbox --disable-gpu --no-first-run --hide-scrollbars"
        command = f'exec "$0" --remote-debugging-pipe "$@" 3<&{read} 4>&{write}'
        arguments = [program, *options.split(), f"--user-data-dir={profile}", "about:blank"]
        self._process = subprocess.Popen(
            ["bash", "-c", command, *arguments],
            pass_fds=(read, write),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(read)
        os.close(write)
        self._number, self._buffer = 0, b""
        self._target = self._session = None
        self.said: list[str] = []
        self.requests: list[str] = []

    def open(
        self, path: Path, width: int = 1280, height: int = 900, dark: bool = False
    ) -> "Browser":
        """A new tab with a page; what earlier tabs said is forgotten."""
        if self._target:
            self.call("Target.closeTarget", {"targetId": self._target}, None)
        target = self.call("Target.createTarget", {"url": "about:blank"}, None)["targetId"]
        self._target = target
        attach = {"targetId": target, "flatten": True}
        self._session = self.call("Target.attachToTarget", attach, None)["sessionId"]
        self.said, self.requests = [], []
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", {"features": [scheme]})
        self.call("Page.navigate", {"url": path.as_uri()})
        while self.run("document.readyState") != "complete":
            pass
        return self

    def run(self, expression: str) -> Any:
        """The value of an expression of JavaScript in the page, a promise's when it is settled."""
        asked = {"expression": expression, "awaitPromise": True, "returnByValue": True}
        reply = self.call("Runtime.evaluate", asked)
        assert "exceptionDetails" not in reply, reply["exceptionDetails"]
        return reply["result"].get("value")

    def press(self, key: str, code: int = 0, text: str = "") -> None:
        """A key, as a person presses it."""
        event = {"key": key, "code": key, "windowsVirtualKeyCode": code, "text": text}
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", {**event, "type": kind})

    def call(self, method: str, parameters: Any = None, session: Any = ...) -> dict[str, Any]:
        """The result of a command of the DevTools protocol."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters or {}}
        if (session := self._session if session is ... else session) is not None:
            message["sessionId"] = session
        self._send(message)
        while True:
            reply = self._receive()
            if reply.get("id") == self._number:
                assert "error" not in reply, reply["error"]
                return reply["result"]
            self._note(reply)

    def _send(self, message: Any) -> None:
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._write, data) :]

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            more = os.read(self._read, 1 << 20)
            assert more, "Chromium ended"
            self._buffer += more
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)

    def _note(self, event: dict[str, Any]) -> None:
        if event.get("sessionId") != self._session:
            return
        method, facts = event.get("method"), event.get("params")
        if method in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded"):
            self.said.append(json.dumps(facts))
        if method == "Network.requestWillBeSent":
            self.requests.append(event["params"]["request"]["url"])

    def close(self) -> None:
        """End the process."""
        self._process.terminate()
        self._process.wait()
        os.close(self._write)
        os.close(self._read)


PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "chrome")
MAC = "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome"


@pytest.fixture(scope="session")
def browser(tmp_path_factory) -> Iterator[Browser]:
    """The browser that all tests share."""
    found = next(filter(None, map(shutil.which, PROGRAMS)), None)
    program = found or (MAC if sys.platform == "darwin" and Path(MAC).exists() else None)
    if not program:
        pytest.skip("needs Chromium: apt install chromium")
    made = Browser(program, tmp_path_factory.mktemp("profile"))
    yield made
    made.close()


@pytest.fixture(scope="session")
def show(browser, tmp_path_factory) -> Callable[..., Browser]:
    """Opens the page of some runs."""

    def open_page(*runs: Run, texts=(TEXT,), dtype: str = "float32", **looks: Any) -> Browser:
        path = tmp_path_factory.mktemp("pages") / "page.html"
        path.write_text(render_page([page_model(run, dtype) for run in runs], texts), "utf-8")
        return browser.open(path, **looks)

    return open_page
