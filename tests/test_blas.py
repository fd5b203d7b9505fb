"""A fast BLAS is loaded before MLX on Linux, from the system or from a wheel."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from mlx_attn.machine import blas

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux needs another BLAS")
PRODUCT = """
import json, sys, mlx_attn, mlx.core as mx
from mlx_attn.machine.blas import preload
one = mx.random.normal((64, 200), key=mx.random.key(1))
two = mx.random.normal((200, 48), key=mx.random.key(2))
print(json.dumps({"library": preload().library, "note": preload().note,
                  "product": (one @ two).tolist()}))
"""


def product(wish: str, before: str = "") -> dict:
    """A matrix product in a process of its own, and the library that made it."""
    command = [sys.executable, "-c", before + PRODUCT]
    environment = {**os.environ, blas.SWITCH: wish}
    return json.loads(subprocess.check_output(command, env=environment))


@pytest.mark.parametrize(
    "before", ["", "from mlx_attn.machine import blas\nblas._CANDIDATES = ()\n"]
)
def test_with_and_without_it_products_agree(before, cache):
    with_library, without = product("", before), product("off")
    assert without["library"] is None
    assert product("/nope.so")["note"].startswith("MLX_ATTN_BLAS=/nope.so cannot be loaded, so")
    assert np.allclose(with_library["product"], without["product"], atol=1e-4)
    if before:  # the system has none, and the wheel of scipy-openblas32 has one
        assert with_library["library"] == "scipy-openblas32"


@pytest.mark.parametrize(
    ("source", "taken"),
    [
        ('char *openblas_get_corename(void) { return "Prescott"; }', "scipy-openblas32"),
        ('char *openblas_get_corename(void) { return "SkylakeX"; }', "the system's"),
        ("int mkl_get_version;", "the system's"),
    ],
)
def test_a_library_older_than_the_processor_is_passed_over(source, taken, cache, tmp_path):
    system = tmp_path / "libsystem.so"
    subprocess.run(
        ["gcc", "-shared", "-x", "c", "-", "-o", system], input=source.encode(), check=True
    )
    before = f"from mlx_attn.machine import blas\nblas._CANDIDATES = ({str(system)!r},)\n"
    assert product("", before)["library"] == taken.replace("the system's", str(system))


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "mlx_attn" / "blas"


def test_the_forwarding_functions_are_compiled_once(cache):
    first = blas._forwarding_library()
    assert first is not None
    assert first.parent == cache
    made = first.stat().st_mtime_ns
    assert blas._forwarding_library() == first
    assert first.stat().st_mtime_ns == made


@pytest.mark.parametrize("lacks", ["the wheel", "a compiler", "a cache"])
def test_without_a_wheel_a_compiler_or_a_cache_there_is_none(cache, tmp_path, monkeypatch, lacks):
    if lacks == "the wheel":
        monkeypatch.setattr(blas, "_WHEEL", "no_such_package")
    elif lacks == "a compiler":
        monkeypatch.setenv("PATH", "")
    else:
        (tmp_path / "file").write_text("")
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert blas._forwarding_library() is None
