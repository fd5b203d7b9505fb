"""All that is asked of a model's attention, put together."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float32, Integer

from mlx_attn.lab.probe.heads import HeadStatistics, head_statistics, uniform_statistics
from mlx_attn.lab.probe.maps import attention_maps, repeated_sequences
from mlx_attn.lab.probe.matrices import HeadMatrices, score_spectra, value_output_spectra
from mlx_attn.model import GPT, GPTConfig


@dataclass(frozen=True, slots=True)
class Probe:
    """What was found; L layers, H heads, B texts of T tokens.

    Attributes:
        config: Of the model.
        tokens: What it read.
        maps: What every head looked at; row i is what token i looks at.
        statistics: Of every head, averaged over the texts.
        uniform: The same of a head that looks at all earlier tokens alike, to compare with.
        scores: The matrices S_h.
        value_outputs: The matrices V_h O_h.
    """

    config: GPTConfig
    tokens: Integer[np.ndarray, "B T"]
    maps: Float32[np.ndarray, "L B H T T"]
    statistics: HeadStatistics
    uniform: Mapping[str, float]
    scores: HeadMatrices
    value_outputs: HeadMatrices


def probe(model: GPT, tokens: Integer[np.ndarray, "B T"]) -> Probe:
    """Look at every head of a model while it reads some texts.

    Args:
        model: In evaluation mode; see `Run.load_model`.
        tokens: Token ids of texts of the same length, from `prompt_tokens` or
            `validation_windows`.

    Raises:
        RunError: The model's weights are not finite.

    Example:
        >>> found = probe(run.load_model(), validation_windows(run, 4))
        >>> found.maps[layer, text, head]
    """
    config = model.config
    scores, value_outputs = score_spectra(model), value_output_spectra(model)
    maps = attention_maps(model, tokens)
    again = repeated_sequences(config.vocab_size, config.context_length)
    repeated = attention_maps(model, again)
    uniform = uniform_statistics(tokens.shape[1], again.shape[1])
    statistics = head_statistics(maps, repeated)
    return Probe(config, tokens, maps, statistics, uniform, scores, value_outputs)
