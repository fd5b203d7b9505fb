import json
import os
import subprocess
import sys

import pytest

from mlx_attn import blas

PRODUCT = """
import json, sys, mlx_attn, mlx.core as mx
from mlx_attn.blas import preload
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


def test_a_library_that_cannot_be_loaded_is_named_and_does_no_harm(monkeypatch):
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv(blas.SWITCH, "/nowhere/libnone.so")
    monkeypatch.delitem(sys.modules, "mlx.core", raising=False)
    assert blas._choose() == blas.Blas(None, "/nowhere/libnone.so cannot be loaded")


def test_without_any_library_the_way_to_one_is_told(monkeypatch):
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.delenv(blas.SWITCH, raising=False)
    monkeypatch.delitem(sys.modules, "mlx.core", raising=False)
    monkeypatch.setattr(blas, "_load", lambda name: False)
    chosen = blas._choose()
    assert chosen.library is None
    assert "apt install libopenblas0" in chosen.note


def test_the_first_library_that_loads_is_taken(monkeypatch):
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.delenv(blas.SWITCH, raising=False)
    monkeypatch.delitem(sys.modules, "mlx.core", raising=False)
    monkeypatch.setattr(blas, "_load", lambda name: "mkl" in name)
    assert blas._choose() == blas.Blas("libmkl_rt.so.2", "loaded before mlx")


def test_too_late_is_said_and_not_done(monkeypatch):
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.delenv(blas.SWITCH, raising=False)
    monkeypatch.setitem(sys.modules, "mlx.core", sys)
    with pytest.warns(UserWarning, match="import mlx_attn first"):
        assert blas._choose().library is None


def test_other_systems_need_none(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    assert blas._choose() == blas.Blas(None, "not needed on this system")


def test_it_is_chosen_once():
    assert blas.preload() is blas.preload()


def test_importing_the_package_imports_neither_mlx_nor_numpy():
    code = "import mlx_attn, sys; print([m for m in ('mlx.core', 'numpy') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert done.stdout.strip() == "[]"
