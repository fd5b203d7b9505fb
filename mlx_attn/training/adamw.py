"""AdamW that moves all of its parameters as two vectors."""

from typing import Any

import mlx.core as mx
import mlx.optimizers as optim
from jaxtyping import Float
from mlx.utils import tree_unflatten

from mlx_attn.streams import side_by_side
from mlx_attn.trees import named_arrays

Arrays = dict[str, mx.array]
Vector = Float[mx.array, " n"]


class AdamW(optim.AdamW):
    """MLX's AdamW (arXiv:1711.05101) on its parameters put end to end.

    It computes every weight by itself, so the numbers are the same; what MLX spends on starting
    eighteen operations is spent once, not once for every parameter. Two vectors are computed side
    by side.
    """

    def init(self, parameters: dict) -> None:
        """Both moments of all parameters start at 0."""
        parts = halves(named_arrays(parameters))
        super().init({str(i): joined(part) for i, part in enumerate(parts)})

    def apply_gradients(self, gradients: dict, parameters: dict) -> dict:
        """The parameters after one step."""
        self.state["step"] = self.step + 1
        named, everything = named_arrays(gradients), named_arrays(parameters)
        own = halves({name: everything[name] for name in named})
        vectors = [
            (joined({name: named[name] for name in part}), joined(part), self.state[str(i)])
            for i, part in enumerate(own)
        ]
        # The step is given along because both vectors wait for it.
        given = [(vector, self.step) for vector in vectors]
        moved = side_by_side(lambda part: self.apply_single(*part[0]), given)
        arrays: Arrays = {}
        for vector, part in zip(moved, own, strict=True):
            arrays |= parted(vector, part)
        tree: Any = tree_unflatten(list(arrays.items()))
        return tree


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
