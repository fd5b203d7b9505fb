"""A linear map without its redundant weights.

Where only the product of two maps matters, W_1 W_2 = (W_1 B) (B^-1 W_2) for every invertible B. The
B that turns D rows of W_2 into the identity leaves D^2 weights fewer to keep and computes the same.
"""

import mlx.core as mx
import mlx.nn as nn
from jaxtyping import Float


class ShrunkLinear(nn.Module):
    """y_h = x[kept_h] + x[rest_h] R_h, for each head h: D coordinates of x pass as they are.

    Args:
        C: Width of x.
        n_heads: Number of heads H.
        head_dim: Width D of a head, less than C.
        bias: Whether a bias is added.

    Attributes:
        weight: The matrices R_h as (out, in): [H D, C - D], head h in rows h D..(h+1) D.
        places: Where coordinate c of x is in (kept_h, rest_h): [H, C] integers, not trained.
    """

    def __init__(self, C: int, n_heads: int, head_dim: int, bias: bool):
        super().__init__()
        self.weight = mx.zeros((n_heads * head_dim, C - head_dim))
        self.places = (mx.arange(C)[None] - head_dim * mx.arange(n_heads)[:, None]) % C
        if bias:
            self.bias = mx.zeros((n_heads * head_dim,))
        self.freeze(recurse=False, keys=["places"])

    def __call__(self, x: Float[mx.array, "B T C"]) -> Float[mx.array, "B T width"]:
        """The heads of x, side by side."""
        y = x @ self.whole().T
        return y + self.bias if "bias" in self else y

    def whole(self) -> Float[mx.array, "width C"]:
        """The matrix with the identity written out, as (out, in)."""
        n_heads, C = self.places.shape
        rest = self.weight.reshape(n_heads, -1, self.weight.shape[1])
        head_dim = rest.shape[1]
        kept = mx.broadcast_to(mx.eye(head_dim, dtype=rest.dtype), (n_heads, head_dim, head_dim))
        whole = mx.concatenate([kept, rest], axis=2)
        places = mx.broadcast_to(self.places[:, None], whole.shape)
        return mx.take_along_axis(whole, places, axis=2).reshape(-1, C)
