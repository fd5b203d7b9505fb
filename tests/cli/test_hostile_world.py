"""Endless pipes, names that steer a terminal, a full disk: one line each."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from mlx_attn.text.characters import ByteTokenizer
from tests.cli.conftest import refused, untrained_run


def test_an_endless_pipe_or_prompt_is_not_read_to_the_end(workshop, run_command, monkeypatch):
    monkeypatch.setattr("mlx_attn.cli.sample.LONGEST_PROMPT", 10)
    line = refused(run_command("sample", "-p", "-", input="x" * 11), 1)
    assert "standard input is longer than 10 bytes" in line
    monkeypatch.setattr("mlx_attn.text.sources.LONGEST", 1000)
    line = refused(run_command("data", "show", "-", input="y\n" * 600), 1)
    assert "standard input: more than 1,000 bytes of text" in line


TITLE = "\x1b]0;PWNED\x07\u202e\u2066"


@pytest.mark.parametrize("command", ["sample", "train --resume"])
def test_a_foreign_config_does_not_steer_the_terminal(workshop, run_command, command):
    settings = {"model": {TITLE: 1}, "training": {}, "text": {}}
    (workshop / "theirs").mkdir()
    (workshop / "theirs" / "config.json").write_text(json.dumps(settings))
    (workshop / "theirs" / "model.safetensors").write_bytes(b"\2\0\0\0\0\0\0\0{}")
    result = run_command(*command.split(), "theirs")
    assert result.exit_code in (1, 2)
    assert result.stderr.count("\n") == 1
    assert not {"\x1b", "\u202e", "\u2066"} & set(result.stderr)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux has /dev/full")
def test_an_output_that_cannot_be_written_is_one_line_and_no_success(workshop):
    untrained_run(workshop / "tiny", ByteTokenizer())
    line = f"echo e | '{sys.executable}' -m mlx_attn repl tiny -m 1 > /dev/full"
    streams = {"capture_output": True, "text": True, "timeout": 300}
    result = subprocess.run(["sh", "-c", line], cwd=workshop, **streams)
    errors = [line for line in result.stderr.splitlines() if line.startswith("Error: ")]
    assert result.returncode == 1
    assert errors == ["Error: reading or writing failed: No space left on device"]
    assert "Traceback" not in result.stderr
