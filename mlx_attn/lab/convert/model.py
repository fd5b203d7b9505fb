"""From a trained model of one form to the same model in another."""

from itertools import zip_longest

import mlx.core as mx
from jaxtyping import Integer

from mlx_attn.lab.convert.assembly import build_model
from mlx_attn.lab.convert.layer import Layer, Weights, completed, read_layer
from mlx_attn.lab.convert.norms import fold_norms
from mlx_attn.lab.convert.output_writers import write_output, write_value
from mlx_attn.lab.convert.readers import read_output, read_scores
from mlx_attn.lab.convert.score_writers import write_scores
from mlx_attn.lab.convert.table import changes_output, changes_scores, find_conversion
from mlx_attn.model import GPT, GPTConfig
from mlx_attn.model.inspection import attention_inputs
from mlx_attn.trees import named_arrays


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
        weights = _rewrite(read_layer(block.att, x), model.config, target)
        arrays |= {f"trf_blocks.{i}.att.{name}": weight for name, weight in weights.items()}
    return build_model(target, arrays, model.tok_emb.weight.dtype)


def _rewrite(layer: Layer, config: GPTConfig, target: GPTConfig) -> Weights:
    """The weights of a layer in the target's form; a map that stays is copied."""
    attention, weights = target.attention(), dict(layer.weights)
    if changes_scores(config, target):
        weights |= write_scores(read_scores(layer), attention)
    if changes_output(config, target):
        written = {**weights, **write_output(read_output(layer), attention, layer)}
        weights |= write_value(written, attention, layer)
    return completed(weights, attention)
