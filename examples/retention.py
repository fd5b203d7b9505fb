"""Retention (RetNet, arXiv:2307.08621): no softmax, each head forgets at its own fixed rate.

    mlx-attn train --plugin examples/retention.py --variant retention --preset nano

The same heads follow from a state S of fixed size, which decoding keeps instead of the tokens:
S <- gamma S + k^T v, head = q S. The paper's norm of the heads is left out.
"""

import mlx.core as mx

from mlx_attn.attention import Variant, choice, register


def rates(layer):
    return (1 - 2.0 ** (-5 - mx.arange(layer.config.n_heads)))[:, None, None]  # gamma [H, 1, 1]


def by_state(layer, q, k, v, state):
    k, v = (mx.repeat(y, q.shape[1] // y.shape[1], axis=1) for y in (k, v))
    S = mx.zeros((*k.shape[:2], k.shape[3], v.shape[3])) if state is None else state
    heads = []
    for t in range(q.shape[2]):
        S = rates(layer) * S + k[:, :, t, :, None] * v[:, :, t, None]
        heads.append(layer.config.scale * q[:, :, t, None] @ S)
    return mx.concatenate(heads, axis=2), S


def reason(c):
    if c.window or c.position == "alibi" or c.logits != "none":
        return "mixing=retention has no scores to change: leave out window, ALiBi and logits"
    return ""


@choice("mixing", "retention", "gamma_h^(i-j) s_h(i, j)", recurs=by_state, refuses=reason)
def retention(layer, s):
    i, j = mx.arange(s.shape[3] - s.shape[2], s.shape[3])[:, None], mx.arange(s.shape[3])
    return mx.where(s > -mx.inf, rates(layer) ** mx.maximum(i - j, 0) * s, 0.0)


register(
    Variant(
        name="retention",
        mixing="retention",
        position="rope",
        formula="gamma_h^(i-j) s_h(i, j)",
        summary="",
    )
)
