"""A user's own files from Python, runs that are resumed there, and errors in Python's words."""

import json
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlx_attn
from mlx_attn.attention.catalog import VARIANTS
from mlx_attn.attention.choices import CHOICES, choices_of
from mlx_attn.attention.layer import choice
from mlx_attn.errors import ConfigError, RunError
from mlx_attn.plugins import unload_plugins
from mlx_attn.training.events import Ended, Started, Stepped

TALKING = Path(__file__).parents[1] / "examples" / "talking_heads.py"
SIZES = {"tokenizer": "char", "context_length": 16, "emb_dim": 16, "n_heads": 2, "n_layers": 1}
RECIPE = {"preset": "nano", "batch_size": 4, "steps": 4, "eval_every": 2, "log_every": 1}


@pytest.fixture(autouse=True)
def registry() -> Iterator[None]:
    """Forgets what a test registers, by whichever way."""
    choices_of("score")
    before = {kind: dict(table) for kind, table in {**CHOICES, "variant": VARIANTS}.items()}
    yield
    unload_plugins()
    for kind, table in {**CHOICES, "variant": VARIANTS}.items():
        table.clear()
        table.update(before[kind])  # type: ignore[arg-type]


@pytest.fixture
def settings(tmp_path, monkeypatch) -> dict[str, Any]:
    """Those of a tiny training in a directory of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLX_ATTN_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    Path("story.txt").write_text("the red cat sat on a mat. an old dog sat by the door. " * 30)
    return {**SIZES, **RECIPE, "data": "story.txt", "warmup": 2}


@pytest.fixture
def talk(settings) -> Path:
    return Path(shutil.copy(TALKING, "talk.py")).resolve()


@pytest.fixture
def trained(settings, talk) -> Path:
    """A run with the file, which is forgotten again."""
    mlx_attn.train("runs/talk", plugins=talk, variant="talk", **settings).run()
    unload_plugins()
    return Path("runs/talk").resolve()


def recorded(run: str | Path) -> list[dict[str, Any]]:
    return json.loads((Path(run) / "config.json").read_text()).get("plugins", [])


# Files are named with plugins=, with load_plugins, or in the environment.


def test_a_run_is_trained_and_read_with_the_files_that_are_named(trained, talk, monkeypatch):
    assert [plugin["names"] for plugin in recorded(trained)] == [["logits=talk", "mixing=talk"]]
    model = mlx_attn.load(trained, plugins=[talk])
    assert len(model.generate("the", max_tokens=3)) == 3
    unload_plugins()
    mlx_attn.load_plugins(talk)
    assert mlx_attn.load(trained)
    unload_plugins()
    monkeypatch.setenv("MLX_ATTN_PLUGINS", str(talk))
    assert mlx_attn.load(trained)


def test_a_file_that_is_missing_is_asked_for_in_python_s_words(trained, talk):
    with pytest.raises(ConfigError, match=r"^this run uses talk\.py \(sha256 \w{12}\): add plug"):
        mlx_attn.load(trained)
    with pytest.raises(ConfigError, match=re.escape(f"add plugins=['{talk}']") + "$"):
        mlx_attn.resume(trained)


def test_what_no_file_holds_cannot_be_kept(settings):
    code = compile("lambda a, s: s", "<cell>", "eval")
    choice("logits", "cell", "s")(eval(code, {"__name__": "__main__"}))
    assert mlx_attn.train(logits="cell", **settings).run().model
    with pytest.raises(ConfigError, match="logits=cell is defined in <cell>, which is no file"):
        mlx_attn.train("runs/cell", logits="cell", **settings)
    with pytest.raises(ConfigError, match="begin the cell with %%writefile mine"):
        mlx_attn.compare("standard", "cells: standard, logits=cell", out="runs/both")
    assert not Path("runs/cell").exists()


# Resuming.


def test_a_training_that_was_left_is_resumed_from_its_checkpoint(settings):
    for event in mlx_attn.train("runs/left", **settings):
        if isinstance(event, Stepped) and event.step == 3:
            break
    first, *_, last = mlx_attn.resume("runs/left")
    assert isinstance(first, Started)
    assert isinstance(last, Ended)
    assert (first.step, last.steps) == (2, 4)


# Words.


def test_a_taken_directory_is_answered_with_what_a_script_can_do(settings):
    mlx_attn.train("runs/mine", **settings).run()
    with pytest.raises(RunError, match=r"exists: mlx_attn\.resume\('runs/mine'\) continues it, ov"):
        mlx_attn.train("runs/mine", **settings)


def test_numbers_of_numpy_are_numbers(settings):
    numbers = {"steps": np.int64(3), "seed": np.uint8(1), "lr": np.float32(0.01)}
    training = mlx_attn.train(**{**settings, **numbers, "qkv_bias": np.bool_(True)})
    assert training.trainer.config.steps == 3
    assert json.dumps(training.trainer.settings.training.as_dict())
    drawn = {"temp": np.float32(0.7), "seed": np.int64(1), "top_k": np.int32(3)}
    model = training.run().model
    assert len(model.generate("the", max_tokens=4, **drawn)) == 4
