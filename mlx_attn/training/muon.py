"""Muon: momentum whose matrices are made orthogonal before they are applied.

https://kellerjordan.github.io/posts/muon/. MLX's own Muon treats one matrix after the other; here
the matrices of one shape are iterated together as one stack, in a fifth of the operations for a
model of two blocks, and the stacks are divided among the processor's cores.
"""

from collections import defaultdict
from collections.abc import Mapping
from itertools import chain
from typing import Any

import mlx.core as mx
import mlx.optimizers as optim
from jaxtyping import Float
from mlx.utils import tree_map, tree_unflatten

from mlx_attn.streams import share_of_cores, side_by_side
from mlx_attn.trees import named_arrays

ITERATIONS = 5


class Muon(optim.Optimizer):
    """W - lr sqrt(max(1, rows / columns)) orthogonal(u), with u = (1 - m) g + m v.

    The momentum v is the moving average m v + (1 - m) g, and u is Nesterov's.

    Args:
        learning_rate: lr.
        momentum: m.
    """

    def __init__(self, learning_rate: float, momentum: float = 0.95):
        super().__init__()
        self._maybe_schedule("learning_rate", learning_rate)
        self.momentum = momentum

    def init_single(self, parameter: mx.array, state: dict) -> None:
        """The momentum of a matrix starts at 0."""
        state["v"] = mx.zeros_like(parameter)

    def apply_gradients(self, gradients: dict, parameters: dict) -> dict:
        """The matrices after one step."""
        self.state["step"] = self.step + 1
        updates = tree_map(self._update, gradients, self.state)
        directions: Any = tree_unflatten(list(orthogonal(named_arrays(updates)).items()))
        return tree_map(self._moved, directions, parameters)

    def _update(self, gradient: mx.array, state: dict) -> mx.array:
        state["v"] = self.momentum * state["v"] + (1 - self.momentum) * gradient
        return gradient * (1 - self.momentum) + state["v"] * self.momentum

    def _moved(self, direction: mx.array, parameter: mx.array) -> mx.array:
        rows, columns = parameter.shape
        rate = self.learning_rate * max(1, rows / columns) ** 0.5
        return parameter - rate.astype(parameter.dtype) * direction


def orthogonal(matrices: Mapping[str, mx.array]) -> dict[str, mx.array]:
    """Each matrix with its singular values near 1, those of one shape or its transpose together."""
    shapes = defaultdict(list)
    for name, matrix in matrices.items():
        shapes[tuple(sorted(matrix.shape))].append(name)
    results = {}
    for names in shapes.values():
        stack = mx.stack([_wide(matrices[name]) for name in names])
        shares = side_by_side(newton_schulz, stack.split(share_of_cores(len(stack))))
        results |= zip(names, chain.from_iterable(shares), strict=True)
    return {
        name: results[name].T if _is_tall(matrix) else results[name]
        for name, matrix in matrices.items()
    }


def newton_schulz(
    stack: Float[mx.array, "n rows columns"], iterations: int = ITERATIONS
) -> Float[mx.array, "n rows columns"]:
    """X <- a X + b (X X^T) X + c (X X^T)^2 X, from X of norm 1; rows at most columns.

    The coefficients lift small singular values fast and leave all of them between 0.7 and 1.2.
    """
    a, b, c = 3.4445, -4.7750, 2.0315
    x = stack / (mx.sqrt(mx.square(stack).sum(axis=(1, 2), keepdims=True)) + 1e-7)
    for _ in range(iterations):
        gram = x @ x.swapaxes(1, 2)
        x = mx.addmm(a * x, mx.addmm(b * gram, gram, gram, alpha=c), x)
    return x


def _is_tall(matrix: mx.array) -> bool:
    return matrix.shape[0] > matrix.shape[1]


def _wide(matrix: mx.array) -> mx.array:
    return matrix.T if _is_tall(matrix) else matrix
