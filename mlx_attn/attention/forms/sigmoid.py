"""Every key is weighed by itself, without a sum to share: sigmoid attention (arXiv:2409.04431).

The authors' code keeps b at one number; here each head trains its own.
"""

import math

import mlx.core as mx

from mlx_attn.attention.catalog import choice, row
from mlx_attn.attention.layer import MapWeights, Scores


@choice(
    "mixing",
    "sigmoid",
    "w_h = sigmoid(s_h + b_h)",
    source="sigmoid attention, arXiv:2409.04431",
    weights={
        # [H]: without a sum that weights share, it keeps them small at the start.
        "weight_bias": lambda config: mx.full((config.n_maps,), -math.log(config.context_length))
    },
)
def sigmoid_weights(layer: MapWeights, s: Scores) -> Scores:
    """Weigh each key by itself; with the initial bias, n equal keys weigh about as much as one."""
    return mx.sigmoid(s + layer["weight_bias"][:, None, None])  # [H] -> [H, 1, 1]


row(
    "sigmoid",
    "every key is weighed by itself; the authors' b is fixed",
    mixing="sigmoid",
)
