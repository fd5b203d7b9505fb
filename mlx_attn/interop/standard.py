"""Convert a model to the form of other programs: separate W_query, W_key, W_value and out_proj.

Every affine form of attention can be written with these four matrices if the heads are wide enough:
merged scores are one key head, x itself, with queries of width C. The conversion is exact if the
target's heads are as wide as that, or if S_h and V_h O_h have low enough ranks for narrower heads.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from mlx_attn.arrays import check_weights, named_arrays
from mlx_attn.attention.analysis import ov_circuit, qk_circuit, to_numpy
from mlx_attn.attention.attention import Attention
from mlx_attn.attention.config import MAPS, AttentionConfig
from mlx_attn.attention.layer import maps_of
from mlx_attn.convert.measure import weight_errors
from mlx_attn.convert.model import convert
from mlx_attn.errors import ConfigError
from mlx_attn.model.config import GPTConfig
from mlx_attn.model.gpt import GPT

_EXACT = 1e-5
"""Largest relative error of S_h and V_h O_h for a cut to the target's rank to count as exact."""

_NORMAL = {
    "pattern": ("",),
    "kv_sharing": (0, 1),
    "mixing": (MAPS["mixing"],),
    "window": (0,),
    "qk_norm": (False,),
    "short_conv": ("none",),
    "token_shift": (False,),
}
"""The values that every architecture here requires."""

GPT2 = {"position": ("learned", "none"), "norm": ("layernorm",), "activation": ("gelu",)}
ARCEE = {"position": ("rope",), "norm": ("rmsnorm",), "activation": ("relu2",), "bias": (False,)}
"""The further values that each stock architecture requires."""


def obstacles(config: GPTConfig, holds: Mapping[str, tuple[Any, ...]]) -> list[str]:
    """Return the reasons why an architecture cannot hold a model, as `key=value`.

    Args:
        config: The model's configuration.
        holds: The values that the architecture supports, by key.
    """
    required = {**_NORMAL, **holds}
    reasons = [
        f"{key}={getattr(config, key)}"
        for key, values in required.items()
        if getattr(config, key) not in values
    ]
    attention = config.attention()
    maps = [choice for key in ("score", "value", "output") for choice in attention.choices(key)]
    obstacles = [choice for choice in maps if not choice.affine]
    # A hook that multiplies scores by a factor folds into W_query.
    obstacles += [hook for hook in attention.choices("logits") if not hook.score_factor]
    return reasons + [f"{choice.map}={choice.name}" for choice in obstacles]


def head_width(config: GPTConfig) -> int:
    """Return the width of heads that can hold a form of attention without loss."""
    return max(_widths(config))


def standard_config(config: GPTConfig, width: int, **changes: Any) -> GPTConfig:
    """Return the configuration of the model with separate maps and heads of this width."""
    sizes = {"head_dim": width, "value_dim": width, "n_kv_heads": config.n_heads, "scale": 0.0}
    return replace(config, **MAPS, **{**sizes, "qkv_bias": True, "bias": True, **changes})


def standard_form(model: GPT, target: GPTConfig) -> GPT:
    """Return the same function with separate maps, in the sizes of the target.

    Args:
        model: A model without `obstacles`.
        target: From `standard_config`.

    Raises:
        ConfigError: S_h or V_h O_h has a higher rank than the width of the target's heads.
    """
    model = _narrowed(model, target.head_dim)
    arrays = {k: v for k, v in named_arrays(model).items() if ".att." not in k}
    for i, block in enumerate(model.trf_blocks):
        weights = _layer(block.att, target.attention())
        arrays |= {f"trf_blocks.{i}.att.{k}": mx.array(v, mx.float32) for k, v in weights.items()}
    return model_of(target, arrays)


def model_of(config: GPTConfig, arrays: Mapping[str, mx.array]) -> GPT:
    """Return a model of these arrays in evaluation mode; missing biases and positions are 0."""
    model = GPT(config, seed=None)
    wanted = named_arrays(model)
    loaded = {
        name: mx.zeros_like(array)
        for name, array in wanted.items()
        if name.endswith(".bias") or name == "pos_emb.weight"
    }
    loaded |= {name: array.astype(mx.float32) for name, array in arrays.items() if name in wanted}
    check_weights(Path("the checkpoint"), model, loaded)
    model.load_weights(list(loaded.items()))
    model.eval()
    return model


def _narrowed(model: GPT, width: int) -> GPT:
    """Return the model with score and output maps of at most this rank, if that changes nothing."""
    narrow, (key_width, value_width) = model, _widths(model.config)
    if key_width > width:
        narrow = convert(narrow, "separate", rank=width)
    if value_width > width:
        narrow = convert(narrow, "separate-output", rank=width)
    error = 0.0 if narrow is model else max(weight_errors(model, narrow))
    if error > _EXACT:
        raise ConfigError(
            f"its heads have matrices of a higher rank than heads of {width} hold: cut to that "
            f"rank they would be off by {error:.2g}, relatively; 'mlx-attn convert RUN --to "
            f"separate --rank {width}' makes that model and measures its loss"
        )
    return narrow


def _widths(config: GPTConfig) -> tuple[int, int]:
    """Return the widths of keys and values that the maps compute."""
    attention = config.attention()
    maps = maps_of(attention)
    return maps.score.shape(attention)[1], maps.value.shape(attention)[1]


def _layer(attention: Attention, target: AttentionConfig) -> dict[str, np.ndarray]:
    """Return the weights of one layer with separate maps, in float64."""
    heads = (target.n_kv_heads, target.head_dim)
    temperatures = np.ones(attention.config.n_maps)
    for hook in attention.maps.logits:
        if hook.score_factor:
            temperatures = temperatures * to_numpy(hook.score_factor(attention)).reshape(-1)
    factor = attention.config.scale / target.scale * temperatures
    score = qk_circuit(attention).widened(*heads)
    query, bias = score.query * factor[:, None, None], score.query_bias * factor[:, None]
    weights = replace(score, query=query, query_bias=bias).weights
    weights |= ov_circuit(attention).widened(*heads).weights
    for name in [name for name in weights if name.endswith(".bias")]:
        has_place = target.out_bias if name.startswith("out_proj") else target.qkv_bias
        if has_place:
            continue
        array = weights.pop(name)
        if name != "W_key.bias" and np.abs(array).max() > 0:  # a key's bias cancels in the softmax
            raise ConfigError(f"{name} is not 0, and that architecture has no place for it")
    return weights


_SHIPS_CODE = "'--to mlx-lm' ships code that holds it"


def refused(
    target: str, architecture: str, reasons: list[str], instead: str = _SHIPS_CODE
) -> ConfigError:
    """Return the error for an architecture that cannot hold a model, with the way out."""
    return ConfigError(
        f"--to {target}: {architecture} cannot hold this model: {', '.join(reasons)}; {instead}"
    )


def gpt2_form(model: GPT, target: str) -> GPT:
    """Convert a model to GPT-2's architecture; raise a `ConfigError` with all obstacles."""
    reasons = obstacles(model.config, GPT2)
    width, rest = divmod(model.config.emb_dim, model.config.n_heads)
    reasons += [f"emb_dim={model.config.emb_dim}, no multiple of n_heads"] if rest else []
    if reasons:
        raise refused(target, "GPT-2", reasons)
    wanted = standard_config(model.config, width, position="learned")
    try:
        return standard_form(model, wanted)
    except ConfigError as error:
        raise refused(target, "GPT-2", [str(error)]) from error


def how_written(model: GPT, form: GPT) -> str:
    """Describe how a form differs from the model: "as it is", or the conversion."""
    words = {key: getattr(model.config, key) for key in MAPS}
    if words == MAPS and model.config.n_kv_heads == form.config.n_kv_heads:
        return "as it is"
    changed = ", ".join(f"{key}={word}" for key, word in words.items() if word != MAPS[key])
    if form.config.n_kv_heads == 1 and form.config.head_dim == form.config.emb_dim:
        return (
            f"with {changed} written as one key head of width {form.config.emb_dim}, which is exact"
        )
    return f"with {changed or 'shared keys'} written as separate matrices, which is exact"
