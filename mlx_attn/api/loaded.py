"""A trained model from Python: its text, its predictions, its attention and its matrices."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from jaxtyping import Float, Float32

from mlx_attn.arrays import count_parameters
from mlx_attn.convert.circuits import ov_circuit, qk_circuit
from mlx_attn.errors import ConfigError, python_words
from mlx_attn.keys import keys_of, validate
from mlx_attn.plugins import Plugins, load_named_plugins
from mlx_attn.probe.heads import Probe, probe, prompt_tokens
from mlx_attn.probe.show import draw_maps, heads_table
from mlx_attn.runs import LoadedRun, load_run, text_loss
from mlx_attn.sampling.config import SamplerConfig
from mlx_attn.sampling.generate import begin
from mlx_attn.text.corpus import Split
from mlx_attn.training.evaluation import Evaluator
from mlx_attn.ui.plots import figure_for_page
from mlx_attn.ui.terminal import as_html

_SAMPLER = keys_of(SamplerConfig)
_WHOLE_NUMBERS: dict[str, type] = dict.fromkeys(("count", "max_tokens", "layer"), int)


@python_words()
def load(run: str | Path | None = None, *, plugins: Plugins = ()) -> "LoadedModel":
    """Return a trained model with its tokenizer.

    Args:
        run: Its directory, or its name in runs/; None is the latest finished one.
        plugins: Files with your own choices that it was trained with.

    Raises:
        RunError: The run does not exist, or it is damaged.
        ConfigError: It was trained with a file that is not loaded.
    """
    load_named_plugins(plugins)
    loaded = load_run(None if run is None else str(run))
    return LoadedModel(loaded.run, loaded.model, loaded.tokenizer)


@dataclass(frozen=True, slots=True, eq=False)
class LoadedModel(LoadedRun):
    """A trained model: its text, its predictions, its attention and its matrices."""

    stream = python_words()(LoadedRun.stream)

    def generate(
        self, prompt: str = "", max_tokens: int = 200, *, stop: Sequence[str] = (), **sampler: Any
    ) -> str:
        """Return the continuation of a prompt, without it.

        Args:
            prompt: The text to continue.
            max_tokens: The most new tokens.
            stop: Texts before which it ends.
            sampler: Settings of `SamplerConfig`: temp, top_p, seed and the rest.

        Raises:
            ConfigError: A setting cannot work, or a character is unknown to the tokenizer.
        """
        return self.generate_batch(prompt, 1, max_tokens, stop=stop, **sampler)[0]

    @python_words()
    def generate_batch(
        self,
        prompt: str = "",
        count: int = 8,
        max_tokens: int = 200,
        *,
        stop: Sequence[str] = (),
        **sampler: Any,
    ) -> list[str]:
        """Return several continuations of a prompt, decoded as one batch.

        Number k is what `generate` returns with the seed `seed + k`, up to rounding. Arguments and
        errors as of `generate`.
        """
        given = {key: value for key, value in sampler.items() if value is not None}
        config = SamplerConfig(**validate(given, _SAMPLER))
        counts = validate({"count": count, "max_tokens": max_tokens}, _WHOLE_NUMBERS)
        texts = [""] * counts["count"]
        for step in self.stream(prompt, config, counts["max_tokens"], stop, counts["count"]):
            texts[step.number] += step.text
        return texts

    def logits(self, text: str) -> Float32[np.ndarray, "T V"]:
        """Return the model's prediction after each token of a text, read as a whole document."""
        tokens = self._tokens(text)
        read = begin(tokens, self.start_tokens, self.model.config.context_length)
        logits = self.model(mx.array(read)[None])[0, -len(tokens) :]
        return np.array(logits.astype(mx.float32))

    def loss(self, text: str) -> float:
        """Return nats per token of a text: the mean of -ln p(token | the tokens before it).

        The text is read after the document's start, if the run's text has one; then its first token
        counts too, and otherwise those from the second on. A text longer than the context is read
        in the windows of a validation.
        """
        tokens = self.tokenizer.encode(text)
        if len(tokens) > self.model.config.context_length:
            split = Split(tokens, len(text.encode()))
            return Evaluator(split, self.model.config.context_length)(self.model).val_loss
        loss = text_loss(self, self._tokens(text))
        if math.isnan(loss):
            raise ConfigError("a loss needs a text of at least two tokens: give a longer one")
        return loss

    def attention(self, text: str) -> "AttentionMaps":
        """Return the attention weights of every head while the model reads a text."""
        tokens = prompt_tokens(self, text)
        words = [self.tokenizer.decode([token]) for token in tokens[0].tolist()]
        return AttentionMaps(probe(self.model, tokens), words)

    @python_words()
    def matrices(self, layer: int) -> "Matrices":
        """Return the matrices of a layer's heads.

        Raises:
            ConfigError: The layer does not exist, or its map is not linear, with the reason.
        """
        blocks, layer = self.model.trf_blocks, validate({"layer": layer}, _WHOLE_NUMBERS)["layer"]
        if not 0 <= layer < len(blocks):
            raise ConfigError(f"layer={layer}: this model's layers are 0 to {len(blocks) - 1}")
        attention = blocks[layer].att
        return Matrices(qk_circuit(attention).products, ov_circuit(attention).products)

    def _tokens(self, text: str) -> list[int]:
        """Return the tokens of a text that the model can read at once."""
        tokens, context = self.tokenizer.encode(text).tolist(), self.model.config.context_length
        if not 0 < len(tokens) <= context:
            raise ConfigError(
                f"the text has {len(tokens)} tokens, and this model reads 1 to {context} at once: "
                "give another text"
            )
        return tokens

    def __repr__(self) -> str:
        config = self.model.config
        variant = self.run.settings.get("variant", "")
        parameters = f"{count_parameters(self.model):,} parameters"
        return f"LoadedModel({self.name}: {variant}, {config.sizes}, {parameters})"


@dataclass(frozen=True, slots=True, eq=False)
class Matrices:
    """Of the heads of one layer: scores are scale * x_i S_h x_j^T, outputs sum_h softmax_h x VO_h.

    Attributes:
        S: W_query_h W_key_h^T.
        VO: W_value_h O_h.
    """

    S: Float[np.ndarray, "H C C"]
    VO: Float[np.ndarray, "H C C"]


@dataclass(frozen=True, slots=True, eq=False)
class AttentionMaps:
    """The attention of every head on one text.

    Attributes:
        found: Statistics and spectra of the heads; see `mlx_attn.probe.heads`.
        tokens: The tokens as text.
    """

    found: Probe = field(repr=False)
    tokens: list[str]

    @property
    def weights(self) -> Float32[np.ndarray, "L H T T"]:
        """[layer, head, i, j]: how much of token j token i takes in.

        Rows add up to 1 if the mixing is a softmax; rows of off_by_one, sink and a plugin's own
        mixing need not.
        """
        return self.found.maps[:, 0]

    def __rich__(self) -> Any:
        return heads_table(self.found)

    def _repr_html_(self) -> str:
        return str(figure_for_page(partial(draw_maps, self.found))) + as_html(self.__rich__())
