"""The wheel holds every file of the package, and nothing else."""

import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_it_holds_every_file_of_the_package_its_licence_and_nothing_else(tmp_path):
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    files = [path for path in (ROOT / "mlx_attn").rglob("*") if path.is_file()]
    expected = {str(path.relative_to(ROOT)) for path in files if "__pycache__" not in path.parts}
    held = zipfile.ZipFile(next(tmp_path.glob("*.whl"))).namelist()
    assert {name for name in held if "dist-info" not in name} == expected
    assert [name for name in held if name.endswith(".jsonl")] == []
    assert any(name.endswith("licenses/LICENSE") for name in held)
