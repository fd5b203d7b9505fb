import os
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from mlx_attn.cli.main import group

STORY = "the red cat sat on a mat. an old dog sat by the wet door. the cat saw the dog. "
TINY = [
    "--data=story.txt",
    "--tokenizer=char",
    "--context-length=16",
    "--emb-dim=16",
    "--n-heads=2",
    "--n-layers=1",
    "--batch-size=4",
    "--steps=6",
    "--eval-every=3",
    "--log-every=2",
    "--warmup=2",
]


@pytest.fixture
def workshop(tmp_path, monkeypatch) -> Path:
    """A directory with a story and its own data directory, and an environment without settings."""
    for name in list(os.environ):
        if name.startswith("MLX_ATTN_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("MLX_ATTN_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("mlx_attn.training.loop.SAMPLE_TOKENS", 5)
    (tmp_path / "story.txt").write_text(STORY * 20)
    return tmp_path


@pytest.fixture
def tiny_flags() -> list[str]:
    """A training that takes a tenth of a second."""
    return TINY


@pytest.fixture
def run_command() -> Callable[..., Result]:
    """Runs the command line in this process."""

    def run(*arguments: str, **settings) -> Result:
        return CliRunner().invoke(group, arguments, **settings)

    return run


@pytest.fixture
def train(workshop, run_command) -> Callable[..., Result]:
    """Trains a tiny model on the story; later flags win."""

    def run(*arguments: str, **settings) -> Result:
        tiny = [] if "--resume" in arguments else TINY
        return run_command("train", *tiny, *arguments, **settings)

    return run
