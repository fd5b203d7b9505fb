"""The wheel holds everything, and runs outside the checkout."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SMALL = [
    *("--preset=nano", "--emb-dim=16", "--n-layers=1", "--batch-size=2", "--steps=4"),
    *("--eval-every=4", "--warmup=1", "--out=run"),
]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return next(folder.glob("*.whl"))


def test_it_holds_every_file_of_the_package_and_its_licence(wheel):
    tracked = (path for path in (ROOT / "mlx_attn").rglob("*") if path.is_file())
    expected = {str(path.relative_to(ROOT)) for path in tracked if "__pycache__" not in path.parts}
    held = set(zipfile.ZipFile(wheel).namelist())
    assert expected - held == set()
    assert any(name.endswith("licenses/LICENSE") for name in held)


def test_it_holds_no_studies_and_no_records_of_trainings(wheel):
    held = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in held if "dist-info" not in name} == {"mlx_attn"}
    assert [name for name in held if name.endswith(".jsonl")] == []


@pytest.fixture(scope="module")
def run(wheel, tmp_path_factory):
    """Runs a command of the installed wheel in an empty directory, and returns what it prints."""
    place = tmp_path_factory.mktemp("elsewhere")
    site = place / "site"
    command = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "-q"]
    subprocess.run([*command, f"--target={site}", str(wheel)], check=True)
    environment = {**os.environ, "PYTHONPATH": str(site), "MLX_ATTN_DATA_DIR": str(place / "data")}
    (place / "work").mkdir()

    def call(*arguments: str) -> str:
        command = [sys.executable, "-m", "mlx_attn", *arguments]
        streams = {"capture_output": True, "text": True, "cwd": place / "work"}
        done = subprocess.run(command, env=environment, **streams)
        assert done.returncode == 0, done.stderr
        return done.stdout

    call("train", *SMALL, "-q")
    return call


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        ["sample", "run", "--max-tokens=5"],
        ["probe", "run", "--html=probe.html"],
        ["open", "run", "--no-browser", "--json"],
        ["convert", "run", "--to=merged", "--out=merged"],
        ["export", "run", "--to=mlx-lm", "--out=exported"],
        ["variants"],
        ["answers", "query"],
    ],
    ids=" ".join,
)
def test_commands_run_in_an_empty_directory(run, arguments):
    assert run(*arguments)
