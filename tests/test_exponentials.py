"""Both ways of computing an exponential on a processor give MLX's own numbers and gradients."""

import math

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

from mlx_attn.machine import operations
from mlx_attn.machine.operations import cross_entropy, exp2, gelu, softmax
from mlx_attn.model.gpt import squared_relu


@pytest.fixture(params=[True, False], ids=["exp2", "own"], autouse=True)
def way(request, monkeypatch, on_processor):
    monkeypatch.setattr(operations, "on_linux_cpu", lambda: request.param)
    monkeypatch.setattr(operations, "FEW", 0)


def same(one, two, tolerance: float = 1e-6):
    assert np.allclose(np.array(one), np.array(two), rtol=tolerance, atol=tolerance)


def logits(*shape, scale: float = 3.0) -> mx.array:
    return scale * mx.random.normal(shape, key=mx.random.key(1))


TARGETS = mx.arange(20).reshape(4, 5) % 11
PAIRS = {
    "softmax": (softmax, lambda x: mx.softmax(x, axis=-1), (2, 3, 17)),
    "cross entropy": (
        lambda x: cross_entropy(x, TARGETS),
        lambda x: nn.losses.cross_entropy(x, TARGETS),
        (4, 5, 11),
    ),
    "gelu": (gelu, nn.gelu_approx, (3, 40)),
    "squared ReLU": (squared_relu, lambda x: mx.square(nn.relu(x)), (3, 40)),
}


@pytest.mark.parametrize(("ours", "theirs", "shape"), PAIRS.values(), ids=PAIRS)
def test_numbers_and_gradients_are_mlx_s_compiled_or_not(ours, theirs, shape):
    x = logits(*shape, scale=4.0)
    same(ours(x), theirs(x))
    weight = logits(*ours(x).shape)
    own, expected = (mx.grad(lambda x, f=f: (f(x) * weight).sum()) for f in (ours, theirs))
    same(own(x), expected(x), 3e-6)
    same(mx.compile(own)(x), expected(x), 1e-5)


@pytest.mark.parametrize("size", [-1e4, 1e30])
def test_extreme_logits_overflow_nowhere(size):
    x = mx.array([[0.0, size, size / 2]])
    same(softmax(x), mx.softmax(x, axis=-1))
    loss, gradient = mx.value_and_grad(lambda x: cross_entropy(x, mx.array([1])).sum())(x)
    assert np.isfinite([float(loss), *gradient[0].tolist()]).all()
    same(gelu(mx.array([size, -size])), mx.array([max(size, 0.0), max(-size, 0.0)]))


def test_masked_scores_get_no_weight_and_no_gradient():
    x = mx.array([[1.0, -mx.inf, 2.0], [0.0, -mx.inf, -mx.inf]])
    weights = np.array(softmax(x))
    assert (weights[:, 1] == 0).all()
    assert weights[1].tolist() == [1, 0, 0]
    gradient = np.array(mx.grad(lambda x: (softmax(x) * logits(2, 3)).sum())(x))
    assert np.isfinite(gradient).all()
    assert (gradient[:, 1] == 0).all()


def relative_error(x: np.ndarray) -> np.ndarray:
    exact = np.exp2(x.astype(np.float64))
    return np.abs(np.array(exp2(mx.array(x))) / exact - 1)


def test_every_part_of_the_range_is_that_exact_and_integers_are_exact():
    assert relative_error(np.linspace(-126, 127.49, 1_000_001, dtype=np.float32)).max() < 2e-7
    assert relative_error(np.linspace(-1, 1, 1_000_001, dtype=np.float32)).max() < 2e-7
    x = np.arange(-126, 128, dtype=np.float32)
    assert (np.array(exp2(mx.array(x))) == np.ldexp(np.float32(1), x.astype(int))).all()


def test_the_polynomial_s_own_gradient_is_near_the_power_s():
    x = mx.linspace(-125, 127, 100_001)
    gradient = mx.grad(lambda x: exp2(x).sum())(x)
    assert mx.allclose(gradient, exp2(x) * math.log(2), rtol=1e-5, atol=0)


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16, mx.float32, mx.float64])
def test_a_power_has_the_type_and_the_digits_of_its_exponent(dtype):
    with mx.stream(mx.cpu):
        x = mx.array([-3.25, 0.0, 1.5, 7.75], dtype)
        power = exp2(x)
        assert power.dtype == dtype
        exact = np.exp2(np.array([-3.25, 0.0, 1.5, 7.75]))
        tolerance = {mx.float16: 5e-4, mx.bfloat16: 4e-3, mx.float32: 2e-7, mx.float64: 1e-15}
        assert np.allclose(power.tolist(), exact, rtol=tolerance[dtype], atol=0)
