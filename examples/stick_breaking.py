"""Stick-breaking attention (arXiv:2410.17980): each token takes its share of what nearer ones left.

    mlx-attn train --plugin examples/stick_breaking.py --variant stick --preset nano

Going back from the query, key j takes the fraction b_ij = sigmoid(s_ij) of the rest. The weights
know which key is nearer, so there are no positions; they may add up to less than 1.
"""

import mlx.core as mx
import mlx.nn as nn

from mlx_attn.attention import Variant, choice, register


@choice("mixing", "stick", "b_ij prod_(j<k<=i) (1 - b_ik), b = sigmoid(s)")
def stick(layer, s):
    seen = s > -mx.inf
    left = mx.where(seen, nn.log_sigmoid(-s), 0.0)  # log(1 - b)
    nearer = left.sum(axis=-1, keepdims=True) - mx.cumsum(left, axis=-1)
    return mx.where(seen, mx.exp(nn.log_sigmoid(s) + nearer), 0.0)


register(
    Variant(
        name="stick", mixing="stick", position="none", formula="b_ij prod (1 - b_ik)", summary=""
    )
)
