"""The page's interpreter against MLX: primitives and refusals."""

import json
from collections.abc import Callable

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

from mlx_attn.errors import ConfigError
from mlx_attn.explore.traced import PRIMITIVES, Constants, trace

X = mx.random.normal((2, 3, 4), key=mx.random.key(1))
Y = mx.random.uniform(0.5, 2.0, (2, 3, 4), key=mx.random.key(2))
WHERE = mx.array([[2, 0], [1, 2]])
BITWISE = (mx.bitwise_and, mx.bitwise_or, mx.bitwise_xor, mx.left_shift, mx.right_shift)

# Each line is here for the primitives that MLX makes of it.
FUNCTIONS: dict[str, Callable[[mx.array, mx.array], mx.array]] = {
    "signs and steps": lambda x, y: mx.abs(x) + mx.sign(x) + mx.floor(x) + mx.ceil(x) - mx.round(x),
    "halves": lambda x, y: mx.round(mx.floor(9 * x) + 0.5),
    "no numbers": lambda x, y: (
        mx.isnan(mx.maximum(mx.sqrt(x), 0) + mx.minimum(mx.sqrt(-x), 0)) * 1.0
    ),
    "powers": lambda x, y: mx.exp(x) + mx.expm1(x) + mx.power(y, x) + mx.square(x),
    "logarithms": lambda x, y: mx.log(y) + mx.log2(y) + mx.log10(y) + mx.log1p(y),
    "roots": lambda x, y: mx.sqrt(y) + mx.rsqrt(y),
    "waves": lambda x, y: mx.cos(x) + mx.sin(x) + mx.tanh(x) + mx.sigmoid(x),
    "comparisons": lambda x, y: (x < y) + (x <= y) + (x > y) + (x >= y) + (x == y) * (x != y) * 1.0,
    "truths": lambda x, y: mx.where(mx.logical_and(x > 0, y > 1) | mx.logical_not(x > y), x, y),
    "either": lambda x, y: mx.logical_or(x > 0, y > 1).astype(mx.float32),
    "extremes": lambda x, y: mx.maximum(x, y) - mx.minimum(x, 0.5) + mx.clip(x, -1, 1),
    "division": lambda x, y: x / y + mx.remainder(x, y) + mx.floor_divide(x, y),
    "log of a sum": lambda x, y: mx.logaddexp(x, y) + mx.logsumexp(99 * y, -1, keepdims=True),
    "folds": lambda x, y: x.sum(1) + x.max(1) - x.min(1) + x.prod(1) + x.mean(1) + x.var(1),
    "all and any": lambda x, y: (mx.all(x > -9, axis=0) + mx.any(x > 9, axis=0)).astype(mx.float32),
    "scans": lambda x, y: mx.cumsum(x, 1) + mx.cumprod(x, 0) + mx.cummax(x, 2) + mx.cummin(x, 1),
    "scans backwards": lambda x, y: (
        mx.cumsum(x, 1, reverse=True) + mx.cumsum(x, 2, inclusive=False)
    ),
    "order": lambda x, y: mx.sort(x, 1) + mx.argsort(mx.floor(x), 1),
    "places of extremes": lambda x, y: mx.argmax(x, 1) - mx.argmin(x, 1).astype(mx.float32),
    "the largest": lambda x, y: mx.sort(mx.topk(x, 2), -1) + mx.argpartition(x, 3)[..., 3:],
    "taken along an axis": lambda x, y: mx.take_along_axis(x, mx.argsort(y, 2), 2),
    "taken": lambda x, y: x[1:, WHERE] + mx.take(y, WHERE, axis=1),
    "cut": lambda x, y: mx.concatenate(
        [x[:, 1:], y[:, ::-1], mx.pad(x, 1, constant_values=7)[1:3, :2, 1:5]], 1
    ),
    "split and stacked": lambda x, y: mx.stack([*mx.split(x, 2, -1), y[..., ::2]]),
    "rolled and repeated": lambda x, y: mx.roll(mx.repeat(x, 2, 1), 1, 1) + mx.tile(y, (1, 2, 1)),
    "products": lambda x, y: mx.einsum("abc,adc->abd", x, y) @ mx.addmm(x, y, mx.eye(4), 0.5, 2.0),
    "softmax": lambda x, y: mx.softmax(99 * y, -1) + mx.softmax(x, 1),
    "a triangle": lambda x, y: mx.tril(x @ y.swapaxes(1, 2)) + mx.arange(3),
    "written": lambda x, y: x.at[:, 1].add(y[:, 0]).at[:, WHERE[0]].multiply(2.0),
    "whole numbers": lambda x, y: (4 * x).astype(mx.int32) % 3 + (9 * y).astype(mx.int32) // 2,
    "bits": lambda x, y: mx.stack([f((9 * y).astype(mx.int32), 2) for f in BITWISE]),
    "a compiled function of constants": lambda x, y: x + nn.softplus(mx.ones(4)) + y,
    "nothing": lambda x, y: mx.stop_gradient(x) + mx.full((2, 3, 4), y[0, 0, 0]),
}


@pytest.fixture(scope="module")
def page(make_run, show):
    return show(make_run())


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_page_computes_each_primitive_as_mlx_does(name, page):
    constants = Constants([])
    graph = trace(lambda x, y: [FUNCTIONS[name](x, y)], ["y"], [X, Y], constants)
    inputs = [np.array(array).reshape(-1).tolist() for array in (X, Y)]
    arrays = [[array.reshape(-1).tolist(), array.shape] for array in constants.others[::-1]]
    found = page.run(f"""(() => {{
      const {{ Graph, tensorOf }} = explorer;
      const tensor = ([data, shape]) => tensorOf(Float32Array.from(data), shape);
      const arrays = {json.dumps(arrays)}.map(tensor);
      const {{ y }} = new Graph({json.dumps(graph)}, arrays).run({json.dumps(inputs)});
      return {{ shape: y.shape, numbers: Array.from(y.data) }};
    }})()""")
    expected = np.array(FUNCTIONS[name](X, Y).astype(mx.float32))
    assert tuple(found["shape"]) == expected.shape
    assert np.abs(np.array(found["numbers"]) - expected.reshape(-1)).max() < 1e-5


def test_every_primitive_of_the_page_is_tried():
    tried = set()
    for function in FUNCTIONS.values():
        graph = trace(lambda x, y, f=function: [f(x, y)], ["y"], [X, Y], Constants([]))
        tried |= {node[0] for node in graph["nodes"]}
    assert {*PRIMITIVES.split()} - tried <= {"Flatten", "Unflatten"}  # models have those


def test_a_primitive_that_the_page_lacks_is_named():
    with pytest.raises(ConfigError, match="MLX's primitive Convolution, which a page"):
        trace(lambda x: [mx.conv1d(x, mx.zeros((4, 2, 4)))], ["y"], [X], Constants([]))
