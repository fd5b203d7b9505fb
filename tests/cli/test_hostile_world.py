"""Closed streams, endless pipes, odd files, names that steer a terminal: one line each."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import refused

RUN = "runs/tiny"


@pytest.fixture(scope="module")
def trained(made_once, tiny_flags) -> Path:
    """A folder with a run."""
    return made_once(["train", *tiny_flags, "--out", RUN, "-q"])


@pytest.mark.parametrize(
    ("redirection", "code", "message"),
    [("<&-", 1, "standard input: the text is empty"), (">&- 2>&-", 0, "")],
)
def test_a_closed_stream_is_an_empty_file(tmp_path, redirection, code, message):
    command = f"'{sys.executable}' -m mlx_attn data {'show -' if code else 'list'} {redirection}"
    result = subprocess.run(
        ["sh", "-c", command], capture_output=True, text=True, cwd=tmp_path, timeout=60
    )
    assert (result.returncode, result.stderr.count("\n")) == (code, code)
    assert message in result.stderr


def test_an_endless_pipe_or_prompt_is_not_read_to_the_end(workshop, run_command, monkeypatch):
    monkeypatch.setattr("mlx_attn.cli.sample.LONGEST_PROMPT", 10)
    line = refused(run_command("sample", "-p", "-", input="x" * 11), 1)
    assert "standard input is longer than 10 bytes" in line
    monkeypatch.setattr("mlx_attn.text.sources.LONGEST", 1000)
    line = refused(run_command("data", "show", "-", input="y\n" * 600), 1)
    assert "standard input: more than 1,000 bytes of text" in line


@pytest.mark.parametrize("command", [["runs"], ["sample"], ["open"]])
def test_a_folder_of_runs_that_may_not_be_read_is_not_taken_for_empty(
    in_a_copy, trained, run_command, monkeypatch, command
):
    in_a_copy(trained)
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    message = "Error: runs: cannot be read (Permission denied): see 'chmod u+rwx'\n"
    assert refused(run_command(*command), 1) == message


TITLE = "\x1b]0;PWNED\x07"


@pytest.mark.parametrize(
    "settings",
    [
        {"model": {"score": TITLE}, "training": {}, "text": {}},
        {"model": {TITLE: 1}, "training": {}, "text": {}},
        {"model": {"n_layers": 1_000_000_000}, "training": {}, "text": {}},
    ],
)
@pytest.mark.parametrize("command", ["sample", "train --resume"])
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


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux has /dev/full")
@pytest.mark.parametrize("command", ["--help", f"repl {RUN} -m 1"])
def test_an_output_that_cannot_be_written_is_one_line_and_no_success(trained, command):
    line = f"echo e | '{sys.executable}' -m mlx_attn {command} > /dev/full"
    streams = {"capture_output": True, "text": True, "timeout": 60}
    result = subprocess.run(["sh", "-c", line], cwd=trained, **streams)
    errors = [line for line in result.stderr.splitlines() if line.startswith("Error: ")]
    assert result.returncode == 1
    assert errors == ["Error: reading or writing failed: No space left on device"]
    assert "Traceback" not in result.stderr
