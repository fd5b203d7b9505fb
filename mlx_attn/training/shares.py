"""A batch divided among the processor's cores.

The loss is a mean over tokens, so it is also the sum of the shares' losses, each by the part of the
tokens that its share has; the forward and backward pass of each share runs beside the others'.
"""

from collections.abc import Callable
from typing import Any

import mlx.core as mx
from mlx.utils import tree_map

from mlx_attn.streams import share_of_cores, side_by_side
from mlx_attn.training.objective import Numbers
from mlx_attn.trees import named_arrays

Gradients = Callable[..., tuple[Numbers, dict]]

MOST_COPIED = 2**26
"""Weights at most whose gradients are held, those of all shares together."""


def divided(gradients: Gradients, weight: Callable[[Any], Numbers], n_weights: int) -> Gradients:
    """The same mean loss and gradients, computed by shares.

    Args:
        gradients: Of a batch and a weight, the mean loss by that weight and its gradients.
        weight: How many tokens of a batch that is the mean of.
        n_weights: How many gradients there are.
    """

    def of_shares(batch: Any) -> tuple[Numbers, dict]:
        shares = share_of_cores(len(next(iter(named_arrays([batch]).values()))))
        if shares == 1 or shares * n_weights > MOST_COPIED:
            return gradients(batch)
        parts = [tree_map(lambda a, i=i: a.split(shares)[i], batch) for i in range(shares)]
        weights = mx.stack([weight(part) for part in parts])
        weights = weights / mx.maximum(weights.sum(), 1)
        pairs = list(zip(parts, weights, strict=True))
        results = side_by_side(lambda part: gradients(*part), pairs)
        return tree_map(lambda first, *others: sum(others, start=first), *results)

    return of_shares
