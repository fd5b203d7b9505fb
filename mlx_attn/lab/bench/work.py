"""What is timed: a training step, a forward pass, and decoding, each of one model.

Texts are random tokens: speed does not depend on what they say, and nothing has to be downloaded.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice

import mlx.core as mx
import numpy as np

from mlx_attn import blas
from mlx_attn.lab.bench.operations import operations
from mlx_attn.lab.bench.products import Reading, model_products, multiply_adds
from mlx_attn.lab.bench.timing import Subject
from mlx_attn.model import GPT, GPTConfig
from mlx_attn.sampling.config import SamplerConfig
from mlx_attn.sampling.samplers import Sampler
from mlx_attn.sampling.window import Window, decode
from mlx_attn.streams import share_of_cores, side_by_side, undivided
from mlx_attn.training.config import TrainConfig
from mlx_attn.training.objective import EveryToken, window_losses
from mlx_attn.training.optimizers import GroupedOptimizer
from mlx_attn.training.step import TrainStep
from mlx_attn.training.tokens import ResidentTokens
from mlx_attn.trees import named_arrays

TEXT_TOKENS = 100_000
PROMPT = 16
"""Tokens that decoding starts from."""
NEW_TOKENS = 256
"""Tokens that decoding adds, or fewer where the context ends before."""


@dataclass(frozen=True, slots=True)
class Work:
    """Something to time, with what can be counted of it.

    Attributes:
        run: Does it once.
        config: The model.
        reading: What the model reads in one step; when decoding, in the middle of the text.
        backward: Whether gradients are computed too.
        operations: Of the graph of one step: one training step, one pass, one new token.
        steps: Passes through the model: new tokens when decoding, otherwise 1.
    """

    run: Subject
    config: GPTConfig
    reading: Reading
    backward: bool
    operations: Callable[[], Counter[str]]
    steps: int = 1

    @property
    def tokens(self) -> int:
        """Tokens that it reads or writes."""
        return self.reading.B * self.reading.T_q * self.steps

    @property
    def multiply_adds(self) -> int:
        """Those of its matrix products, per token."""
        products = model_products(self.config, self.reading)
        return multiply_adds(products, self.backward) * self.steps // self.tokens


def random_tokens(vocab_size: int, count: int) -> mx.array:
    """A text of random tokens."""
    return mx.random.randint(0, vocab_size, (count,)).astype(mx.uint32)


def training_step(config: GPTConfig, training: TrainConfig) -> Work:
    """One step of the trainer: forward, backward, clipping and the optimizer."""
    B, T = training.batch_size, config.context_length
    step = train_step(config, training)
    starts = mx.random.randint(0, TEXT_TOKENS - T - 1, (B,))
    mx.eval(starts)

    def run() -> None:
        mx.eval(step(starts), step.state)

    def graph() -> Counter[str]:
        result = undivided(step)(starts)
        state = named_arrays([step.model.state, step.optimizer.state])
        counted = operations(*result, *state.values())
        mx.eval(result, step.state)
        return counted

    return Work(run, config, Reading(B, T, T), True, graph)


def train_step(config: GPTConfig, training: TrainConfig) -> TrainStep:
    """The trainer's step, on a model of its own and a random text."""
    model = GPT(config)
    optimizer = GroupedOptimizer(model, training, config.n_heads)
    optimizer.schedule(1e-3)
    tokens = np.array(random_tokens(config.vocab_size, TEXT_TOKENS))
    objective = EveryToken(ResidentTokens(tokens, config.context_length))
    step = TrainStep(model, optimizer, objective, training)
    mx.eval(step.state)
    return step


def forward_pass(config: GPTConfig, training: TrainConfig) -> Work:
    """The losses of one batch, as validation computes them."""
    B, T = training.batch_size, config.context_length
    model = still_model(config)
    windows = random_tokens(config.vocab_size, B * (T + 1)).reshape(B, T + 1)
    shares = windows.split(share_of_cores(B))
    mx.eval(windows, shares)
    return Work(
        lambda: mx.eval(side_by_side(lambda share: window_losses(model, share), shares)),
        config,
        Reading(B, T, T),
        False,
        lambda: operations(window_losses(model, windows)),
    )


def decoding(config: GPTConfig, training: TrainConfig) -> Work:
    """One text, token by token, with the cache: the likeliest token each time."""
    model = still_model(config)
    (length, new), prompt = decoded_lengths(config), decoding_prompt(config)

    def run() -> None:
        blas.use_threads(blas.preload().threads)
        for _ in islice(decode(Window(model), prompt, Sampler(SamplerConfig(temp=0.0))), new):
            pass
        # The token after the last one is under way.
        mx.synchronize()

    def graph() -> Counter[str]:
        window = Window(model)
        mx.eval(window.read(mx.array(prompt)))
        return operations(window.read(mx.array([0])))

    return Work(run, config, Reading(1, 1, length + new // 2), False, graph, steps=new)


def decoded_lengths(config: GPTConfig) -> tuple[int, int]:
    """Tokens of the prompt, and new tokens."""
    prompt = min(PROMPT, config.context_length // 2)
    return prompt, min(NEW_TOKENS, config.context_length - prompt)


def decoding_prompt(config: GPTConfig) -> list[int]:
    """The tokens that decoding starts from."""
    return [i % config.vocab_size for i in range(decoded_lengths(config)[0])]


def still_model(config: GPTConfig) -> GPT:
    """A model in evaluation mode."""
    model = GPT(config)
    model.eval()
    mx.eval(model.parameters())
    return model


WORKS: dict[str, Callable[[GPTConfig, TrainConfig], Work]] = {
    "train": training_step,
    "forward": forward_pass,
    "decode": decoding,
}
"""The kinds of work by name."""
