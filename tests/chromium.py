"""Chromium, driven over its debugging pipe: for tests of pages, and for docs/pictures.py."""

import base64
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "chrome")
MAC = "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome"
NOT_IN_SAFARI = "delete Map.groupBy; delete Object.groupBy"  # 17.0, which came with macOS 14


def find_chromium() -> str | None:
    """Return the path of the browser's program, or None."""
    found = next(filter(None, map(shutil.which, PROGRAMS)), None)
    return found or (MAC if sys.platform == "darwin" and Path(MAC).exists() else None)


class Browser:
    """Chromium over its debugging pipe: one process, a new tab for each page."""

    def __init__(self, program: str, profile: Path):
        (read, sent), (self._read, write) = os.pipe(), os.pipe()
        self._write = os.fdopen(sent, "wb")
        options = (
            "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run "
            "--hide-scrollbars --disable-background-networking --disable-component-update "
            "--disable-sync"
        )
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
        self, address: str, width: int = 1280, height: int = 900, dark: bool = False
    ) -> "Browser":
        """Open a page in a new tab, and forget the messages of earlier tabs."""
        if self._target:
            self.call("Target.closeTarget", {"targetId": self._target}, None)
        target = self.call("Target.createTarget", {"url": "about:blank"}, None)["targetId"]
        self._target = target
        attach = {"targetId": target, "flatten": True}
        self._session = self.call("Target.attachToTarget", attach, None)["sessionId"]
        self.said, self.requests = [], []
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.call("Page.addScriptToEvaluateOnNewDocument", {"source": NOT_IN_SAFARI})
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", {"features": [scheme]})
        self.call("Page.navigate", {"url": address})
        while self.run("document.readyState") != "complete":
            pass
        return self

    def run(self, expression: str) -> Any:
        """The value of an expression of JavaScript in the page, a promise's when it is settled."""
        asked = {"expression": expression, "awaitPromise": True, "returnByValue": True}
        reply = self.call("Runtime.evaluate", asked)
        assert "exceptionDetails" not in reply, reply["exceptionDetails"]
        return reply["result"].get("value")

    def photograph(self) -> bytes:
        """Take a picture of the window, as a PNG."""
        return base64.b64decode(self.call("Page.captureScreenshot")["data"])

    def call(self, method: str, parameters: Any = None, session: Any = ...) -> dict[str, Any]:
        """The result of a command of the DevTools protocol."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters or {}}
        if (session := self._session if session is ... else session) is not None:
            message["sessionId"] = session
        self._write.write(json.dumps(message).encode() + b"\0")
        self._write.flush()
        while True:
            reply = self._receive()
            if reply.get("id") == self._number:
                assert "error" not in reply, reply["error"]
                return reply["result"]
            self._note(reply)

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
        self._write.close()
        os.close(self._read)
