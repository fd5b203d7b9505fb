"""AdamW that moves all of its parameters as one vector."""

from typing import Any

import mlx.core as mx
import mlx.optimizers as optim
from jaxtyping import Float
from mlx.utils import tree_unflatten

from mlx_attn.trees import named_arrays

JOINED = "joined"


class AdamW(optim.AdamW):
    """MLX's AdamW (arXiv:1711.05101) on its parameters put end to end.

    It computes every weight by itself, so the numbers are the same; what MLX spends on starting
    eighteen operations is spent once, not once for every parameter.
    """

    def init(self, parameters: dict) -> None:
        """Both moments of all parameters start at 0."""
        super().init({JOINED: joined(named_arrays(parameters))})

    def apply_gradients(self, gradients: dict, parameters: dict) -> dict:
        """The parameters after one step."""
        named, everything = named_arrays(gradients), named_arrays(parameters)
        own = {name: everything[name] for name in named}
        moved = super().apply_gradients({JOINED: joined(named)}, {JOINED: joined(own)})
        tree: Any = tree_unflatten(list(parted(moved[JOINED], own).items()))
        return tree


def joined(arrays: dict[str, mx.array]) -> Float[mx.array, " n"]:
    """All numbers of some arrays, one array after the other."""
    return mx.concatenate([array.reshape(-1) for array in arrays.values()])


def parted(vector: Float[mx.array, " n"], like: dict[str, mx.array]) -> dict[str, mx.array]:
    """The inverse of `joined`: arrays of the names and shapes of `like`."""
    ends = [0]
    for array in like.values():
        ends.append(ends[-1] + array.size)
    parts = mx.split(vector, ends[1:-1])
    pairs = zip(like.items(), parts, strict=True)
    return {name: part.reshape(array.shape) for (name, array), part in pairs}
