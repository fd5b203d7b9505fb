"""The matrix products of a model, counted from its configuration, and their time alone: the floor.

Nothing that computes the same numbers with the same products is faster than the products
themselves, whatever else it does, so a step's time is read as a multiple of theirs. Products of an
optimizer such as Muon are not the model's and are left out.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import mlx.core as mx

from mlx_attn import blas
from mlx_attn.attention import Attention
from mlx_attn.attention.config import AttentionConfig
from mlx_attn.attention.memory import InputMemory, memory_of, values_first
from mlx_attn.attention.score import SCORES
from mlx_attn.attention.value import LinearValue, value_of
from mlx_attn.lab.bench.timing import Subject
from mlx_attn.model import GPTConfig
from mlx_attn.streams import share_of_cores, side_by_side
from mlx_attn.trees import named_arrays


@dataclass(frozen=True, slots=True)
class Product:
    """`batch` products of [rows, inner] with [inner, columns]."""

    batch: int
    rows: int
    inner: int
    columns: int

    @property
    def multiply_adds(self) -> int:
        """Multiplications, each with its addition."""
        return self.batch * self.rows * self.inner * self.columns


@dataclass(frozen=True, slots=True)
class Reading:
    """B sequences of which the model reads T_q tokens, the last of T_k."""

    B: int
    T_q: int
    T_k: int


def model_products(config: GPTConfig, reading: Reading) -> Counter[Product]:
    """The products of one forward pass, each with how often it occurs."""
    B, T_q = reading.B, reading.T_q
    rows = B * T_q
    layer = Counter(attention_products(config.attention(), reading))
    layer[Product(1, rows, config.emb_dim, config.hidden_dim)] += 1
    layer[Product(1, rows, config.hidden_dim, config.emb_dim)] += 1
    products = Counter({product: n * config.n_layers for product, n in layer.items()})
    products[Product(1, rows, config.emb_dim, config.vocab_size)] += 1
    return products


def attention_products(config: AttentionConfig, reading: Reading) -> Iterator[Product]:
    """The products of one attention layer: its maps, the scores and the weighted sum."""
    B, T_q, T_k = reading.B, reading.T_q, reading.T_k
    after = isinstance(memory_of(config), InputMemory) and not values_first(config, T_q, T_k, False)
    for name, weight in named_arrays(Attention(config).trainable_parameters()).items():
        if name.endswith("weight") and not (after and name.startswith("W_value")):
            columns, inner = weight.shape
            rewritten = name.startswith("W_value") and isinstance(memory_of(config), InputMemory)
            yield Product(1, B * (T_k if rewritten else T_q), inner, columns)
    H, value = config.n_heads, value_of(config)
    key_heads, key_width = SCORES[config.score].key_shape(config)
    yield Product(B * key_heads, H // key_heads * T_q, key_width, T_k)
    value_heads, value_width = value.shape(config)
    if after:
        value_heads, value_width = 1, config.d_in
    yield Product(B * value_heads, H // value_heads * T_q, T_k, value_width)
    if after and isinstance(value, LinearValue):
        yield Product(B * H, T_q, config.d_in, config.value_dim)


def multiply_adds(products: Counter[Product], backward: bool) -> int:
    """Those of a forward pass, or with the two products of each one's gradient as well."""
    forward = sum(product.multiply_adds * n for product, n in products.items())
    return 3 * forward if backward else forward


def floors(
    config: GPTConfig, reading: Reading, backward: bool, steps: int = 1
) -> dict[str, Subject]:
    """Two ways to compute the products and nothing else.

    `whole`, the floor, computes each at its own shape with all threads of the BLAS. `shares`, where
    there are several cores, divides the batch among them as a training step does.

    Args:
        config: The model.
        reading: What it reads.
        backward: Also the two products that give the gradients of both operands of each one.
        steps: How often to do that.
    """
    shares = share_of_cores(reading.B)
    part = Reading(reading.B // shares, reading.T_q, reading.T_k)
    ways = {"whole": _floor(model_products(config, reading), backward, steps, 1)}
    if shares > 1:
        ways["shares"] = _floor(model_products(config, part), backward, steps, shares)
    return ways


def _floor(products: Counter[Product], backward: bool, steps: int, shares: int) -> Subject:
    operands = {product: [_operands(product) for _ in range(shares)] for product in products}
    mx.eval(list(operands.values()))
    every = [operands[product] for product in products.elements()]
    compute = _with_gradients if backward else _product

    def run() -> None:
        if shares == 1:
            blas.use_threads(blas.preload().threads)
        begun: list[list[mx.array]] = []
        for parts in every * steps:
            # Begun one by one, so that no result is kept for longer than it takes.
            begun = side_by_side(compute, parts)
            mx.async_eval(begun)
        mx.eval(begun)

    return run


def _product(operands: Sequence[mx.array]) -> list[mx.array]:
    a, b, _ = operands
    return [a @ b.swapaxes(-1, -2)]


def _with_gradients(operands: Sequence[mx.array]) -> list[mx.array]:
    a, b, g = operands
    return [a @ b.swapaxes(-1, -2), g @ b, g.swapaxes(-1, -2) @ a]


def _operands(product: Product) -> list[mx.array]:
    """Left factor, transposed right factor, and the gradient of their product."""
    batch = () if product.batch == 1 else (product.batch,)
    shapes = (
        (product.rows, product.inner),
        (product.columns, product.inner),
        (product.rows, product.columns),
    )
    return [mx.random.normal((*batch, *shape)) for shape in shapes]
