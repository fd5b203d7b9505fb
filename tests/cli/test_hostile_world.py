"""Closed streams, endless pipes, forbidden folders, names that steer a terminal: one line each."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mlx_attn.cli.sample import LONGEST_PROMPT
from mlx_attn.errors import RunError, printable
from mlx_attn.text import sources
from mlx_attn.ui.terminal import print_rows, stdout_console
from tests.cli.conftest import refused


@pytest.fixture(scope="module")
def trained(made_once, tiny_flags) -> Path:
    """A run in the current folder."""
    return made_once(["train", *tiny_flags, "--out", "runs/tiny", "-q"]) / "runs" / "tiny"


@pytest.mark.parametrize(
    ("redirection", "code", "message"),
    [("<&-", 1, "standard input: the text is empty"), (">&- 2>&-", 0, "")],
)
def test_a_closed_stream_is_an_empty_file(tmp_path, redirection, code, message):
    command = f"'{sys.executable}' -m mlx_attn data {'show -' if code else 'list'} {redirection}"
    result = subprocess.run(
        ["sh", "-c", command], capture_output=True, text=True, cwd=tmp_path, timeout=60
    )
    assert result.returncode == code
    assert message in result.stderr
    assert result.stderr.count("\n") == code


class Endless(io.RawIOBase):
    """A pipe that never ends."""

    def __init__(self, data: bytes):
        self.data, self.given = data, 0

    def read(self, size: int = -1) -> bytes:
        self.given += size
        return (self.data * (size // len(self.data) + 1))[:size]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\0", "standard input: not a text, byte 0 is NUL"),
        (b"\xff", "standard input: not UTF-8, byte 0 is 0xff"),
        (b"y\n", "more than 3,000,000 bytes came through a pipe without an end"),
    ],
)
def test_an_endless_pipe_is_not_read_to_the_end_of_the_disk(monkeypatch, data, message):
    monkeypatch.setattr(sources, "LONGEST_PIPE", 3_000_000)
    pipe = Endless(data)
    with pytest.raises(RunError, match=message):
        sources._pipe_blocks(pipe.read, "standard input")
    assert pipe.given <= 5_000_000


def test_an_endless_prompt_is_refused(run_command, monkeypatch):
    monkeypatch.setattr("mlx_attn.cli.sample.LONGEST_PROMPT", 10)
    line = refused(run_command("sample", "-p", "-", input="x" * 11), 1)
    assert "standard input is longer than 10 bytes" in line
    assert LONGEST_PROMPT > 10**6


@pytest.mark.parametrize(
    "command",
    [
        ["import", "/dev/zero"],
        ["train", "--config", "/dev/zero"],
        ["train", "--plugin", "/dev/zero"],
        ["import", "model.pth", "--tokenizer", "/dev/zero"],
    ],
    ids=lambda command: " ".join(command[:2]),
)
def test_a_file_without_an_end_is_refused_by_name(workshop, run_command, command):
    (workshop / "model.pth").touch()
    result = run_command(*command)
    assert result.exit_code in (1, 2)
    assert result.stderr.count("\n") <= 3  # with the line on how to read more
    assert "Error: " in result.stderr


def test_a_line_without_an_end_is_refused_by_the_conversation(monkeypatch, run_command, trained):
    monkeypatch.setattr("mlx_attn.cli.repl.LONGEST_PROMPT", 100)
    result = run_command("repl", str(trained), "--max-tokens=2", input="x" * 200)
    assert result.exit_code == 1
    assert result.stderr == "Error: a line of more than 100 characters: give shorter ones\n"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["-m", "9" * 20], "max_tokens=" + "9" * 20),
        (["-m", "2", "-n", str(2**32)], f"num_samples={2**32} must be at least 1 and less than"),
        (["-m", "2", "-n", str(2**30)], f"num_samples={2**30}: so many texts at once may need"),
    ],
)
def test_numbers_beyond_every_machine_are_refused(run_command, trained, flags, message):
    assert message in refused(run_command("sample", str(trained), "-p", "", *flags), 2)


def test_an_answer_longer_than_every_machine_is_refused_in_the_conversation(run_command, trained):
    result = run_command("repl", str(trained), input="/max 99999999999999999999\n")
    assert result.exit_code == 0
    assert "must be at least 1 and less than 2^31" in result.stderr


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["variants", "--latent-dim=-1"], "latent_dim=-1 must be at least 1"),
        (["train", "--variant=mla", "-n", "--latent-dim=-1"], "latent_dim=-1 must be at least 1"),
        (["claims", "run", "--data=t.txt", "--preset=nano", "--minutes=0", "-o", "."], "--minutes"),
        (["convert", "--to=separate", "--rank=1..99999999999"], "rank"),
        (["convert", "--to=separate", "--rank=99999999999999999999"], "rank"),
        (["convert", "--to=separate", f"--rank=1..{'9' * 5000}"], "rank"),
    ],
)
def test_numbers_that_nobody_means_are_refused(run_command, workshop, command, message):
    assert message in refused(run_command(*command), 2)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_folder_that_may_not_be_read_is_one_line(workshop, run_command):
    (workshop / "runs" / "mine").mkdir(parents=True)
    (workshop / "runs").chmod(0)
    result = run_command("sample", "mine")
    (workshop / "runs").chmod(0o700)
    assert (result.exit_code, result.stderr.count("\n")) == (1, 1)
    assert "Permission denied" in result.stderr


def test_what_the_system_refuses_is_one_line(workshop, run_command, monkeypatch):
    def refuse(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "is_dir", refuse)
    assert refused(run_command("sample", "mine"), 1) == "Error: mine: Permission denied\n"


TITLE = "\x1b]0;PWNED\x07"


@pytest.mark.parametrize(
    "settings",
    [
        {"model": {"score": TITLE}, "training": {}, "text": {}},
        {"model": {TITLE: 1}, "training": {}, "text": {}},
        {"model": {}, "training": {}, "text": {"data": TITLE}},
        {TITLE: 1},
        {"model": {"n_layers": 1_000_000_000}, "training": {}, "text": {}},
        {"model": {"n_heads": 10**12}, "training": {}, "text": {}},
        {"model": {"hidden_dim": 2**63}, "training": {}, "text": {}},
    ],
)
@pytest.mark.parametrize("command", ["sample", "probe", "convert --to merged", "train --resume"])
def test_a_foreign_config_neither_steers_the_terminal_nor_hangs(
    workshop, run_command, settings, command
):
    (workshop / "theirs").mkdir()
    (workshop / "theirs" / "config.json").write_text(json.dumps(settings))
    (workshop / "theirs" / "model.safetensors").write_bytes(b"\2\0\0\0\0\0\0\0{}")
    result = run_command(*command.split(), "theirs")
    assert result.exit_code in (1, 2)
    assert result.stderr.count("\n") == 1
    assert "\x1b" not in result.stderr


def test_tables_and_plans_show_controls_as_pictures(capsys):
    print_rows([(TITLE, TITLE)], stdout_console())
    stdout_console().print(TITLE)
    assert "\x1b" not in capsys.readouterr().out
    assert all(printable(text).encode() for text in ("\ud800", "a\x9bb"))


@pytest.mark.parametrize("content", ["x = " + "[" * 100_000, "steps = " + "9" * 5000])
def test_deep_and_endless_toml_is_refused(workshop, run_command, content):
    (workshop / "bad.toml").write_text(content)
    result = run_command("train", "--config", "bad.toml")
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: bad.toml: cannot be read as TOML")


@pytest.mark.parametrize("command", [["runs"], ["sample"], ["open"]])
def test_a_folder_of_runs_that_may_not_be_read_is_not_taken_for_empty(
    in_a_copy, trained, run_command, monkeypatch, command
):
    in_a_copy(trained.parents[1])
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    result = run_command(*command)
    message = "Error: runs: cannot be read (Permission denied): see 'chmod u+rwx'\n"
    assert (result.exit_code, result.stderr) == (1, message)


FULL = pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux has /dev/full")


@FULL
@pytest.mark.parametrize("command", ["--help", "train --help", "repl '{run}' -m 1"])
def test_an_output_that_cannot_be_written_is_one_line_and_no_success(trained, command):
    line = f"echo e | '{sys.executable}' -m mlx_attn {command.format(run=trained)} > /dev/full"
    result = subprocess.run(["sh", "-c", line], capture_output=True, text=True, timeout=60)
    errors = [line for line in result.stderr.splitlines() if line.startswith("Error: ")]
    assert result.returncode == 1
    assert errors == ["Error: the output cannot be written: [Errno 28] No space left on device"]
    assert "Traceback" not in result.stderr
