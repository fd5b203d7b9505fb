"""Convert a whole model, or start a training from it."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import zip_longest

import mlx.core as mx
import numpy as np
from jaxtyping import Integer

from mlx_attn.activations import attention_inputs
from mlx_attn.arrays import named_arrays
from mlx_attn.convert import writers
from mlx_attn.convert.conversions import CONVERSIONS, Conversion, find_conversion
from mlx_attn.errors import ConfigError, RunError
from mlx_attn.model.config import GPTConfig
from mlx_attn.model.gpt import GPT
from mlx_attn.run_directory import Run
from mlx_attn.text.corpus import Corpus
from mlx_attn.training.trainer import Trainer


def convert(
    model: GPT,
    to: str,
    *,
    rank: int = 0,
    tokens: Integer[mx.array, "B T"] | None = None,
) -> GPT:
    """Return the model with its attention in another form, ready for evaluation.

    The algebra is done in float64; the new weights have the type of the old ones.

    Args:
        model: A trained model; it is left unchanged.
        to: A name in `CONVERSIONS`.
        rank: The rank that the conversion's row defines; 0: the row's default.
        tokens: Some of the training text, for conversions that are fitted.

    Raises:
        ConfigError: The conversion does not apply to this model; the message offers a way out.
        RunError: The model's weights are not finite.

    Example:
        >>> merged = convert(run.load_model(), "merged")
    """
    conversion = find_conversion(to)
    target = converted_config(conversion, model.config, rank)
    if target == model.config:
        raise ConfigError(f"the model is in the form that --to {conversion.name} gives already")
    inputs = [] if tokens is None else [x for _, x in attention_inputs(model, tokens)]
    arrays = {name: array for name, array in named_arrays(model).items() if ".att." not in name}
    for i, (block, x) in enumerate(zip_longest(model.trf_blocks, inputs)):
        weights = writers.rewrite(block.att, target.attention(), x)
        arrays |= {f"trf_blocks.{i}.att.{name}": weight for name, weight in weights.items()}
    return _from_arrays(target, arrays, model.tok_emb.weight.dtype)


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


def _from_arrays(
    config: GPTConfig, arrays: Mapping[str, mx.array | np.ndarray], dtype: mx.Dtype
) -> GPT:
    """Return a model of these arrays in evaluation mode; convert NumPy's arrays to `dtype`."""
    model = GPT(config, seed=None)
    plain: dict[str, mx.array] = {}
    for name, array in arrays.items():
        if isinstance(array, np.ndarray):  # integers keep their type
            array = mx.array(array, dtype if array.dtype == np.float64 else None)
        plain[name] = array
    model.load_weights(list(plain.items()))
    model.eval()
    return model


_OF_TRAINING = frozenset({"drop_rate", "start"})
"""Keys that do not change the function of a trained model."""


def starting_point(source: GPT, wanted: GPTConfig) -> GPT:
    """Return the same function in the wanted form: unchanged, or with merged products.

    Args:
        source: A trained model; it is left unchanged.
        wanted: The configuration of the training to come.

    Returns:
        The source itself, if it has that form.

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


def start_from_run(trainer: Trainer, start: Run, corpus: Corpus) -> None:
    """Load a run's weights into a trainer, in the trainer's form; see `starting_point`.

    Raises:
        ConfigError: The weights cannot be converted exactly.
        RunError: The run has another vocabulary.
    """
    if start.load_tokenizer().vocabulary != corpus.tokenizer.vocabulary:
        raise RunError(
            f"{start.path} has another vocabulary than {corpus.name} gets: train on its own text"
        )
    trainer.start_from(starting_point(start.load_model(), trainer.model.config))
