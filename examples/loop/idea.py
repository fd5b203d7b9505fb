"""The one file that a loop edits.

mlx-attn compare --ideas --plugin idea.py --variants standard,idea --minutes 10 --json --exit-code
"""

import mlx.core as mx

from mlx_attn.attention import Variant, choice, register


def distance(s):
    """How many tokens each key lies behind its query, [T_q, T_k]."""
    T_q, T_k = s.shape[-2:]
    return mx.maximum(mx.arange(T_k - T_q, T_k)[:, None] - mx.arange(T_k), 0)


@choice("logits", "idea", "changed score")
def change(layer, s):  # [B, H, T_q, T_k]
    return s


register(Variant(name="idea", logits="idea", formula="softmax(changed score)", summary=""))
