"""Every shell and Python block of the README, the tour and docs/python.md runs, word for word.

Trainings are tiny: `SMALL` sets the settings that a block leaves open, by environment variables.
Python blocks run as they are. `DOCS_FULL=1` leaves every setting as a reader has it.

The blocks run with the Python of this test, or with that of `DOCS_PYTHON`: `.ci/run` names
an environment that holds the wheel with its dependencies and nothing else, because a development
environment cannot tell whether the plain install is complete.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = ("README.md", "docs/tour.md", "docs/python.md")
"""In the order in which a reader meets them: later pages use the runs that earlier ones trained."""
SMALL = {"STEPS": 4, "EVAL_EVERY": 2, "EMB_DIM": 16, "N_LAYERS": 1, "BATCH_SIZE": 2, "WARMUP": 1}
PYTHON = os.environ.get("DOCS_PYTHON", sys.executable)
PROGRAMS = {
    "python": f'exec "{PYTHON}" "$@"',
    "mlx-attn": f'exec "{PYTHON}" -m mlx_attn "$@"',
    # Installing is the business of .ci/run: here these succeed at once, and uvx runs its command.
    "pip": "",
    "pytest": "",
    "uvx": 'exec "$@"',
}

Shell = Callable[[str], subprocess.CompletedProcess[str]]


def blocks(page: str, language: str) -> list[str]:
    """The blocks of a page in a language, in order."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


@pytest.fixture(scope="module")
def shell(tmp_path_factory) -> Shell:
    """A shell in a directory like a fresh clone's, which does not hold the package."""
    place = tmp_path_factory.mktemp("clone")
    programs = place / "bin"
    programs.mkdir()
    for name, line in PROGRAMS.items():
        (programs / name).write_text(f"#!/bin/sh\n{line}\n")
        (programs / name).chmod(0o755)
    shutil.copy(ROOT / "train.py", place)
    shutil.copytree(ROOT / "examples", place / "examples")
    small = {} if "DOCS_FULL" in os.environ else SMALL
    environment = {
        **os.environ,
        **{f"MLX_ATTN_{key}": str(value) for key, value in small.items()},
        "MLX_ATTN_DATA_DIR": str(place / "data"),
        "PATH": f"{programs}:{os.environ['PATH']}",
        "BROWSER": "true",
    }
    if sys.executable != PYTHON:
        environment.pop("PYTHONPATH", None)

    def run(script: str) -> subprocess.CompletedProcess[str]:
        command = ["bash", "-e", "-c", script]
        streams = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True}
        return subprocess.run(command, cwd=place, env=environment, **streams)

    # What the README's import reads: a checkpoint, and the tokenizer of its small vocabulary.
    sizes = "--block book --position learned --emb-dim 64 --n-heads 1 --n-layers 1 --steps 4"
    made = run(f"mlx-attn train {sizes} -q --out book && mlx-attn export book --to book")
    assert made.returncode == 0, made.stderr
    shutil.copy(place / "book-book.pth", place / "model.pth")
    for file in (place / "book").glob("tokenizer.*"):
        shutil.copy(file, place)
    shutil.rmtree(place / "book")
    return run


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_every_block_runs(page, shell):
    found = [*blocks(page, "sh"), *map(as_a_script, blocks(page, "python"))]
    assert found
    for block in found:
        done = shell(block)
        assert done.returncode == 0, f"{block}\n{done.stdout}\n{done.stderr}"


def as_a_script(block: str) -> str:
    """A shell command that runs a block of Python from a file, so that processes can be spawned."""
    return f"cat > block.py <<'END_OF_BLOCK'\n{block}END_OF_BLOCK\npython block.py"


@pytest.mark.slow
def test_the_package_is_the_installed_one(shell):
    """And not a checkout's, which would hide what the wheel lacks."""
    place = shell("python -c 'import mlx_attn; print(mlx_attn.__file__)'").stdout.strip()
    if sys.executable == PYTHON:
        assert place == str(ROOT / "mlx_attn" / "__init__.py")
    else:
        assert Path(place).is_relative_to(Path(PYTHON).parents[1])
