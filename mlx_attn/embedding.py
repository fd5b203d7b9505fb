"""A table with one row per token, whose gradient has the same bits in every training.

The gradient of a lookup adds the gradient of every position to the row of its token. MLX does it
with a scatter, and on a GPU a scatter adds with atomic operations, in an order that may change
from run to run, so the rounding may too. The same sum is a product with a one-hot matrix,

    dE = onehot(tokens)^T dX,

whose order of addition is fixed. It costs V multiply-adds for every element of dX, so only tables
with at most `MOST_ROWS` rows take it; larger ones keep the scatter.
"""

from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from jaxtyping import Float, Integer

from mlx_attn.device import on_gpu

MOST_ROWS = 4096
"""Rows of the largest table whose gradient on a GPU is a product instead of a scatter."""


class TokenTable(nn.Embedding):
    """An embedding whose gradient on the path of a GPU needs no scatter, if the table is small."""

    def __call__(self, x: Integer[mx.array, "B T"]) -> Float[mx.array, "B T C"]:
        """Return the row of every token."""
        if self.training and on_gpu() and self.weight.shape[0] <= MOST_ROWS:
            rows: mx.array = _ROWS(self.weight, x)
            return rows
        return super().__call__(x)


def _rows(table: Float[mx.array, "V C"], tokens: Integer[mx.array, "B T"]) -> mx.array:
    return table[tokens]


def _rows_vjp(
    primals: tuple[mx.array, mx.array], cotangent: Float[mx.array, "B T C"], _: mx.array
) -> tuple[mx.array, mx.array]:
    table, tokens = primals
    # From NumPy, for a compiled step computes a lazy `mx.arange` again and again.
    rows = mx.array(np.arange(table.shape[0]), tokens.dtype)
    one_hot = (rows[:, None] == tokens.reshape(-1)).astype(cotangent.dtype)
    return one_hot @ cotangent.reshape(-1, table.shape[1]), mx.zeros_like(tokens)


_ROWS: Any = mx.custom_function(_rows)
_ROWS.vjp(_rows_vjp)
