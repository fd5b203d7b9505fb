"""A file is written whole or not at all, and one process writes in a directory."""

import errno
import os
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest

from mlx_attn.errors import ConfigError, RunError
from mlx_attn.files import atomic_write, lock, make_directory, user_path, write_bytes, write_text


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_writing_makes_the_parent_folders_and_replaces_a_file_with_nothing_beside_it(tmp_path):
    path = tmp_path / "a" / "b" / "file"
    write_bytes(path, b"\0\xff and longer")
    assert path.read_bytes() == b"\0\xff and longer"
    write_text(path, "é\r\n\n")
    assert path.read_bytes() == b"\xc3\xa9\r\n\n"
    assert names(path.parent) == ["file"]


def interrupted_write(path: Path) -> None:
    with atomic_write(path) as temporary:
        temporary.write_text("new")
        raise KeyboardInterrupt


def test_the_old_file_is_there_until_the_new_one_is_whole(tmp_path):
    path = tmp_path / "file.txt"
    write_text(path, "old")
    with pytest.raises(KeyboardInterrupt):
        interrupted_write(path)
    assert path.read_text() == "old"
    assert names(tmp_path) == ["file.txt"]


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo])
def test_a_folder_or_a_pipe_is_left_alone(tmp_path, make):
    make(tmp_path / "taken")
    with pytest.raises(RunError, match="taken: is there and is no file"):
        write_bytes(tmp_path / "taken", b"x")
    assert names(tmp_path) == ["taken"]


def test_a_folder_below_a_file_or_a_link_to_nowhere_is_refused_by_that_name(tmp_path):
    (tmp_path / "runs").symlink_to(tmp_path / "gone")
    with pytest.raises(RunError, match=r"runs/a: cannot be written .*/runs is no folder"):
        make_directory(tmp_path / "runs" / "a")


def test_a_killed_process_holds_no_lock_and_its_half_written_files_are_removed(tmp_path):
    folder = tmp_path / "run"
    program = (
        "import sys; from pathlib import Path; from mlx_attn.files import lock\n"
        "with lock(Path(sys.argv[1])): print(1, flush=True); input()"
    )
    command = [sys.executable, "-c", program, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout
        assert other.stdout.readline()
        with pytest.raises(RunError, match=f"{folder} is in use by another process: wait"):
            lock(folder).__enter__()
        (folder / ".file.txt.0badf00d.tmp").write_text("half")
        (folder / ".mine.tmp").write_text("")
        with lock(tmp_path):  # the folder's own process may be writing
            assert names(folder) == [".file.txt.0badf00d.tmp", ".mine.tmp"]
        other.kill()
    with lock(folder):
        assert names(folder) == [".mine.tmp"]
        (folder / ".mine.tmp").unlink()
    assert names(tmp_path) == []  # a folder that stays empty goes


def test_a_name_that_no_file_has_is_wrong_usage_and_a_path_without_permission_is_not(monkeypatch):
    with pytest.raises(ConfigError, match="not UTF-8: rename it, or set LANG to a UTF-8 locale"):
        user_path("a\udcff")
    with pytest.raises(ConfigError, match="File name too long"):
        user_path(300 * "a")
    denied = PermissionError(errno.EACCES, "Permission denied")
    monkeypatch.setattr(Path, "stat", Mock(side_effect=denied))
    with pytest.raises(RunError, match="'theirs': Permission denied"):
        user_path("theirs")
