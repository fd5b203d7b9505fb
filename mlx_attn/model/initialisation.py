"""How a GPT's weights start, by name.

- `book`: PyTorch's defaults, as in the book: Linear weights and biases within 1/sqrt(fan in),
  embeddings N(0, 1).
- `gpt2`: N(0, 0.02), maps that end a branch 0.02 / sqrt(2 n_layers), biases 0 (nanoGPT).
- `zero`: N(0, 1/fan in), embeddings N(0, 1), maps that end a branch and an untied head 0: every
  block starts as the identity and the loss at ln(vocab_size) (modded-nanogpt).

All variants draw through `Attention.start`, so merged matrices start from the factors they replace.
"""

import mlx.core as mx
import mlx.nn as nn

from mlx_attn.attention import Attention
from mlx_attn.attention.initialisation import Draw, linear_draw
from mlx_attn.model.config import GPTConfig

GPT2_STD = 0.02


def gpt2_draw(n_layers: int) -> Draw:
    """N(0, 0.02), and 0.02 / sqrt(2 n_layers) where a branch ends."""

    def draw(rows: int, columns: int, residual: bool = False) -> mx.array:
        std = GPT2_STD * ((2 * n_layers) ** -0.5 if residual else 1.0)
        return std * mx.random.normal((rows, columns))

    return draw


def zero_draw(rows: int, columns: int, residual: bool = False) -> mx.array:
    """N(0, 1 / columns), and 0 where a branch ends."""
    return mx.random.normal((rows, columns)) * (0.0 if residual else columns**-0.5)


def initialise(model: nn.Module, config: GPTConfig) -> None:
    """Start all weights of a model in place, as `config.start` says."""
    draws = {"book": linear_draw, "gpt2": gpt2_draw(config.n_layers), "zero": zero_draw}
    draw = draws[config.start]
    for name, module in reversed(model.named_modules()):
        if isinstance(module, Attention):
            module.start(draw)
        elif isinstance(module, nn.Embedding):
            module.weight = _embedding_std(config) * mx.random.normal(module.weight.shape)
        elif isinstance(module, nn.Linear):
            _start_linear(name, module, config, draw)


def _embedding_std(config: GPTConfig) -> float:
    """1, but small where GPT-2's was, and where a tied head reads logits with the embedding."""
    small = config.start == "gpt2" or (config.start == "zero" and config.tied_head)
    return GPT2_STD if small else 1.0


def _start_linear(name: str, module: nn.Linear, config: GPTConfig, draw: Draw) -> None:
    if ".att." not in name:
        ends_branch = name.endswith("ff.layers.2") or (
            name == "out_head" and config.start == "zero"
        )
        module.weight = draw(*module.weight.shape, residual=ends_branch)
    if "bias" in module and config.start != "book":
        module.bias = mx.zeros_like(module.bias)
