import os
import subprocess
import sys
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from mlx_attn.cli.main import COMMANDS, group
from mlx_attn.machine import device
from mlx_attn.model.config import GPTConfig
from mlx_attn.model.gpt import GPT
from mlx_attn.run_directory import Run
from mlx_attn.text.corpus import prepare
from mlx_attn.text.tokenizers import Tokenizer
from tests.runs import SIZES, STORY, TINY, create_run

TINY_SETTINGS = {**TINY, "data": "story.txt", "eval_every": 3, "log_every": 2}
TINY_FLAGS = [f"--{name.replace('_', '-')}={value}" for name, value in TINY_SETTINGS.items()]


def settle(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in a folder with its own data directory, in an environment without settings."""
    for name in list(os.environ):
        if name.startswith("MLX_ATTN_") and name != device.SWITCH:
            monkeypatch.delenv(name)
    monkeypatch.setenv("MLX_ATTN_DATA_DIR", str(folder / "data"))
    monkeypatch.chdir(folder)
    monkeypatch.setattr("mlx_attn.training.recording.SAMPLE_TOKENS", 5)
    return folder


@pytest.fixture
def workshop(tmp_path, monkeypatch) -> Path:
    """A directory with a story and its own data directory, and an environment without settings."""
    (tmp_path / "story.txt").write_text(STORY)
    return settle(tmp_path, monkeypatch)


def untrained_run(path: Path, tokenizer: Tokenizer, **record: Any) -> Run:
    """A run whose model was never trained and reads with this tokenizer."""
    config = GPTConfig(vocab_size=tokenizer.vocab_size, **SIZES)
    settings = {"model": config.as_dict(), "training": {"seed": 7}, "text": {}}
    run = create_run(path, settings | record, tokenizer=tokenizer)
    run.save_model(GPT(config))
    return run


@pytest.fixture
def nano(workshop) -> Path:
    """A directory with one untrained run, runs/nano, and its text."""
    corpus = prepare("story.txt", "char")
    settings = {"text": {"data": "story.txt", "tokenizer": "char"}, "training": {"steps": 1}}
    path = workshop / "runs" / "nano"
    untrained_run(path, corpus.tokenizer, digest=corpus.digest, **settings)
    return workshop


def invoke(*arguments: str, **settings) -> Result:
    """Run the command line in this process."""
    return CliRunner().invoke(group, arguments, **settings)


@pytest.fixture
def run_command() -> Callable[..., Result]:
    """Runs the command line in this process."""
    return invoke


@pytest.fixture
def train(workshop) -> Callable[..., Result]:
    """Trains a tiny model on the story; later flags win."""

    def run(*arguments: str, **settings) -> Result:
        tiny = [] if "--resume" in arguments else TINY_FLAGS
        return invoke("train", *tiny, *arguments, **settings)

    return run


def refused(result: Result, code: int) -> str:
    """The one line that a refusal prints, with this exit code."""
    assert result.exit_code == code, result.stdout + result.stderr
    assert result.stdout == ""
    assert result.stderr.startswith("Error: ")
    assert result.stderr.count("\n") == 1
    assert len(result.stderr) < 1300
    return result.stderr


def done(result: Result) -> str:
    """Return the stdout of a command that must succeed."""
    assert result.exit_code == 0, result.output
    return result.stdout


def all_commands() -> list[click.Command]:
    """Return every command, and those below one."""
    found = [group.get_command(click.Context(group), name) for name in COMMANDS]
    below = [one.commands.values() for one in found if isinstance(one, click.Group)]
    return [one for one in chain(found, *below) if one]


def in_a_process(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run Python with these arguments, in this directory."""
    return subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )
