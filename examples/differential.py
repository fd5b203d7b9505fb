"""Differential attention, version 1: subtract the noise that two softmaxes share.

Ye et al., "Differential Transformer", arXiv:2410.05258. Heads 2i and 2i + 1 form a pair. Its
weights are the difference of their two softmaxes, and its value concatenates both heads' values.
The layer has the parameters of the standard one, four short vectors for lambda, and the gain of a
norm. Unlike in the paper, lambda starts at the same number in every layer.

    mlx-attn compare --plugin examples/differential.py --variants standard,diff
"""

import mlx.core as mx
import mlx.nn as nn

from mlx_attn.attention import Variant, choice, choice_of, register
from mlx_attn.attention.layer import merge_heads

LAMBDA = 0.8
LINEAR = choice_of("output", "linear")
VECTORS = {"vectors": lambda c: mx.random.normal((4, c.head_dim)) * 0.1}
OUTPUT = {**LINEAR.weights, "norm": lambda c: nn.RMSNorm(2 * c.value_dim)}


def refuses(c):
    return "" if c.n_heads % 2 == 0 else f"n_heads={c.n_heads} must be even: heads are pairs"


@choice("mixing", "difference", "w_2i - l w_2i+1", weights=VECTORS, refuses=refuses)
def difference(layer, s):
    q1, k1, q2, k2 = layer.vectors
    noise = mx.exp(mx.sum(q1 * k1)) - mx.exp(mx.sum(q2 * k2)) + LAMBDA
    w = mx.softmax(s, axis=-1)  # [B, H, T_q, T_k]
    return mx.repeat(w[:, ::2] - noise * w[:, 1::2], 2, axis=1)


@choice(
    "output", "head_norm", "norm(heads) out_proj", weights=OUTPUT, init=LINEAR.init, affine=False
)
def output(layer, heads, x):
    y = merge_heads(heads)  # [B, T, H D]
    pairs = layer.norm(y.reshape(*y.shape[:2], -1, 2 * layer.config.value_dim))
    return layer.out_proj((1 - LAMBDA) * pairs.reshape(y.shape))


formula = "norm((softmax_2i - lambda softmax_2i+1) v_i) out_proj"
summary = "a difference of softmaxes"
register(
    Variant(name="diff", mixing="difference", output="head_norm", formula=formula, summary=summary)
)
