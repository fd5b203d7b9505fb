"""The text of the study of two sizes is made of wheels whose digests are registered."""

import hashlib
import zipfile

import pytest

from mlx_attn.errors import RunError
from studies.plan import registered
from studies.text import Package, SourceText, source_bytes

LINE = b"x = 1\n"
MODULES = {
    "a.py": LINE * 10,
    "same.py": LINE * 10,
    "b.py": b"y = 2\n" * 10,
    "short.py": LINE,
    "accents.py": "x = 'é'\n".encode() * 10,
    "table.py": b"x" * 50,
    "notes.txt": b"z = 3\n" * 10,
}


@pytest.fixture
def source(tmp_path) -> SourceText:
    wheel = tmp_path / "tiny-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, content in MODULES.items():
            archive.writestr(name, content)
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    package = Package(name="tiny", version="1.0", sha256=digest)
    bounds = {"module_bytes": (20, 100), "line_bytes": 40, "validation": 10, "sha256": ""}
    return SourceText(packages=(package,), characters=122, **bounds)


def test_each_plain_module_is_in_the_text_once(source, tmp_path):
    text = source_bytes(source, tmp_path)
    assert sorted(text.split(b"\n\n\n")) == sorted([MODULES["a.py"].strip(), MODULES["b.py"]])


def test_another_wheel_or_a_missing_one_is_refused(source, tmp_path):
    (wheel,) = tmp_path.glob("*.whl")
    wheel.write_bytes(wheel.read_bytes() + b" ")
    with pytest.raises(RunError, match="SHA-256"):
        source_bytes(source, tmp_path)
    wheel.unlink()
    with pytest.raises(RunError, match="no wheel of tiny"):
        source_bytes(source, tmp_path)


def test_a_training_reads_no_token_twice():
    study = registered()
    for name, size in study.sizes.items():
        tokens = size["steps"] * size["batch_size"] * study.shared["context_length"]
        assert tokens < 0.9 * study.text.characters, name
    assert study.text.validation < 0.1 * study.text.characters
