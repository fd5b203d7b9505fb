"""Which attention shapes have a fused Metal kernel, and which calls Metal refuses.

Facts about mlx 0.32.4, read from its source and its Metal library; none of them was run on a Mac
by this project (docs/verified.md). They live in code so that tests hold the project to them on any
machine, and so that the choice of a form by shape is written down in one place.

- A fused kernel for more than 8 queries needs query and value heads of one width in `FULL_WIDTHS`.
- Up to 8 queries (decoding) another kernel serves `VECTOR_WIDTHS`, as long as queries times query
  heads per key head do not exceed 32. It has no gradient: asking for one raises.
- Under a gradient an array mask (ALiBi) takes the unfused path; "causal" stays fused.
- float64 and `mx.linalg` decompositions have no Metal kernel: they must name the CPU stream.
"""

import mlx.core as mx

FULL_WIDTHS = frozenset({64, 72, 80, 96, 128, 192, 256})
VECTOR_WIDTHS = frozenset({64, 96, 128, 192, 256})
VECTOR_QUERIES = 8
VECTOR_ROWS = 32


def on_gpu() -> bool:
    """Whether arrays are computed on a GPU by default."""
    return mx.default_device().type == mx.DeviceType.gpu


def has_fused_kernel(width: int, T_q: int, heads_per_key: int) -> bool:
    """Whether scaled dot-product attention of equal query and value width runs fused on Metal."""
    if T_q <= VECTOR_QUERIES:
        return width in VECTOR_WIDTHS and T_q * heads_per_key <= VECTOR_ROWS
    return width in FULL_WIDTHS


def refuses_gradient(width: int, T_q: int) -> bool:
    """Whether Metal raises when the gradient of fused attention of this shape is asked for."""
    return T_q <= VECTOR_QUERIES and width in VECTOR_WIDTHS
