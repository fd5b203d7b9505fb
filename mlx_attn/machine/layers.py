"""Layers that take a shorter way on some device: tables of tokens, norms, layers for one token.

Tables. The gradient of a lookup adds the gradient of every position to the row of its token. MLX
does it with a scatter, and on a GPU a scatter adds with atomic operations, in an order that may
change from run to run, so the rounding may too. The same sum is a product with a one-hot matrix,

    dE = onehot(tokens)^T dX,

whose order of addition is fixed. It costs V multiply-adds for every element of dX, so only tables
with at most `MOST_ROWS` rows take it; larger ones keep the scatter.

Norms. MLX's own norm on a processor is a dozen operations, and for a few numbers starting them
takes longer than computing. Then, outside training, it is compiled into four operations; MLX keeps
the compiled code, so this happens once. Float64, which MLX's own norm would compute in float32,
takes these operations too.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from jaxtyping import Float, Integer
from mlx.utils import tree_map

from mlx_attn.machine.device import on_gpu, on_linux_cpu, on_nvidia
from mlx_attn.machine.graphs import Differentiable, is_compiled

Stream = Float[mx.array, "*batch C"]

MOST_ROWS = 4096  # of the largest table whose gradient on a GPU is a product, not a scatter


class TokenTable(nn.Embedding):
    """An embedding whose gradient on the path of a GPU needs no scatter, if the table is small."""

    def __call__(self, x: Integer[mx.array, "B T"]) -> Float[mx.array, "B T C"]:
        """Return the row of every token."""
        if self.training and on_gpu() and self.weight.shape[0] <= MOST_ROWS:
            return _rows(self.weight, x)
        return super().__call__(x)


@Differentiable
def _rows(table: Float[mx.array, "V C"], tokens: Integer[mx.array, "B T"]) -> mx.array:
    return table[tokens]


@_rows.vjp
def _rows_vjp(
    primals: tuple[mx.array, mx.array], cotangent: Float[mx.array, "B T C"], _: mx.array
) -> tuple[mx.array, mx.array]:
    table, tokens = primals
    # From NumPy, for a compiled step computes a lazy `mx.arange` again and again.
    rows = mx.array(np.arange(table.shape[0]), tokens.dtype)
    one_hot = (rows[:, None] == tokens.reshape(-1)).astype(cotangent.dtype)
    return one_hot @ cotangent.reshape(-1, table.shape[1]), mx.zeros_like(tokens)


class LayerNorm(nn.LayerNorm):
    """Layer norm, (x - mean x) / sqrt(var x + eps) * weight + bias (arXiv:1607.06450)."""

    def __call__(self, x: Stream) -> Stream:
        """Return the norm of each token."""
        if x.dtype == mx.float64:
            return _norm(x, *_share_and_eps(self, x), self.weight, self.get("bias", 0))
        if self.training or "bias" not in self or not is_compiled(x):
            return super().__call__(x)
        return _compiled_norm(x, *_share_and_eps(self, x), self.weight, self.bias)


class RMSNorm(nn.RMSNorm):
    """RMS norm, x / sqrt(mean x^2 + eps) * weight (arXiv:1910.07467)."""

    def __call__(self, x: Stream) -> Stream:
        """Return the norm of each token."""
        if x.dtype == mx.float64:
            return _norm(x, *_share_and_eps(self, x), self.weight)
        if self.training or not is_compiled(x):
            return super().__call__(x)
        return _compiled_norm(x, *_share_and_eps(self, x), self.weight)


def _norm(
    x: mx.array, share: mx.array, eps: mx.array, weight: mx.array, bias: mx.array | None = None
) -> mx.array:
    """Compute a norm, with 1 / width as an argument so that the code serves every width.

    A mean that both variance and result read would be a separate operation. Written in two ways, it
    fuses with each of them.
    """
    if bias is None:
        return x * mx.rsqrt(x.square().sum(axis=-1, keepdims=True) * share + eps) * weight
    total = x.sum(axis=-1, keepdims=True)
    variance = (x - total * share).square().sum(axis=-1, keepdims=True) * share
    return (x - share * total) * mx.rsqrt(variance + eps) * weight + bias


_compiled_norm = mx.compile(_norm, shapeless=True)


def _share_and_eps(norm: nn.LayerNorm | nn.RMSNorm, x: Stream) -> tuple[mx.array, mx.array]:
    return mx.array(1 / x.shape[-1], x.dtype), mx.array(norm.eps, x.dtype)


class TokenLinear(nn.Module):
    """x W + b, with weight and bias as the product of one token takes them.

    `nn.Linear` looks at weight, bias, input and output in another way for every token, which takes
    longer than a small product does. These views are made once, and nothing is copied.
    """

    def __init__(self, layer: nn.Linear | nn.Embedding):
        super().__init__()
        out, width = layer.weight.shape
        # On a Linux processor the fewest equal parts that are small enough, otherwise one.
        most = min(NARROW, SMALL // width) if on_linux_cpu() else out
        widths = (out // n for n in range(1, out // FEWEST + 1) if out % n == 0)
        columns = next((n for n in widths if n <= most), out)
        # [out, in] -> [parts, in, out / parts]
        self.columns = layer.weight.reshape(out // columns, columns, width).swapaxes(1, 2)
        if (bias := layer.get("bias")) is not None:
            self.bias = bias.reshape(len(self.columns), 1, -1)  # [parts, 1, out / parts]

    @property
    def weight(self) -> Float[mx.array, "out in"]:
        """Weight in the layout of `nn.Linear`."""
        return self.columns.swapaxes(1, 2).flatten(0, 1)

    def __call__(self, x: Float[mx.array, "*batch in"]) -> Float[mx.array, "*batch out"]:
        """Return the layer's output."""
        if x.shape[:-1] != (1, 1):
            y = x @ self.weight.T
            return y + self.bias.flatten() if "bias" in self else y
        if "bias" not in self:
            y = x @ self.columns
        elif on_nvidia():  # MLX's own kernel knows no bias, and cuBLAS takes longer to start
            y = x @ self.columns + self.bias
        else:
            y = mx.addmm(self.bias, x, self.columns)
        return y.reshape(1, 1, y.size)


SMALL, NARROW, FEWEST = 1_000_000, 1024, 16
"""Multiply-adds, and columns, up to which OpenBLAS takes the weights of a product with one row as
they lie: those of a larger one it copies first, which takes up to ten times as long. Fewer columns
than FEWEST are not worth a product of their own."""


class TokenEmbedding(nn.Embedding):
    """An embedding whose product with one token is also such a layer."""

    def __init__(self, layer: nn.Embedding):
        nn.Module.__init__(self)
        self.weight, self.head = layer.weight, TokenLinear(layer)

    def as_linear(self, x: Float[mx.array, "1 1 C"]) -> Float[mx.array, "1 1 V"]:
        """Return the logits."""
        return self.head(x)


FORMS: dict[type, Callable[[Any], nn.Module]] = {nn.Linear: TokenLinear, TokenTable: TokenEmbedding}
"""The layers for one token, by those that they stand in for."""


@contextmanager
def layers_for(texts: int, model: nn.Module) -> Iterator[None]:
    """Swap in the layers that read one token of so many texts; restore the model's own after it."""
    layers = model.leaf_modules()

    def form(layer: Any) -> Any:
        return FORMS[type(layer)](layer) if texts == 1 and type(layer) in FORMS else layer

    model.update_modules(tree_map(form, layers, is_leaf=nn.Module.is_module))
    arrays = model.parameters()
    try:
        yield
    finally:
        model.update(arrays)
        model.update_modules(layers)
