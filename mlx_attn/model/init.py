"""The start of every weight, drawn from the seed and the weight's name.

    weight = f(Philox(BLAKE2b(seed, name)))

Variants that share a weight share its initial value, so two runs with one seed differ only by their
forms (common random numbers). Philox computes with integers, and NumPy computes normal numbers from
them, so one seed is one model on every machine; MLX's own normal numbers differ between processors.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import chain
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from mlx_attn.attention.attention import Attention
from mlx_attn.model.config import GPTConfig

_GPT2_STD = 0.02


@dataclass(frozen=True, slots=True)
class NamedInit:
    """Draws numbers that depend only on the seed and the weight's full name.

    `start` is "book" (uniform within 1 / sqrt(columns), as PyTorch's Linear), "gpt2" (N(0, 0.02),
    and 0.02 / sqrt(2 n_layers) at the end of a branch) or "zero" (N(0, 1 / columns), and 0 at the
    end of a branch).
    """

    config: GPTConfig
    seed: int  # the seed of all weights
    path: str = ""  # name of the module whose weights are drawn

    def __call__(self, name: str, rows: int, columns: int, residual: bool = False) -> mx.array:
        """Return the starting weight (rows, columns) = (out, in) of the map `name`."""
        if self.config.start == "book":
            return self.uniform(name, (rows, columns), columns**-0.5)
        if self.config.start == "gpt2":
            # Each block adds two branches: the sum of 2 n_layers of them has the variance of one.
            std = _GPT2_STD * ((2 * self.config.n_layers) ** -0.5 if residual else 1.0)
        else:
            # Every branch ends in zeros, so each block starts as the identity.
            std = 0.0 if residual else columns**-0.5
        return self.normal(name, (rows, columns), std) if std else mx.zeros((rows, columns))

    def normal(self, name: str, shape: tuple[int, ...], std: float = 1.0) -> mx.array:
        """Draw from N(0, std^2)."""
        return mx.array((self._random(name).standard_normal(shape) * std).astype(np.float32))

    def uniform(self, name: str, shape: tuple[int, ...], bound: float) -> mx.array:
        """Draw uniformly between -bound and bound."""
        unit = 2 * self._random(name).random(shape) - 1
        return mx.array((unit * bound).astype(np.float32))

    def _random(self, name: str) -> np.random.Generator:
        return np.random.Generator(np.random.Philox(key=self.key(name)))

    def key(self, name: str) -> int:
        """Return a hash per name: adding a weight to the model changes no other's numbers."""
        full_name = ".".join(part for part in (self.path, name) if part)
        digest = blake2b(f"{self.seed} {full_name}".encode(), digest_size=16).digest()
        return int.from_bytes(digest, "little")


@contextmanager
def kept_random_state() -> Iterator[None]:
    """Restore MLX's random state after the block, on which a script's draws must not depend."""
    states: Any = mx.random.state
    high, low = np.array(states[0]).tolist()
    try:
        yield
    finally:
        mx.random.seed(high << 32 | low)  # a seed's two halves are the state after it


def initialise(model: nn.Module, config: GPTConfig, seed: int) -> None:
    """Start all weights of a model in place, by the rule `config.start`."""
    draw, start = NamedInit(config, seed), config.start
    # Small for start=zero, too, if a tied head multiplies by it.
    is_small = start == "gpt2" or (start == "zero" and config.tied_head)
    for name, module in model.named_modules():
        if isinstance(module, Attention):
            named = replace(draw, path=name)
            own = (c.weights.items() for c in module.maps.all if c.foreign_functions)
            for part, make in (pair for pair in chain(*own) if pair[0] in module):
                # Made again: MLX may draw a user's weights, and the layer did not know its name.
                mx.random.seed(named.key(part) % 2**64)
                module.update({part: make(module.config)})
            module.init_weights(named)
        elif isinstance(module, nn.Embedding):
            module.weight = draw.normal(name, module.weight.shape, _GPT2_STD if is_small else 1.0)
        elif isinstance(module, nn.Linear) or hasattr(module, "dense_weight"):  # or one in slices
            if ".att." not in name:  # an attention layer draws its own
                ends = ("ff.layers.2", "out_head") if start == "zero" else "ff.layers.2"
                module.weight = draw(name, *module.weight.shape, residual=name.endswith(ends))
            if "bias" in module:
                # PyTorch's Linear draws within 1 / sqrt(inputs); GPT-2's biases start at 0.
                bound = module.weight.shape[1] ** -0.5 if start == "book" else 0.0
                module.bias = draw.uniform(f"{name}.bias", module.bias.shape, bound)
