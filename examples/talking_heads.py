"""Talking heads: the logits of all heads are mixed before the softmax, and the weights after it.

Shazeer et al., "Talking-Heads Attention", arXiv:2003.02436. Both mixes start as the identity, so
the model starts as the standard one.

    mlx-attn train --plugin examples/talking_heads.py --variant talk
"""

import mlx.core as mx

from mlx_attn.attention import Variant, choice, register


@choice("logits", "talk", "s_h = sum_g P_gh score_g", weights={"P": lambda c: mx.eye(c.n_heads)})
def mix_logits(layer, s):
    return mx.einsum("bgij,gh->bhij", s, layer.P)


@choice("mixing", "talk", "sum_g R_gh softmax(s_g)", weights={"R": lambda c: mx.eye(c.n_heads)})
def mix_weights(layer, s):
    return mx.einsum("bgij,gh->bhij", mx.softmax(s, axis=-1), layer.R)


register(Variant(name="talk", logits="talk", mixing="talk", formula="softmax(s P) R", summary=""))
