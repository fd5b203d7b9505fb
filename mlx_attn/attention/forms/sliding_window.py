"""Attention to the last tokens only: the mask that `attention.causal_mask` makes of `window`."""

from mlx_attn.attention.catalog import row

row(
    "sliding-window",
    "a token sees only the last 32 tokens, and only these are cached; --window N",
    "w_h(i, j) = 0 where i - j >= window",
    window=32,  # tokens; --window N
    source="Longformer, arXiv:2004.05150",
)
row(
    "local-global",
    "layers with a window of 32 alternate with layers that see all; --global-every K",
    "w_h(i, j) = 0 where i - j >= window, in every other layer",
    window=32,
    global_every=2,  # every second layer sees all
    source="Gemma 2, arXiv:2408.00118",
)
