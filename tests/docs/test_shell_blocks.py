"""Every shell block of the README and the tour runs, word for word, on tiny models."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SMALL = {"STEPS": 4, "EVAL_EVERY": 2, "EMB_DIM": 16, "N_LAYERS": 1, "BATCH_SIZE": 2, "WARMUP": 1}
STUBS = ("pip", "pytest")
"""Commands that are other tests' business: they succeed at once."""


def blocks(page: Path) -> list[str]:
    return re.findall(r"```sh\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)


@pytest.fixture
def shell(tmp_path_factory):
    """A directory like a fresh clone's, and a shell in it whose trainings are tiny."""
    place = tmp_path_factory.mktemp("clone")
    programs = place / "bin"
    programs.mkdir()
    for stub in STUBS:
        (programs / stub).write_text("#!/bin/sh\n")
    (programs / "python").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    (programs / "mlx-attn").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m mlx_attn "$@"\n')
    for program in programs.iterdir():
        program.chmod(0o755)
    shutil.copy(ROOT / "train.py", place)
    shutil.copytree(ROOT / "examples", place / "examples")
    environment = {
        **os.environ,
        **{f"MLX_ATTN_{key}": str(value) for key, value in SMALL.items()},
        "MLX_ATTN_DATA_DIR": str(place / "data"),
        "PATH": f"{programs}:{os.environ['PATH']}",
        "BROWSER": "true",
    }

    def run(script: str) -> subprocess.CompletedProcess[str]:
        command = ["bash", "-e", "-c", script]
        streams = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True}
        return subprocess.run(command, cwd=place, env=environment, **streams)

    # What the README's import finds: a checkpoint, and the tokenizer of its small vocabulary.
    sizes = "--block book --position learned --emb-dim 64 --n-heads 1"
    made = run(f"mlx-attn train {sizes} -q --out book && mlx-attn export book --to book")
    assert made.returncode == 0, made.stderr
    shutil.copy(place / "book-book.pth", place / "model.pth")
    for file in (place / "book").glob("tokenizer.*"):
        shutil.copy(file, place)
    return run


@pytest.mark.slow
@pytest.mark.parametrize("page", ["README.md", "docs/tour.md"])
def test_every_shell_block_runs(page, shell):
    found = blocks(ROOT / page)
    assert found
    for block in found:
        done = shell(block)
        assert done.returncode == 0, f"{block}\n{done.stderr}"
