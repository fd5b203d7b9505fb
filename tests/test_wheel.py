"""The wheel holds every file of the package, and nothing else."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


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
