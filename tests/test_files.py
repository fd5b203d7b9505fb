"""A file is written whole or not at all."""

import errno
import fcntl
import os
from pathlib import Path

import pytest

from mlx_attn.errors import ConfigError, RunError
from mlx_attn.files import atomic_write, check_page, shared, user_path, write_bytes, write_text


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_writing_makes_the_parent_folders_and_replaces_a_file_with_nothing_beside_it(tmp_path):
    path = tmp_path / "a" / "b" / "file"
    write_bytes(path, b"\0\xff and longer")
    assert path.read_bytes() == b"\0\xff and longer"
    write_text(path, "é\r\n\n")
    assert path.read_bytes() == b"\xc3\xa9\r\n\n"
    assert names(path.parent) == ["file"]


def write_half(path: Path, interrupted: bool) -> None:
    with atomic_write(path) as temporary:
        temporary.write_text("new")
        assert path.read_text() == "old"
        if interrupted:
            raise KeyboardInterrupt


def test_the_old_file_is_there_until_the_new_one_is_whole(tmp_path):
    path = tmp_path / "file.txt"
    write_text(path, "old")
    with pytest.raises(KeyboardInterrupt):
        write_half(path, interrupted=True)
    assert path.read_text() == "old"
    assert names(tmp_path) == ["file.txt"]
    write_half(path, interrupted=False)
    assert path.read_text() == "new"


@pytest.mark.parametrize("command", [None, 51], ids=["fsync", "a Mac's own flush"])
def test_the_content_is_flushed_before_the_rename(tmp_path, monkeypatch, command):
    calls = []
    monkeypatch.setattr(fcntl, "F_FULLFSYNC", command, raising=False)
    monkeypatch.setattr(fcntl, "fcntl", lambda descriptor, command: calls.append("flush"))
    monkeypatch.setattr(os, "fsync", lambda descriptor: calls.append("flush"))
    rename = Path.replace
    monkeypatch.setattr(
        Path, "replace", lambda self, target: (calls.append("rename"), rename(self, target))
    )
    write_bytes(tmp_path / "file.bin", b"x")
    assert calls == ["flush", "rename"]


@pytest.mark.parametrize(
    ("code", "way_out"),
    [(errno.ENOSPC, "free some space"), (errno.EIO, "choose another folder")],
)
def test_a_refusing_disk_is_one_line_with_path_reason_and_way_out(
    tmp_path, monkeypatch, code, way_out
):
    def refuse(self: Path, data: bytes) -> int:
        raise OSError(code, os.strerror(code), str(self))

    monkeypatch.setattr(Path, "write_bytes", refuse)
    with pytest.raises(RunError, match=way_out) as caught:
        write_bytes(tmp_path / "file.bin", b"x")
    message = str(caught.value)
    assert message.startswith(f"{tmp_path / 'file.bin'}: ")
    assert os.strerror(code) in message
    assert "\n" not in message
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    ("make", "path", "message"),
    [
        (Path.touch, "taken/file.bin", r"taken/file\.bin: cannot be written"),
        (Path.mkdir, "taken", "there is a folder of that name"),
        (os.mkfifo, "taken", "taken: there is a pipe or device of that name"),
    ],
    ids=["a file in place of a folder", "a folder in place of the file", "a pipe"],
)
def test_what_cannot_be_replaced_is_left_alone(tmp_path, make, path, message):
    make(tmp_path / "taken")
    with pytest.raises(RunError, match=message):
        write_bytes(tmp_path / path, b"x")
    assert names(tmp_path) == ["taken"]


def test_the_first_who_shares_a_folder_removes_what_a_killed_process_left(tmp_path):
    (tmp_path / ".file.txt.0badf00d.tmp").write_text("half")
    with shared(tmp_path):
        assert names(tmp_path) == []
        with atomic_write(tmp_path / "file.txt") as temporary:
            temporary.write_text("whole")
            with shared(tmp_path):  # a second one leaves what the first is writing
                assert temporary.exists()
    assert names(tmp_path) == ["file.txt"]


def test_a_page_replaces_only_a_page_of_this_program_unless_told_to(tmp_path):
    page = tmp_path / "page.html"
    check_page(page)
    page.write_text('<!doctype html><meta name="generator" content="mlx_attn">')
    check_page(page)
    page.write_text("<!doctype html><p>mine")
    with pytest.raises(RunError, match=r"page\.html is not a page of this program"):
        check_page(page)
    check_page(page, overwrite=True)


def test_a_link_to_nothing_and_a_name_that_is_not_utf8_are_no_places_for_a_file(tmp_path):
    (tmp_path / "link").symlink_to("gone")
    with pytest.raises(ConfigError, match="is a symbolic link to gone, where there is nothing"):
        user_path(tmp_path / "link" / "file")
    with pytest.raises(ConfigError, match="holds bytes that are not UTF-8: rename it"):
        user_path("a\udcff")
