"""Muon: momentum whose matrices are made orthogonal before they are applied.

https://kellerjordan.github.io/posts/muon/. MLX's own Muon treats one matrix after the other; here
the matrices of one shape are iterated together as one stack, in a fifth of the operations for a
model of two blocks, and the stacks are divided among the processor's cores.
"""

from collections import defaultdict
from itertools import chain
from typing import Any

import mlx.core as mx
import mlx.optimizers as optim
from jaxtyping import Float
from mlx.utils import tree_unflatten

from mlx_attn.streams import share_of_cores, side_by_side
from mlx_attn.trees import named_arrays

ITERATIONS = 5

Arrays = dict[str, mx.array]
Stack = Float[mx.array, "n rows columns"]
Stacks = list[Float[mx.array, "_ _ _"]]


class Muon(optim.Optimizer):
    """W - lr sqrt(max(1, rows / columns)) orthogonal(u), with u = (1 - m) g + m v.

    The momentum v is the moving average m v + (1 - m) g, and u is Nesterov's. Its state is that of
    stacks, not of matrices.

    Args:
        learning_rate: lr.
        momentum: m.
    """

    def __init__(self, learning_rate: float, momentum: float = 0.95):
        super().__init__()
        self._maybe_schedule("learning_rate", learning_rate)
        self.momentum = momentum

    def init(self, parameters: dict) -> None:
        """The momentum of all matrices starts at 0."""
        super().init({str(i): s for i, s in enumerate(self.packed(named_arrays(parameters)))})

    def init_single(self, parameter: mx.array, state: dict) -> None:
        """The momentum of a stack of matrices starts at 0."""
        state["v"] = mx.zeros_like(parameter)

    def apply_gradients(self, gradients: dict, parameters: dict) -> dict:
        """The matrices after one step."""
        own, packed = named_arrays(parameters), self.packed(named_arrays(gradients))
        tree: Any = tree_unflatten(list(self.moved(packed, own, mx.array(1.0)).items()))
        return tree

    def packed(self, arrays: Arrays) -> Stacks:
        """Matrices of one shape, or of its transpose, as one stack of wide ones."""
        stacks = alike(arrays)
        return [mx.stack([_wide(arrays[name]) for name in names]) for names in stacks]

    def moved(self, gradients: Stacks, parameters: Arrays, factor: mx.array) -> Arrays:
        """The matrices after one step.

        Args:
            gradients: As `packed` gives them.
            parameters: What they are the gradients of.
            factor: Multiplies the gradients.
        """
        self.state["step"] = self.step + 1
        momenta = [self.state[str(i)]["v"] for i in range(len(gradients))]
        new = (1 - self.momentum) * factor
        given = [(*pair, new) for pair in zip(gradients, momenta, strict=True)]
        moved = {}
        for i, (v, u) in enumerate(side_by_side(self._update, given)):
            self.state[str(i)]["v"] = v
            shares = side_by_side(newton_schulz, u.split(share_of_cores(len(u))))
            moved |= zip(alike(parameters)[i], chain.from_iterable(shares), strict=True)
        return {name: self._moved(moved[name], array) for name, array in parameters.items()}

    def _update(self, given: tuple[Stack, Stack, mx.array]) -> tuple[Stack, Stack]:
        gradient, v, new = given
        newest = new * gradient
        v = self.momentum * v + newest
        return v, newest + self.momentum * v

    def _moved(self, direction: mx.array, parameter: mx.array) -> mx.array:
        rows, columns = parameter.shape
        rate = self.learning_rate * max(1, rows / columns) ** 0.5
        step = rate.astype(parameter.dtype) * direction
        return parameter - (step.T if _is_tall(parameter) else step)


def alike(matrices: Arrays) -> list[list[str]]:
    """The names of matrices, those of one shape or its transpose together."""
    shapes = defaultdict(list)
    for name, matrix in matrices.items():
        shapes[tuple(sorted(matrix.shape))].append(name)
    return list(shapes.values())


def newton_schulz(stack: Stack, iterations: int = ITERATIONS) -> Stack:
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
