"""Convert a whole model, fold its norms into attention, or start a training from it."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import zip_longest

import mlx.core as mx
import numpy as np
from jaxtyping import Integer

from mlx_attn.activations import run_with_cache
from mlx_attn.arrays import named_arrays
from mlx_attn.attention.attention import Attention
from mlx_attn.attention.catalog import Mixing
from mlx_attn.attention.layer import Inputs
from mlx_attn.convert import writers
from mlx_attn.convert.circuits import layer_weights, to_numpy
from mlx_attn.convert.conversions import (
    CONVERSIONS,
    Conversion,
    find_conversion,
    key_bias_cancels,
    loosens_sums,
)
from mlx_attn.errors import ConfigError, RunError
from mlx_attn.model.config import GPTConfig
from mlx_attn.model.gpt import GPT, gpt_from
from mlx_attn.run_directory import Run
from mlx_attn.training.trainer import Trainer


def convert(
    model: GPT,
    to: str,
    *,
    rank: int = 0,
    fold_norm: bool = False,
    tokens: Integer[mx.array, "B T"] | None = None,
) -> GPT:
    """Return the model with its attention in another form, ready for evaluation.

    The algebra is done in float64; the new weights have the type of the old ones.

    Args:
        model: A trained model; it is left unchanged.
        to: A name in `CONVERSIONS`.
        rank: The rank that the conversion's row defines; 0: the row's default.
        fold_norm: First multiply the gain and shift of the norm before attention into its maps.
        tokens: Some of the training text, for conversions that are fitted.

    Raises:
        ConfigError: The conversion does not apply to this model; the message offers a way out.
        RunError: The model's weights are not finite.

    Example:
        >>> merged = convert(run.load_model(), "merged")
    """
    if fold_norm:
        model = fold_norms(model)
    conversion = find_conversion(to)
    target = converted_config(conversion, model.config, rank)
    if target == model.config:
        raise ConfigError(f"the model already has the form that --to {conversion.name} gives")
    found = {} if tokens is None else run_with_cache(model, tokens)[1]
    inputs = [x for name, x in found.items() if name.endswith(".norm1")]
    del found  # all activations would take gigabytes once they are computed
    arrays = rewritten(model, target, inputs)
    return gpt_from(target, arrays, "the converted model", model.tok_emb.weight.dtype)


def rewritten(
    model: GPT, target: GPTConfig, inputs: Sequence[Inputs] = ()
) -> dict[str, mx.array | np.ndarray]:
    """Return the weights of another form; `inputs` of its attention are for one that is fitted."""
    arrays: dict[str, mx.array | np.ndarray] = {
        name: array for name, array in named_arrays(model).items() if ".att." not in name
    }
    for i, (block, x) in enumerate(zip_longest(model.trf_blocks, inputs)):
        weights = writers.rewrite(block.att, target.attention(), x)
        arrays |= {f"trf_blocks.{i}.att.{name}": weight for name, weight in weights.items()}
    return arrays


def converted_config(conversion: Conversion, config: GPTConfig, rank: int = 0) -> GPTConfig:
    """Return the configuration of the converted model; the same if it has that form already.

    Raises:
        ConfigError: The conversion does not apply; the message offers a way out.
    """
    _refuse_pattern(config)
    return replace(config, **conversion.changes(config.attention(), rank))


def _refuse_pattern(config: GPTConfig) -> None:
    if config.pattern:
        raise ConfigError(
            f"a conversion gives all layers one form, and those of pattern={config.pattern} have "
            "several: train one variant in all layers"
        )
    if config.kv_sharing > 1:
        raise ConfigError(
            f"kv_sharing={config.kv_sharing} leaves some layers without W_key and W_value, so they "
            "have nothing to convert: train without kv_sharing"
        )


def fold_norms(model: GPT) -> GPT:
    """Return the same function with every gain of `norm1` 1 and every shift 0.

    With x = gain * z + shift and z normalised, x W + b = z (diag(gain) W) + (b + shift W).
    Merged scores have x on both sides: S' = diag(gain) S diag(gain), u' = gain * (u + shift S); the
    terms that depend only on the query cancel in the softmax.
    """
    config = model.config
    _refuse_pattern(config)
    shifted = "bias" in model.trf_blocks[0].norm1
    if reason := _why_not_folded(model.trf_blocks[0].att, shifted):
        raise ConfigError(reason)
    target, arrays = replace(config, qkv_bias=config.qkv_bias or shifted), named_arrays(model)
    for i, block in enumerate(model.trf_blocks):
        gain = to_numpy(block.norm1["weight"])
        shift = to_numpy(block.norm1["bias"]) if shifted else np.zeros_like(gain)
        norm = {"weight": np.ones_like(gain)} | ({"bias": 0 * shift} if shifted else {})
        folded = writers.completed(_folded(block.att, gain, shift), target.attention())
        arrays |= {f"trf_blocks.{i}.norm1.{name}": weight for name, weight in norm.items()}
        arrays |= {f"trf_blocks.{i}.att.{name}": weight for name, weight in folded.items()}
    return gpt_from(target, arrays, "the converted model", model.tok_emb.weight.dtype)


def _why_not_folded(attention: Attention, shifted: bool) -> str:
    """Return why gains and shifts of `norm1` cannot move into the maps, and the way out, or ""."""
    config, maps, loosening = attention.config, attention.maps, loosens_sums(attention.config)
    for choice in maps.all:
        reads_x = not isinstance(choice, Mixing) or choice.remembers
        if choice.input_weights is None and reads_x:
            return (
                f"{choice.map}={choice.name} uses x itself or in a map of its own, so the norm's "
                "gain has nowhere to go: fold it before that conversion, or leave --fold-norm out"
            )
    if maps.score.cache == "x" and maps.mixing.reads_keys:
        return (
            f"mixing={config.mixing} reads the keys, which are x here, so the norm's gain cannot "
            "move from them to the queries: leave --fold-norm out"
        )
    if maps.score.cache == "x" and (config.rotates or config.qk_norm):
        return (
            "the keys are x here, rotated or divided by their lengths before queries meet them, so "
            "the norm's gain cannot move to the queries: leave --fold-norm out"
        )
    if shifted and maps.output.contains_value and loosening:
        return (
            "the norm's shift becomes a constant only if attention weights add up to 1, and with "
            f"{loosening} they need not: leave --fold-norm out"
        )
    if shifted and maps.score.cache == "x" and not key_bias_cancels(config):
        return (
            "the norm's shift adds a constant to all scores of a query, which cancels in a softmax "
            f"and not in mixing={config.mixing}, logits={config.logits}: leave --fold-norm out"
        )
    return ""


def _folded(attention: Attention, gain: np.ndarray, shift: np.ndarray) -> writers.Weights:
    weights, maps = layer_weights(attention), attention.maps
    for name in {name for choice in maps.all for name in choice.input_weights or ()}:
        # The input is x, or softmax_h x of all heads, which is several times as wide.
        weight = weights[f"{name}.weight"]
        gains, shifts = (np.resize(v, weight.shape[1]) for v in (gain, shift))
        weights[f"{name}.bias"] = weights.get(f"{name}.bias", 0) + weight @ shifts
        weights[f"{name}.weight"] = weight * gains
    for name in (maps.score.input_weights or ()) if maps.score.cache == "x" else ():
        gains = np.tile(gain, attention.config.n_heads)  # the key is x: its gain goes to the query
        weights[f"{name}.weight"] *= gains[:, None]
        weights[f"{name}.bias"] *= gains
    return weights


_OF_TRAINING = frozenset({"drop_rate", "start"})
"""Keys that do not change the function of a trained model."""


def starting_point(source: GPT, wanted: GPTConfig) -> GPT:
    """Return the same function in the form of a training to come: itself, or merged products.

    Raises:
        ConfigError: The weights cannot be converted exactly.
    """
    have = source.config
    conversion, target = None, have
    maps = {"score": wanted.score, "output": wanted.output}
    if maps != {"score": have.score, "output": have.output}:
        for row in CONVERSIONS.values():
            keys = {**have.as_dict(), **row.keys(have.attention(), 0)}
            if row.exact == "always" and keys.items() >= maps.items():
                conversion, target = row, converted_config(row, have)
                break
    ours, theirs = target.as_dict(), wanted.as_dict()
    for key in ours:
        if key not in _OF_TRAINING and ours[key] != theirs[key]:
            raise ConfigError(
                f"the weights of a model with {key}={ours[key]!r} are no start for "
                f"{key}={theirs[key]!r}: keep {key}; only the form of attention may change, to "
                "score=merged or output=merged"
            )
    return convert(source, conversion.name) if conversion else source


def start_from_run(trainer: Trainer, start: Run) -> None:
    """Load a run's weights into a trainer, in the trainer's form; see `starting_point`.

    Raises:
        ConfigError: The weights cannot be converted exactly.
        RunError: The run has another vocabulary.
    """
    corpus = trainer.corpus
    if start.load_tokenizer().vocabulary != corpus.tokenizer.vocabulary:
        raise RunError(
            f"{start.path} has another vocabulary than {corpus.name} gets: train on its own text"
        )
    trainer.start_from(starting_point(start.load_model(), trainer.model.config))
