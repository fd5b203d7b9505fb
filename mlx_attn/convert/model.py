"""The norm before attention, folded into the maps that read it.

With x = gain * z + shift, where z is normalised, every x W + b is z (diag(gain) W) + (b + shift W).
Merged scores have x on both sides: S' = diag(gain) S diag(gain), u' = gain * (u + shift S), and
what the shift adds for the key alone cancels in the softmax. After that the norm only normalises.
"""

from collections.abc import Mapping
from dataclasses import replace
from itertools import zip_longest

import mlx.core as mx
import numpy as np
from jaxtyping import Integer

from mlx_attn.arrays import named_arrays
from mlx_attn.attention.analysis import layer_weights, to_numpy
from mlx_attn.attention.attention import Attention
from mlx_attn.convert import writers
from mlx_attn.convert.table import find_conversion
from mlx_attn.errors import ConfigError
from mlx_attn.model.config import GPTConfig
from mlx_attn.model.gpt import GPT, attention_inputs


def fold_norms(model: GPT) -> GPT:
    """The same model with every gain of `norm1` 1 and every shift 0.

    Raises:
        ConfigError: Attention uses x itself, or a shift has no place.
    """
    _check(model.config)
    arrays = dict(named_arrays(model))
    shifted = "bias" in model.trf_blocks[0].norm1
    target = replace(model.config, qkv_bias=model.config.qkv_bias or shifted)
    for i, block in enumerate(model.trf_blocks):
        gain = to_numpy(block.norm1["weight"])
        shift = to_numpy(block.norm1["bias"]) if shifted else np.zeros_like(gain)
        folded = _fold(block.att, gain, shift)
        norm = {"norm1.weight": np.ones_like(gain)}
        norm |= {"norm1.bias": np.zeros_like(shift)} if shifted else {}
        attention = writers.completed(folded, target.attention())
        parts = norm | {f"att.{name}": weight for name, weight in attention.items()}
        arrays |= {f"trf_blocks.{i}.{name}": weight for name, weight in parts.items()}
    return from_arrays(target, arrays, model.tok_emb.weight.dtype)


def _fold(attention: Attention, gain: np.ndarray, shift: np.ndarray) -> writers.Weights:
    weights, config = layer_weights(attention), attention.config
    # The maps whose input is x, or softmax_h x of all heads.
    names = {"W_query", "W_key", "W_value", "S", "VO"}
    names -= {"W_value"} if config.value == "from_key" else set()
    for name in (name for name in names if f"{name}.weight" in weights):
        weight = weights[f"{name}.weight"]
        gains, shifts = (np.resize(v, weight.shape[1]) for v in (gain, shift))
        weights[f"{name}.bias"] = weights.get(f"{name}.bias", 0) + weight @ shifts
        weights[f"{name}.weight"] = weight * gains
    if config.score == "merged":
        gains = np.tile(gain, config.n_heads)
        weights["S.weight"] *= gains[:, None]
        weights["S.bias"] *= gains
    return weights


def _check(config: GPTConfig) -> None:
    if config.score in ("no_query", "no_key", "shrunk") or config.value in ("identity", "shrunk"):
        raise ConfigError(
            f"score={config.score} and value={config.value} use x itself, so the norm's gain has "
            "nowhere to go: fold it before that conversion, or leave --fold-norm out"
        )
    if config.output == "merged" and config.drop_rate > 0 and config.bias:
        raise ConfigError(
            "the norm's shift becomes a constant only where attention weights add up to 1, and "
            f"drop_rate={config.drop_rate} drops some: leave --fold-norm out"
        )


def convert(
    model: GPT,
    to: str,
    *,
    rank: int = 0,
    fold_norm: bool = False,
    tokens: Integer[mx.array, "B T"] | None = None,
) -> GPT:
    """The same model with its attention in another form, ready for evaluation.

    The algebra is done in float64; the new weights have the type of the old ones.

    Args:
        model: A trained model; it is left as it was.
        to: A name in `CONVERSIONS`.
        rank: What the conversion's row says it means; 0 is the row's own choice.
        fold_norm: First multiply the gain and shift of the norm before attention into its maps.
        tokens: Some of the training text, for conversions that fit to what the model computes.

    Raises:
        ConfigError: The conversion does not apply to this model; says why and what to do.
        RunError: The model's weights are not finite.

    Example:
        >>> merged = convert(run.load_model(), "merged")
    """
    if fold_norm:
        model = fold_norms(model)
    target = find_conversion(to).target(model.config, rank)
    inputs = [] if tokens is None else [x for _, x in attention_inputs(model, tokens)]
    arrays = {n: a for n, a in named_arrays(model).items() if ".att." not in n}
    for i, (block, x) in enumerate(zip_longest(model.trf_blocks, inputs)):
        weights = writers.rewrite(block.att, target.attention(), x)
        arrays |= {f"trf_blocks.{i}.att.{name}": weight for name, weight in weights.items()}
    return from_arrays(target, arrays, model.tok_emb.weight.dtype)


def from_arrays(
    config: GPTConfig, arrays: Mapping[str, mx.array | np.ndarray], dtype: mx.Dtype
) -> GPT:
    """A model of these arrays, in evaluation mode; those that come from NumPy get the type."""
    model = GPT(config)
    weights = arrays.items()
    model.load_weights(
        [(n, writers.to_mlx(a, dtype) if isinstance(a, np.ndarray) else a) for n, a in weights]
    )
    model.eval()
    return model


_FORMS = {(True, False): "merged", (False, True): "merged-output", (True, True): "merged-both"}
"""The conversion that is exact for every model: by whether scores and output become merged."""

_OF_TRAINING = frozenset({"drop_rate", "merged_start", "start"})
"""Keys that say nothing of the function that a model computes once it is trained."""


def starting_point(source: GPT, wanted: GPTConfig) -> GPT:
    """The same function in the form that is wanted: the form it has, or with products merged.

    Args:
        source: A trained model; it is left as it was.
        wanted: The configuration of the training to come.

    Returns:
        The source itself, where it has that form.

    Raises:
        ConfigError: Its weights cannot be taken over exactly, with the reason.
    """
    have = source.config
    merges = _merges("score", have, wanted), _merges("output", have, wanted)
    form = _FORMS.get(merges)
    _check_same(find_conversion(form).target(have) if form else have, wanted)
    return convert(source, form) if form else source


def _merges(key: str, have: GPTConfig, wanted: GPTConfig) -> bool:
    return getattr(wanted, key) == "merged" != getattr(have, key)


def _check_same(target: GPTConfig, wanted: GPTConfig) -> None:
    given, asked = target.as_dict(), wanted.as_dict()
    for key in given:
        if key not in _OF_TRAINING and given[key] != asked[key]:
            raise ConfigError(
                f"the weights of a model with {key}={given[key]!r} are no start for "
                f"{key}={asked[key]!r}: keep {key}; only the form of attention may change, to "
                "score=merged or output=merged"
            )
