"""Any text is read, or refused in one line."""

import io
import sys
from pathlib import Path

import pytest

from mlx_attn.errors import RunError
from mlx_attn.text import sources
from mlx_attn.text.sources import read_source

LINES = "".join(f"line {number}\n" for number in range(100))


def written(path: Path, content: bytes | str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return str(path)


def test_a_file_is_split_where_nanogpt_cuts_tiny_shakespeare(tmp_path):
    text = "ab" * (1_115_394 // 2)
    train, val = read_source(written(tmp_path / "file.txt", text), tmp_path).splits()
    assert (train.text, val.text) == (text[:1_003_854], text[1_003_854:])


@pytest.mark.parametrize("is_terminal", [True, False])
def test_standard_input_is_utf8_and_a_terminal_says_how_to_end_it(
    tmp_path, monkeypatch, caplog, is_terminal
):
    caplog.set_level("INFO", "mlx_attn")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(("é" + LINES).encode()), "ascii"))
    monkeypatch.setattr(sys.stdin.buffer, "isatty", lambda: is_terminal)
    assert read_source("-", tmp_path).text == "é" + LINES
    assert is_terminal == ("Ctrl-D ends it" in caplog.text)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "0 characters, too few: give at least 20"),
        (b"too short", "9 characters, too few: give at least 20"),
        (b"\r\n" * 100, r"every character is '\\n'"),
        (b"text and\0 more" * 9, "not a text, byte 8 is NUL"),
        (LINES.encode() + b"caf\xe9 noir", r"not UTF-8, byte 793 is 0xe9 \(invalid"),
        (LINES.encode() * 2, "more than 1,000 bytes of text: give a part of it"),
    ],
)
def test_what_is_no_text_is_refused_in_one_line_that_names_the_file(
    tmp_path, monkeypatch, content, message
):
    monkeypatch.setattr(sources, "LONGEST", 1_000)
    path = written(tmp_path / "in" / "file.txt", content)
    with pytest.raises(RunError, match=message) as caught:
        read_source(path, tmp_path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


def test_of_a_folder_what_is_hidden_of_programs_or_a_copy_is_left_out_and_said(tmp_path):
    folder = tmp_path / "notes"
    written(folder / "a.md", "what I\nwrote today")
    written(folder / "b.txt", "and yesterday")
    written(folder / "c" / "deep.MD", "and before")
    written(folder / "e.txt", "")
    for hidden in (".trash", ".git", ".ipynb_checkpoints", "node_modules", "venv", "__pycache__"):
        written(folder / "c" / hidden / "x.md", "deleted")
    written(folder / "._a.md", b"\0\5\x16\7 of a Mac")
    written(folder / "c" / "copy of a.md", "what I\r\nwrote today\r\n")
    written(folder / "d.jsonl", '{"text": "a record"}')
    source = read_source(str(folder), tmp_path)
    assert source.text == "what I\nwrote today\n\nand yesterday\n\nand before"
    assert source.notes == (
        f"{folder}: 3 files, 1 kB; skipped: ._a.md, c/.git, c/.ipynb_checkpoints, c/.trash, "
        "c/__pycache__, c/node_modules, c/venv, 1 file neither .txt nor .md, and 1 more",
    )
    written(tmp_path / "g" / "z" / "a.md", LINES)
    written(tmp_path / "g" / "a.md", LINES)
    (tmp_path / "g" / "loop").symlink_to(tmp_path / "g")
    (line,) = read_source(str(tmp_path / "g"), tmp_path).notes
    assert line.endswith("skipped: loop, z/a.md (the same as a.md)")
    (tmp_path / "g" / "b.md").symlink_to(folder / "b.txt")
    with pytest.raises(RunError, match=r"a link out of .*: put a copy there"):
        read_source(str(tmp_path / "g"), tmp_path)


def test_the_last_bit_of_a_logarithm_makes_no_other_task(tmp_path, monkeypatch):
    digest = read_source("copy", tmp_path).digest
    monkeypatch.setattr("numpy.log", lambda number: 3.465735902799727)  # in a bit not log 32
    assert read_source("copy", tmp_path).digest == digest


@pytest.mark.parametrize("end", ["\r\n", "\r"])
def test_every_line_end_is_read_as_one_byte(tmp_path, end):
    path = written(tmp_path / "dos.txt", "\ufeff" + LINES.replace("\n", end))
    source = read_source(path, tmp_path)
    assert source.text == LINES
    assert source.digest == read_source(written(tmp_path / "x", LINES), tmp_path).digest
    assert source.notes == (f"{path}: line ends CRLF and CR are read as LF",)


@pytest.mark.parametrize(
    "text", ['{"a": 1}\n' * 9, '{"a":\n1}', ' [\n {"a": 1}]', r"{\rtf1\ansi b.}"]
)
def test_records_and_markup_are_no_text(tmp_path, text):
    with pytest.raises(RunError, match=r"(JSON|RTF) and not a text"):
        read_source(written(tmp_path / "story.txt", text), tmp_path)
    written(tmp_path / "in" / "b.txt", text)
    with pytest.raises(RunError, match=r"b\.txt: (JSON|RTF) and not a text"):
        read_source(written(tmp_path / "in" / "a.txt", LINES).removesuffix("/a.txt"), tmp_path)
    begins = "[1]\n{so it begins}\n" * 9
    assert read_source(written(tmp_path / "book.txt", begins), tmp_path).text == begins
