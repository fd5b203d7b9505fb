"""How a device rounds, and what that explains."""

import math
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from mlx_attn.machine.device import gpu_path
from mlx_attn.verify.checks import CHECKS, devices, run
from mlx_attn.verify.show import finding_lines, machine_rows
from mlx_attn.verify.tolerance import (
    FLOAT32,
    TF32,
    Comparison,
    compared,
    difference,
    measured_rounding,
)

EXACT_PRODUCT = mx.array.__matmul__


def rounded(array: mx.array, bits: int) -> mx.array:
    """The nearest number of so many bits after the point."""
    lost = 23 - bits
    kept = mx.array(0xFFFFFFFF << lost & 0xFFFFFFFF, mx.uint32)
    return mx.bitwise_and(array.view(mx.uint32) + (1 << lost - 1), kept).view(mx.float32)


@mx.custom_function
def _product(a, b):
    return EXACT_PRODUCT(rounded(a, 10), rounded(b, 10))


@_product.vjp
def _product_vjp(factors, dy, y):
    a, b = factors
    da: Any
    db: Any
    da, db = _product(dy, b.swapaxes(-1, -2)), _product(a.swapaxes(-1, -2), dy)
    while db.ndim > b.ndim:
        db = db.sum(0)
    return da, db


@pytest.fixture
def tf32(monkeypatch):
    """A machine that rounds the factors of a product to 10 bits, forward and backward."""
    monkeypatch.setattr(mx.array, "__matmul__", lambda a, b: _product(a, b))
    monkeypatch.setattr(mx, "addmm", lambda c, a, b: c + _product(a, b))


def test_this_processor_rounds_like_float32():
    assert measured_rounding() is FLOAT32


def test_a_machine_that_rounds_like_tf32_is_told(tf32):
    assert measured_rounding() is TF32
    assert "rounds like TF32" in finding_lines(run(CHECKS[2], "gpu", TF32))[0]


@pytest.mark.parametrize("name", ["products", "order of heads", "golden models"])
def test_tf32_explains_what_float32_does_not(tf32, name):
    (check,) = [check for check in CHECKS if check.name == name]
    found = run(check, "gpu", TF32)
    assert found.is_right, finding_lines(found)
    assert not run(check, "gpu", FLOAT32).is_right


def test_a_difference_is_a_share_of_the_largest_number_expected():
    assert difference(np.array([1.0, 9.0]), np.array([1.0, 10.0])) == pytest.approx(0.1)
    assert difference(np.array([0.5]), np.array([0.0]), least=2.0) == pytest.approx(0.25)


def test_another_shape_and_what_is_no_number_are_wrong():
    assert not compared("a case", mx.ones((2, 3)), np.ones((3, 2)), 1e9).is_right
    wrong = compared("a case", mx.array([1.0, mx.nan]), np.ones(2), 1e9)
    assert (wrong.is_right, wrong.share) == (False, math.inf)
    assert not Comparison("a case", 1e-9, 0.0).is_right


def test_the_gpu_is_verified_where_there_is_one(monkeypatch):
    monkeypatch.setattr(mx, "is_available", lambda device: True)
    assert devices() == ["cpu", "gpu"]
    monkeypatch.setattr(mx, "is_available", lambda device: device == mx.cpu)
    assert devices() == ["cpu"]
    facts: dict[str, Any] = dict.fromkeys(
        ("mlx_attn", "mlx", "numpy", "python", "chip", "platform", "blas")
    )
    assert dict(machine_rows(facts, devices()))["verified"].endswith("MLX finds no GPU here")


DECODING = pytest.param("cached decoding", marks=pytest.mark.slow)


@pytest.mark.parametrize("name", ["causality", "attention", "golden models", DECODING])
def test_the_path_of_a_gpu_is_right_on_this_processor_too(name):
    with gpu_path():
        found = run(next(check for check in CHECKS if check.name == name), "cpu")
    assert found.is_right, finding_lines(found)
