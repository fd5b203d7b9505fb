"""AdamW that moves all of its parameters as two vectors."""

from typing import Any

import mlx.core as mx
import mlx.optimizers as optim
from jaxtyping import Float
from mlx.utils import tree_unflatten

from mlx_attn.streams import side_by_side
from mlx_attn.trees import named_arrays

Arrays = dict[str, mx.array]
Vector = Float[mx.array, "_"]
"""Of any length."""


class AdamW(optim.AdamW):
    """AdamW (arXiv:1711.05101, algorithm 2) on parameters put end to end, with bias correction.

    It computes every weight by itself, so the numbers are MLX's; what MLX spends on starting
    eighteen operations is spent once, not once for every parameter. Two vectors are computed side
    by side.
    """

    def init(self, parameters: dict) -> None:
        """Both moments of all parameters start at 0."""
        super().init({str(i): v for i, v in enumerate(self.packed(named_arrays(parameters)))})

    def apply_gradients(self, gradients: dict, parameters: dict) -> dict:
        """The parameters after one step."""
        named = named_arrays(gradients)
        everything = named_arrays(parameters)
        own = {name: everything[name] for name in named}
        tree: Any = tree_unflatten(list(self.moved(self.packed(named), own, mx.array(1.0)).items()))
        return tree

    def packed(self, arrays: Arrays) -> list[Vector]:
        """Arrays as few as there can be, with the same numbers."""
        return [joined(part) for part in halves(arrays)]

    def moved(self, gradients: list[Vector], parameters: Arrays, factor: mx.array) -> Arrays:
        """The parameters after one step.

        Args:
            gradients: As `packed` gives them.
            parameters: What they are the gradients of.
            factor: Multiplies the gradients.
        """
        self.state["step"] = self.step + 1
        halved, rates = halves(parameters), self._rates(factor)
        # The rates are given along because both vectors wait for them.
        given = [
            (gradient, joined(part), self.state[str(i)], rates)
            for i, (gradient, part) in enumerate(zip(gradients, halved, strict=True))
        ]
        arrays: Arrays = {}
        for i, (vector, state) in enumerate(side_by_side(self._moved, given)):
            self.state[str(i)] |= state
            arrays |= parted(vector, halved[i])
        return arrays

    def _rates(self, factor: mx.array) -> list[mx.array]:
        """What the formulas multiply by, so that no whole vector is corrected or clipped."""
        beta1, beta2 = self.betas
        correction = mx.sqrt(1 - beta2**self.step)
        return [
            (1 - beta1) * factor,
            (1 - beta2) * factor * factor,
            self.learning_rate * correction / (1 - beta1**self.step),
            self.eps * correction,
            1 - self.learning_rate * self.weight_decay,
        ]

    def _moved(self, given: tuple) -> tuple[Vector, dict]:
        gradient, parameter, state, (new, new_square, rate, eps, kept) = given
        beta1, beta2 = self.betas
        m = beta1 * state["m"] + new * gradient
        v = beta2 * state["v"] + new_square * mx.square(gradient)
        return parameter * kept - rate * m / (mx.sqrt(v) + eps), {"m": m, "v": v}


def halves(arrays: Arrays) -> list[Arrays]:
    """The arrays in order, cut where half of their numbers are passed; one alone stays whole."""
    half, parts = sum(array.size for array in arrays.values()) / 2, ({}, {})
    before = 0
    for name, array in arrays.items():
        parts[before >= half][name] = array
        before += array.size
    return [part for part in parts if part]


def joined(arrays: Arrays) -> Vector:
    """All numbers of some arrays, one array after the other."""
    return mx.concatenate([array.reshape(-1) for array in arrays.values()])


def parted(vector: Vector, like: Arrays) -> Arrays:
    """The inverse of `joined`: arrays of the names and shapes of `like`."""
    ends = [0]
    for array in like.values():
        ends.append(ends[-1] + array.size)
    parts = mx.split(vector, ends[1:-1])
    pairs = zip(like.items(), parts, strict=True)
    return {name: part.reshape(array.shape) for (name, array), part in pairs}
