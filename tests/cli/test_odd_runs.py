"""A run with links, folders, pipes, devices, locked files: commands work, or print one line."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import refused

RUN = "runs/tiny"
COMMANDS = {
    "runs": ["runs"],
    "sample": ["sample", RUN, "--max-tokens=3", "--seed=0"],
    "resume": ["train", "--resume", RUN, "--steps=7", "-q"],
    "overwrite": ["train", "--out", RUN, "--overwrite", "-q"],
}
PLACES = ("", "config.json", "metrics.jsonl", "samples.txt", "tokenizer.json")
PLACES += ("model.safetensors", "checkpoint", "checkpoint/last.safetensors")


def remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


def loop(path: Path) -> None:
    remove(path)
    path.symlink_to(path.name)


def dangling(path: Path) -> None:
    remove(path)
    path.symlink_to("/nowhere/at/all")


def folder(path: Path) -> None:
    remove(path)
    path.mkdir()


def pipe(path: Path) -> None:
    """Nobody writes to it, so that who opens it waits."""
    remove(path)
    os.mkfifo(path)


def endless(path: Path) -> None:
    remove(path)
    path.symlink_to("/dev/zero")


def locked(path: Path) -> None:
    path.chmod(0)
    if os.access(path, os.R_OK):
        path.chmod(0o755)
        pytest.skip("this user may read what nobody may")


@pytest.fixture(scope="module")
def trained(made_once, tiny_flags) -> Path:
    return made_once(["train", *tiny_flags, "--out", RUN, "-q"])


@pytest.mark.filterwarnings("ignore:.*cannot be removed")  # of what overwriting replaced
@pytest.mark.parametrize("odd", [loop, dangling, folder, pipe, endless, locked])
@pytest.mark.parametrize("place", PLACES)
def test_an_odd_file_of_a_run_is_one_line_at_most(
    trained, in_a_copy, run_command, tiny_flags, place: str, odd: Callable[[Path], None]
):
    for name, command in COMMANDS.items():
        path = in_a_copy(trained) / RUN / place
        odd(path)
        result = run_command(*command, *(tiny_flags if name == "overwrite" else ()))
        if not path.is_symlink() and path.exists():
            path.chmod(0o755)  # so that it can be removed
        shutil.rmtree(path.parents[1] if place else path.parent, ignore_errors=True)
        assert result.exception is None or isinstance(result.exception, SystemExit), name
        assert result.exit_code in (0, 1, 2), name
        assert result.exit_code == 0 or result.stderr.count("\n") == 1, (name, result.stderr)


def test_a_folder_that_links_to_its_own_run_is_listed_once(trained, in_a_copy, run_command):
    run = in_a_copy(trained) / RUN
    (run / "itself").symlink_to(".")
    (run.parent / "other").symlink_to(run)
    names = [line.split()[0] for line in run_command("runs").stdout.splitlines()]
    assert names == ["run", "tiny", "other"]


@pytest.mark.parametrize("flag", ["--out", "--plugin", "--config", "--init-from"])
def test_a_path_that_links_to_itself_is_named(workshop, train, flag):
    (workshop / "loop").symlink_to("loop")
    line = refused(train(flag, "loop", "--dry-run"), 2)
    assert "loop is a symbolic link that leads to itself" in line
