"""Tokens withdraw from later ones what their first head attends to (arXiv:2410.02703)."""

import mlx.core as mx
from jaxtyping import Float

from mlx_attn.attention.catalog import choice, row
from mlx_attn.attention.config import AttentionConfig
from mlx_attn.attention.layer import Inputs, Keys, MapWeights, Queries, Scores
from mlx_attn.machine.operations import softmax


def _selective_refuses(config: AttentionConfig) -> str:
    changes = {
        f"position={config.position}": config.position == "rope",
        "qk_norm": config.qk_norm,
        f"short_conv={config.short_conv}": config.short_conv != "none",
    }
    setting = next((name for name, applies in changes.items() if applies), "")
    return setting and (
        "mixing=selective reads the queries of earlier tokens as the score map gives them, and "
        f"{setting} changes them afterwards: use learned, alibi or no positions, without qk_norm "
        "and short_conv"
    )


def _first_head_queries(layer: MapWeights, x: Inputs) -> Float[mx.array, "B 1 T K_1"]:
    """Return the first head's query of each token and a 1, which marks slots that hold a token."""
    q = layer.maps.score.apply(layer, x)[0][:, :1]
    return mx.concatenate([q, mx.ones_like(q[..., :1])], -1)


@choice(
    "mixing",
    "selective",
    "w = softmax(s_h(i, j) - sum_(j < l < i) relu(score_1(l, j))), but the first token stays",
    sums_to_one=True,
    source="selective attention, arXiv:2410.02703",
    reads_keys=True,
    remembers=_first_head_queries,
    remembers_all=True,
    multiply_adds=lambda config: config.context_length * (config.key_width + 2),
    refuses=_selective_refuses,
)
def selective(
    layer: MapWeights, s: Scores, q: Queries, k: Keys, memory: Float[mx.array, "B 1 T_k width_1"]
) -> Scores:
    """Withdraw tokens that the first head attends to from all heads of later tokens."""
    # [B, 1, 1, T_k]
    is_token = memory[..., -1:].swapaxes(2, 3)
    # The first token stays visible: a query must have something to attend to.
    is_first = mx.cumsum(is_token, axis=-1) * is_token == 1
    # [B, 1, T_k, T_k]: each row withdraws earlier tokens, so it ends before the diagonal.
    selected = mx.tril(layer.config.scale * (memory[..., :-1] @ k[:, :1].swapaxes(2, 3)), -1)
    selected = mx.where(is_first, 0.0, mx.clip(selected, 0.0, None))
    # Sums over the tokens before each query, its own selection left out.
    earlier = mx.cumsum(selected, axis=2) - selected
    return softmax(s - earlier[:, :, -s.shape[2] :])


row(
    "selective",
    "each token withdraws from later ones what its first head attends to; no weights",
    mixing="selective",
)
