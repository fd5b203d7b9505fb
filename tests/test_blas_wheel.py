"""OpenBLAS from a wheel serves a Linux machine that has no system library."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from mlx_attn import blas_wheel

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux needs another BLAS")


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "mlx_attn" / "blas"


def run(code: str) -> str:
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_the_forwarding_functions_are_compiled_once(cache):
    first = blas_wheel.forwarding_library()
    assert first is not None
    assert first.parent == cache
    made = first.stat().st_mtime_ns
    assert blas_wheel.forwarding_library() == first
    assert first.stat().st_mtime_ns == made


def test_without_the_wheel_there_is_none(cache, monkeypatch):
    monkeypatch.setattr(blas_wheel, "PACKAGE", "no_such_package")
    assert blas_wheel.forwarding_library() is None


def test_without_a_compiler_there_is_none(cache, monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert blas_wheel.forwarding_library() is None


def test_a_cache_that_cannot_be_written_is_no_failure(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert blas_wheel.forwarding_library() is None


def test_products_are_those_of_mlx_s_own_blas(cache):
    """In processes of their own, because the first library that is loaded stays."""
    product = """
import mlx.core as mx, numpy as np
x = mx.array(np.random.default_rng(0).normal(size=(3, 65, 70)), mx.float32)
y = x @ x.swapaxes(1, 2)
with mx.stream(mx.cpu):
    z = x.astype(mx.float64) @ x.swapaxes(1, 2).astype(mx.float64)
print(([float(y.sum()), float(z.sum()), float(mx.abs(y[1, 2, 3]))]))
"""
    by_wheel = "from mlx_attn import blas_wheel; import ctypes\n"
    by_wheel += "library = str(blas_wheel.forwarding_library())\n"
    by_wheel += "ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)\n"
    off = "import os; os.environ['MLX_ATTN_BLAS'] = 'off'\n"
    ours, own = (json.loads(run(code + product)) for code in (off + by_wheel, off))
    assert ours == pytest.approx(own, rel=1e-5)


def test_it_is_what_is_loaded_where_the_system_has_none(cache):
    code = """
import os
os.environ["MLX_ATTN_BLAS"] = "off"
from mlx_attn import blas
blas._CANDIDATES, blas._loaded = (), None
del os.environ["MLX_ATTN_BLAS"]
print(blas.preload().library)
"""
    assert run(code).strip() == "scipy-openblas32"
