"""Downloads by name, against a server on the loopback that misbehaves on request."""

import hashlib
import io
import re
import socket
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from mlx_attn.errors import ConfigError, RunError
from mlx_attn.text.downloads import CORPORA, GPT2_MERGES, Download, data_directory, fetch
from mlx_attn.text.show import download_lines, tokenizing_lines

CONTENT = bytes(range(256)) * 1000
HALF = len(CONTENT) // 2


class Server(ThreadingHTTPServer):
    """Serves `content`; the path of the address says how."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.content = CONTENT
        self.ranges: list[str | None] = []
        self.released = threading.Event()

    def address(self, behaviour: str) -> str:
        return f"http://127.0.0.1:{self.server_port}/{behaviour}"


class Handler(BaseHTTPRequestHandler):
    @property
    def host(self) -> Server:
        assert isinstance(self.server, Server)
        return self.server

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self):
        asked = self.headers["Range"]
        self.host.ranges.append(asked)
        getattr(self, f"send_{self.path[1:]}")(int(re.sub(r"\D", "", asked)) if asked else 0)

    def head(self, status: int, length: int, **headers: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(length))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def send_whole(self, start: int):
        content = self.host.content[start:]
        self.head(206 if start else 200, len(content))
        self.wfile.write(content)

    def send_whole_only(self, start: int):
        self.send_whole(0)

    def send_half(self, start: int):
        self.head(200, len(CONTENT))
        self.wfile.write(CONTENT[:HALF])

    def send_half_then_nothing(self, start: int):
        self.send_half(start)
        self.wfile.flush()
        self.host.released.wait()

    def send_missing(self, start: int):
        self.head(404, 0)

    def send_elsewhere(self, start: int):
        self.head(302, 0, Location=self.host.address("whole"))


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "*")
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.released.set()
        server.shutdown()
        thread.join()


def described(url: str, content: bytes = CONTENT) -> Download:
    digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
    return Download(url, "corpus.txt", len(content), digest, "public domain")


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_that_is_there_is_fetched_again_only_if_its_size_differs(server, tmp_path):
    (tmp_path / "corpus.txt").write_bytes(CONTENT)
    fetch(described(server.address("whole")), tmp_path)
    assert server.ranges == []
    (tmp_path / "corpus.txt").write_bytes(b"half")
    assert fetch(described(server.address("elsewhere")), tmp_path).read_bytes() == CONTENT
    assert files(tmp_path) == ["corpus.txt"]


def test_a_transfer_cut_short_is_resumed_where_it_stopped(server, tmp_path):
    with pytest.raises(RunError, match="stopped after 128,000 of 256,000 bytes; run this again"):
        fetch(described(server.address("half")), tmp_path)
    assert files(tmp_path) == ["corpus.txt.part"]
    server.ranges.clear()
    seen: list[tuple[int, int]] = []
    whole = described(server.address("whole"))
    path = fetch(whole, tmp_path, lambda *counts: seen.append(counts))
    assert path.read_bytes() == CONTENT
    assert server.ranges == [f"bytes={HALF}-"]
    assert min(seen) > (HALF, 0)
    assert seen == sorted(seen)
    assert seen[-1] == (len(CONTENT), len(CONTENT))
    assert files(tmp_path) == ["corpus.txt"]


@pytest.mark.parametrize(
    ("part", "behaviour", "asked"),
    [
        (b"x" * HALF, "whole_only", [f"bytes={HALF}-"]),
        (b"x" * 2 * len(CONTENT), "whole", [None]),
        (CONTENT, "missing", []),
    ],
    ids=["the server cannot resume", "longer than the file", "only the check is missing"],
)
def test_a_part_that_cannot_be_continued_is_begun_again_or_checked(
    server, tmp_path, part, behaviour, asked
):
    (tmp_path / "corpus.txt.part").write_bytes(part)
    assert fetch(described(server.address(behaviour)), tmp_path).read_bytes() == CONTENT
    assert server.ranges == asked


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (bytes(len(CONTENT)), r"256,000 bytes and sha256 [0-9a-f]{64}, not .* deleted"),
        (CONTENT + b"more", r"256,004 bytes .* not 256,000 .* deleted"),
        (None, "the server answered 404 Not Found"),
    ],
    ids=["a wrong digest", "more bytes", "nothing"],
)
def test_another_file_than_expected_is_deleted_and_said_so(server, tmp_path, content, message):
    server.content = content
    with pytest.raises(RunError, match=message):
        fetch(described(server.address("whole" if content else "missing")), tmp_path)
    assert files(tmp_path) == []


def test_a_stalled_transfer_gives_up_and_keeps_what_came(server, tmp_path):
    with pytest.raises(RunError, match=r"no data for 0\.1 seconds; run this again to resume"):
        fetch(described(server.address("half_then_nothing")), tmp_path, stall=0.1)
    assert (tmp_path / "corpus.txt.part").read_bytes() == CONTENT[:HALF]


def test_without_a_network_one_line_names_the_address_the_place_and_the_alternative(tmp_path):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}/corpus.txt"
        with pytest.raises(RunError, match="cannot be reached") as caught:
            fetch(described(url), tmp_path)
    message = str(caught.value)
    assert message.startswith(url)
    assert f"put the file at {tmp_path / 'corpus.txt'} by hand" in message
    assert "--data tales, which needs no network" in message
    assert "\n" not in message


def test_only_http_is_accepted(tmp_path):
    with pytest.raises(ConfigError, match="only http and https"):
        fetch(described("file:///etc/hosts"), tmp_path)


def zipped(server: Server, member: str = "corpus") -> Download:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr(member, CONTENT)
    server.content = archive.getvalue()
    return replace(
        described(server.address("whole")), member="corpus", archive_size=len(server.content)
    )


def test_an_archive_is_unpacked_and_not_kept(server, tmp_path):
    assert fetch(zipped(server), tmp_path).read_bytes() == CONTENT
    assert files(tmp_path) == ["corpus.txt"]


@pytest.mark.parametrize(
    ("member", "damage", "message"),
    [
        ("corpus", {"content": True}, r"the archive was damaged .* deleted"),
        ("another", {}, r"the archive was damaged .* put corpus of that archive at"),
        ("corpus", {"digest": "md5:" + "0" * 32}, "md5"),
    ],
    ids=["damaged", "without the member", "a wrong digest of the member"],
)
def test_a_damaged_archive_is_deleted_and_said_so(server, tmp_path, member, damage, message):
    download = zipped(server, member)
    if damage.pop("content", False):
        server.content = bytes(len(server.content))
    with pytest.raises(RunError, match=message):
        fetch(replace(download, **damage), tmp_path)
    assert files(tmp_path) == []


@pytest.mark.parametrize("download", [*CORPORA.values(), GPT2_MERGES])
def test_every_named_download_is_fully_described(download):
    algorithm, digest = download.digest.split(":")
    assert len(bytes.fromhex(digest)) == hashlib.new(algorithm).digest_size
    assert download.url.startswith("https://")
    assert download.transfer_size <= download.size
    assert download.licence


@pytest.mark.parametrize(
    ("platform", "readme", "variables", "expected"),
    [
        ("linux", "# Data of mlx_attn", {"MLX_ATTN_DATA_DIR": "chosen"}, "chosen"),
        ("linux", "# Data of mlx_attn", {}, "data"),
        ("darwin", "# My data", {}, "home/Library/Caches/mlx_attn"),
        ("linux", "# My data", {}, "home/.cache/mlx_attn"),
        ("linux", "# My data", {"XDG_CACHE_HOME": "caches"}, "caches/mlx_attn"),
    ],
    ids=["as the environment says", "in a clone", "on a Mac", "elsewhere", "a cache elsewhere"],
)
def test_the_data_directory_is_that_of_the_environment_the_clone_or_the_user(
    monkeypatch, tmp_path, platform, readme, variables, expected
):
    for name in ("MLX_ATTN_DATA_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, folder in variables.items():
        monkeypatch.setenv(name, str(tmp_path / folder))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "README.md").write_text(readme)
    monkeypatch.setattr("sys.platform", platform)
    monkeypatch.setattr(Path, "home", lambda: tmp_path / "home")
    assert data_directory().absolute() == tmp_path / expected


@pytest.mark.parametrize(
    ("progress_to", "total", "first"),
    [
        (download_lines, 10**6, ["downloading: 0 kB of 1 MB", "downloading: 100 kB of 1 MB"]),
        (tokenizing_lines, 10**9, ["tokenizing: 0 kB of 1.0 GB", "tokenizing: 100 MB of 1.0 GB"]),
        (tokenizing_lines, 10**6, []),  # which takes no time
    ],
)
def test_progress_is_told_at_every_tenth_of_the_way(progress_to, total, first):
    lines: list[str] = []
    progress = progress_to(lines.append)
    for done in range(0, total + 1, total // 100):
        progress(done, total)
    assert lines[:2] == first
    assert len(lines) == (11 if first else 0)
