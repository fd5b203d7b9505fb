"""What the model has read of a text, and the loop that goes on from there."""

from collections.abc import Iterator
from typing import cast

import mlx.core as mx
from jaxtyping import Float, Integer

from mlx_attn.errors import RunError
from mlx_attn.model import GPT
from mlx_attn.sampling.samplers import Sampler


def fitting(length: int, context_length: int) -> int:
    """How many tokens of a text are read, its last ones: all if they fit, else half a context."""
    return length if length <= context_length else max(1, context_length // 2)


class Window:
    """The end of a text, at most context_length tokens, as the model's caches remember it.

    A text that does not fit is read again from its last context_length / 2 tokens, as a text that
    starts there. So a text may go on for ever, in the same way for every kind of position, and
    half of the context is always there.
    """

    def __init__(self, model: GPT):
        self.model = model
        self.caches = model.new_caches()
        self.length = 0
        self._read: list[mx.array] = []

    def read(self, tokens: Integer[mx.array, " N"]) -> Float[mx.array, "1 V"]:
        """The logits of the token after `tokens`, which go on where the last ones ended."""
        self._read.append(tokens)
        self.length += tokens.size
        kept = fitting(self.length, self.model.config.context_length)
        if kept < self.length:
            tokens = self._restart(kept)
        return self.model(tokens[None], self.caches)[:, -1].astype(mx.float32)

    def _restart(self, kept: int) -> mx.array:
        """Forget everything; return the last tokens, to be read again."""
        tokens = mx.concatenate(self._read)[-kept:]
        self._read, self.caches, self.length = [tokens], self.model.new_caches(), kept
        return tokens

    @property
    def bytes_per_token(self) -> int:
        """Bytes that all layers remember for each token."""
        return sum(cache.bytes_per_token for cache in self.caches)


def decode(window: Window, prompt: list[int], sampler: Sampler) -> Iterator[int]:
    """The tokens after a prompt, without end.

    Step n + 1 is under way before token n is read, so that the device does not wait for Python.

    Args:
        window: A new one; its model is in evaluation mode.
        prompt: At least one token.
        sampler: A new one.

    Raises:
        RunError: The model's logits are not numbers.
    """
    newest = mx.array(prompt, mx.uint32)
    logits = window.read(newest)
    if mx.isnan(logits).any().item():
        raise RunError("the model's logits are not numbers: its training diverged; train it again")
    token = sampler(logits, newest)
    mx.async_eval(token)
    while True:
        following = sampler(window.read(token), token)
        mx.async_eval(following)
        yield cast(int, token.item())
        token = following
