"""Convert a model to the form of other programs: separate W_query, W_key, W_value and out_proj.

Every affine form of attention can be written with these four matrices. The conversion is exact if
the ranks of S_h and V_h O_h are no more than the width of the target's heads.
"""

from collections.abc import Sequence
from dataclasses import replace

import mlx.core as mx

from mlx_attn.arrays import named_arrays
from mlx_attn.attention.attention import Attention
from mlx_attn.attention.catalog import MAPS
from mlx_attn.convert.measure import EXACT, weight_errors
from mlx_attn.convert.model import rewritten
from mlx_attn.errors import ConfigError
from mlx_attn.model.config import GPTConfig
from mlx_attn.model.gpt import GPT, gpt_from

_GPT2 = {
    "position": ("learned", "none"),
    "norm": ("layernorm",),
    "activation": ("gelu",),
    "pattern": ("",),
    "kv_sharing": (0, 1),
    "mixing": (MAPS["mixing"],),
    "window": (0,),
    "qk_norm": (False,),
    "short_conv": ("none",),
}
"""The values that GPT-2 requires, by key."""


class CannotHold(ConfigError):
    """An architecture cannot hold a model; `reason` is a sentence."""

    def __init__(self, to: str, architecture: str, reasons: Sequence[str]):
        self.reason = f"{architecture} cannot hold this model: {', '.join(reasons)}"
        super().__init__(
            f"--to {to}: {self.reason}; '--to mlx-lm' writes any form, with a model file that "
            "needs mlx_attn; 'mlx-attn train --block book --position learned' trains a model that "
            "it holds"
        )


def gpt2_form(model: GPT, to: str) -> GPT:
    """Return the same function with separate maps, learned positions and all biases.

    Raises:
        ConfigError: GPT-2 cannot hold the model; the message lists the reasons and names `to`, the
            target on the command line.
    """
    config = model.config
    width, rest = divmod(config.emb_dim, config.n_heads)
    reasons = [f"emb_dim={config.emb_dim}, no multiple of n_heads"] if rest else obstacles(config)
    if reasons:
        raise CannotHold(to, "GPT-2", reasons)
    sizes = {"head_dim": width, "value_dim": width, "n_kv_heads": config.n_heads, "scale": 0.0}
    form = {**MAPS, **sizes, "qkv_bias": True, "bias": True, "position": "learned"}
    try:
        written = _with_separate_maps(model, replace(config, **form))
    except ConfigError as error:
        raise CannotHold(to, "GPT-2", [str(error)]) from error
    if (error := max(weight_errors(model, written))) > EXACT:
        reason = (
            f"its heads have matrices of a higher rank than heads of {width} hold: cut to that "
            f"rank they would be off by {error:.2g}, relatively; 'mlx-attn convert RUN --to "
            f"separate --rank {width}' makes that model and measures its loss"
        )
        raise CannotHold(to, "GPT-2", [reason])
    for block, new in zip(model.trf_blocks, written.trf_blocks, strict=True):
        _scale_queries(block.att, new.att)
    return written


def obstacles(config: GPTConfig) -> list[str]:
    """Return the reasons why GPT-2 cannot hold a model, as `key=value`."""
    reasons = [
        f"{key}={getattr(config, key)}"
        for key, values in _GPT2.items()
        if getattr(config, key) not in values
    ]
    attention = config.attention()
    maps = [choice for key in ("score", "value", "output") for choice in attention.choices(key)]
    misfits = [choice for choice in maps if not choice.affine]
    # A hook that multiplies scores by a factor folds into W_query.
    misfits += [hook for hook in attention.choices("logits") if not hook.score_factor]
    return reasons + [f"{choice.map}={choice.name}" for choice in misfits]


def _with_separate_maps(model: GPT, target: GPTConfig) -> GPT:
    """Return the nearest model of this configuration, without the factors of its scores."""
    arrays = rewritten(model, target)
    for name, array in named_arrays(GPT(target, seed=None)).items():
        if name.endswith(".bias") or name == "pos_emb.weight":  # which the model does without
            arrays.setdefault(name, mx.zeros(array.shape))
    return gpt_from(target, arrays, "the converted model")


def _scale_queries(attention: Attention, written: Attention) -> None:
    """Move the scale of a layer's scores, and the factors of its hooks, into W_query."""
    factors = mx.full(attention.config.n_heads, attention.config.scale / written.config.scale)
    for hook in attention.maps.logits:
        if hook.score_factor:
            factors *= hook.score_factor(attention).reshape(-1)
    rows = mx.repeat(factors, written.config.head_dim)
    W_query = written.W_query
    W_query.weight, W_query.bias = rows[:, None] * W_query.weight, rows * W_query.bias


def how_written(model: GPT, form: GPT) -> str:
    """Describe how a form differs from the model: "as it is", or the conversion."""
    words = {key: getattr(model.config, key) for key in MAPS}
    changed = ", ".join(f"{key}={word}" for key, word in words.items() if word != MAPS[key])
    if not changed and model.config.n_kv_heads == form.config.n_kv_heads:
        return "as it is"
    return f"with {changed or 'shared keys'} written as separate matrices, which is exact"
