"""Train a temperature for each head, which sets how sharp its softmax is; works with any score.

mlx-attn train --plugin examples/temperature.py --variant merged --logits sharpness
"""

import mlx.core as mx

from mlx_attn.attention import choice

START = {"sharpness": lambda config: mx.zeros((config.n_heads, 1, 1))}


@choice("logits", "sharpness", "s_h = e^t_h score_h", weights=START)
def sharpen(layer, s):
    return mx.exp(layer.sharpness) * s  # [B, H, T_q, T_k]
