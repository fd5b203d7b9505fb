"""A fast BLAS is loaded before MLX on Linux, from the system or from a wheel."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mlx_attn.machine import blas

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux needs another BLAS")
PRODUCT = """
import json, sys, mlx_attn, mlx.core as mx
from mlx_attn.machine.blas import preload
one = mx.random.normal((64, 200), key=mx.random.key(1))
two = mx.random.normal((200, 48), key=mx.random.key(2))
print(json.dumps({"library": preload().library, "note": preload().note,
                  "product": (one @ two).tolist()}))
"""


def product(wish: str | None) -> dict:
    """A matrix product in a process of its own, and the library that made it."""
    environment = {k: v for k, v in os.environ.items() if k != blas.SWITCH}
    if wish is not None:
        environment[blas.SWITCH] = wish
    done = subprocess.run(
        [sys.executable, "-c", PRODUCT], env=environment, capture_output=True, check=True
    )
    return json.loads(done.stdout)


@pytest.mark.parametrize("wish", ["off", "OFF", "0", "none"])
def test_it_can_be_turned_off(wish, monkeypatch):
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv(blas.SWITCH, wish)
    chosen = blas._choose()
    assert chosen.library is None
    assert chosen.note == f"turned off by {blas.SWITCH}={wish}"


def test_with_and_without_it_products_agree():
    with_library, without = product(None), product("off")
    assert without["library"] is None
    for one, two in zip(with_library["product"], without["product"], strict=True):
        assert one == pytest.approx(two, abs=1e-4)


@pytest.fixture
def early(monkeypatch):
    """Linux before MLX is imported, where no library is named."""
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.delenv(blas.SWITCH, raising=False)
    monkeypatch.delitem(sys.modules, "mlx.core", raising=False)
    return monkeypatch


def test_a_library_that_cannot_be_loaded_is_named_and_does_no_harm(early):
    early.setenv(blas.SWITCH, "/nowhere/libnone.so")
    assert blas._choose() == blas.Blas(None, "/nowhere/libnone.so cannot be loaded")


def test_without_any_library_the_way_to_one_is_told(early):
    early.setattr(blas, "_load", lambda name: False)
    chosen = blas._choose()
    assert chosen.library is None
    assert "apt install libopenblas0" in chosen.note


def test_the_first_library_that_loads_is_taken(early):
    early.setattr(blas, "_load", lambda name: "mkl" in name)
    early.setattr(blas, "_handle", None)
    assert blas._choose() == blas.Blas("libmkl_rt.so.2", "loaded before mlx")


def test_too_late_is_said_and_not_done(early):
    early.setitem(sys.modules, "mlx.core", sys)
    with pytest.warns(UserWarning, match="import mlx_attn first"):
        assert blas._choose().library is None


def test_other_systems_need_none(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    assert blas._choose() == blas.Blas(None, "not needed on this system")


def test_it_is_chosen_once():
    assert blas.preload() is blas.preload()


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "mlx_attn" / "blas"


def run(code: str) -> str:
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return result.stdout


@on_linux
def test_the_forwarding_functions_are_compiled_once(cache):
    first = blas._forwarding_library()
    assert first is not None
    assert first.parent == cache
    made = first.stat().st_mtime_ns
    assert blas._forwarding_library() == first
    assert first.stat().st_mtime_ns == made


@on_linux
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


@on_linux
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
    by_wheel = "from mlx_attn.machine import blas; import ctypes\n"
    by_wheel += "library = str(blas._forwarding_library())\n"
    by_wheel += "ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)\n"
    off = "import os; os.environ['MLX_ATTN_BLAS'] = 'off'\n"
    ours, own = (json.loads(run(code + product)) for code in (off + by_wheel, off))
    assert ours == pytest.approx(own, rel=1e-5)


@on_linux
def test_it_is_what_is_loaded_where_the_system_has_none(cache):
    code = """
import os
os.environ["MLX_ATTN_BLAS"] = "off"
from mlx_attn.machine import blas
blas._CANDIDATES, blas._loaded = (), None
del os.environ["MLX_ATTN_BLAS"]
print(blas.preload().library)
"""
    assert run(code).strip() == "scipy-openblas32"
