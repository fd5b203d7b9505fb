"""Downloads by name, against a server on the loopback that misbehaves on request."""

import hashlib
import io
import threading
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from mlx_attn.errors import RunError
from mlx_attn.text import downloads
from mlx_attn.text.downloads import Download, data_directory, fetch

CONTENT = bytes(range(256)) * 1000
NO_STATUS = b"an answer whose status is none of HTTP's"
Serve = Callable[..., Download]


@pytest.fixture
def serve(monkeypatch) -> Iterator[Serve]:
    """Serves one content, or its first bytes only; gives the download of `CONTENT` from there."""
    monkeypatch.setenv("no_proxy", "*")
    released = threading.Event()
    answer: dict[str, Any] = {}

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

        def do_GET(self):
            content = answer["content"]
            self.send_response({b"": 404, NO_STATUS: 99}.get(content, 200))
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content[: answer["sent"]])
            if answer["stalls"]:
                released.wait()

    def describe(content: bytes = CONTENT, sent: int = 2**30, stalls: bool = False) -> Download:
        answer.update(content=content, sent=sent, stalls=stalls)
        digest = f"sha256:{hashlib.sha256(CONTENT).hexdigest()}"
        url = f"http://127.0.0.1:{server.server_port}/"
        return Download(url, "corpus.txt", len(CONTENT), digest, "public domain")

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield describe
        released.set()
        server.shutdown()
        thread.join()


def test_a_file_is_fetched_only_if_none_of_its_size_is_there(serve, tmp_path, caplog):
    caplog.set_level("INFO", "mlx_attn")
    path = tmp_path / "corpus.txt"
    path.write_bytes(b"half")
    assert fetch(serve(), tmp_path) == path
    assert path.read_bytes() == CONTENT
    assert caplog.messages[-1] == "downloading bytes: 256,000 of 256,000"
    assert fetch(serve(b""), tmp_path) == path


@pytest.mark.parametrize("project", ["mlx_attn", "another"])
def test_only_a_clone_of_this_project_keeps_corpora_in_its_own_folder(
    tmp_path, monkeypatch, project
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLX_ATTN_DATA_DIR", raising=False)
    Path("data").mkdir()
    Path("data/README.md").write_text(f"Corpora of {project}.")
    assert (data_directory() == Path("data")) == (project == "mlx_attn")


def zipped(member: str) -> bytes:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr(member, CONTENT)
    return archive.getvalue()


@pytest.mark.parametrize(
    ("served", "changes", "message"),
    [
        ([bytes(len(CONTENT))], {}, r"damaged \(256,000 bytes with sha256 [0-9a-f]{64} came, not"),
        ([b""], {}, "the server answered 404 Not Found; .* by hand, or use --data tales"),
        (
            [zipped("another")],
            {"member": "corpus"},
            "damaged .*no item named 'corpus'.* put corpus of that",
        ),
        ([CONTENT], {"member": "corpus"}, "damaged .*not a zip file"),
        ([NO_STATUS], {}, r"cannot be fetched \(HTTP/1.0 99"),
        ([CONTENT, 128_000, True], {}, "timed out"),
        ([CONTENT, 128_000], {}, "128,000 bytes .* not 256,000"),
    ],
    ids=["another file", "nothing", "no member", "no zip", "no HTTP", "it stalls", "cut short"],
)
def test_another_file_than_expected_is_refused_and_not_kept(
    serve, tmp_path, monkeypatch, served, changes, message
):
    monkeypatch.setattr(downloads, "_STALL", 0.1 if message == "timed out" else 30.0)
    with pytest.raises(RunError, match=message):
        fetch(replace(serve(*served), **changes), tmp_path)
    assert not list(tmp_path.iterdir())
