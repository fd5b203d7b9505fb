"""No out_proj: heads are concatenated and used as they are (the book's section 3.6.1)."""

import mlx.core as mx

from mlx_attn.attention.catalog import FORMS, choice, row
from mlx_attn.attention.config import AttentionConfig
from mlx_attn.attention.layer import (
    Draw,
    Heads,
    Inputs,
    MapWeights,
    Outputs,
    merge_heads,
    out_width,
)


def _gain_init(config: AttentionConfig, draw: Draw) -> dict[str, mx.array]:
    """Start the gain at the scale of out_proj: spread s turns heads of spread 1 into s sqrt(H D).

    Without it the branch would start that much louder, so the gain starts there.
    """
    # Only in a GPT does the scale of a branch matter.
    if not config.residual_gain:
        return {}
    # Drawn and thrown away: only its spread matters.
    replaced = draw("out_proj", config.d_out, out_width(config), residual=True)
    return {"residual_gain": (mx.std(replaced) * out_width(config) ** 0.5).reshape(1)}


@choice(
    "output",
    "none",
    "y = g concat(heads)",
    input_weights=(),
    source="the book, section 3.6.1",
    weights={"residual_gain": lambda config: mx.ones((1,)) if config.residual_gain else None},
    init=_gain_init,
    refuses=lambda config: (
        ""
        if out_width(config) == config.d_out
        else f"output=none concatenates {config.n_heads} heads of {config.value_dim} to "
        f"{out_width(config)}, which must be {config.d_out}: keep out_proj or change head_dim"
    ),
)
def no_output(layer: MapWeights, heads: Heads, x: Inputs | None) -> Outputs:
    """Concatenate the heads; g is 1 unless the configuration asks for a trained gain."""
    y = merge_heads(heads)  # [B, H, T, D] -> [B, T, H D]
    return layer["residual_gain"] * y if "residual_gain" in layer else y


row(
    "no-out-proj",
    "the heads' outputs are concatenated and used as they are",
    group=FORMS,
    output="none",
)
