"""What a training lowers: the mean loss over every token of a text, or over a task's scored tokens.

An objective is chosen once, by the text. The host fetches for it, the training step gathers its
batch on the device, and the batch becomes one loss.
"""

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import mlx.core as mx
from jaxtyping import Float, Integer

from mlx_attn.exponentials import cross_entropy
from mlx_attn.text.corpus import Split
from mlx_attn.training.tokens import Starts, TokenSource, token_source

Numbers = Float[mx.array, "*N"]
"""One number; of several replicas, along a first axis N, one of each."""

Windows = Integer[mx.array, "*N B T1"]
Scored = Integer[mx.array, "*N B T"]
Model = Callable[[mx.array], mx.array]
"""From tokens to logits: a GPT, or several."""

_WINDOW_AXES = (-2, -1)


@runtime_checkable
class Objective(Protocol):
    """What a training step needs to know of the text."""

    def fetch(self, starts: Starts) -> Any:
        """What the host does before a step; the result, of arrays, is the step's input."""
        ...

    def gather(self, fetched: Any) -> Any:
        """The batch, inside of the step."""
        ...

    def loss(self, model: Model, batch: Any) -> Numbers:
        """The mean loss in nats per scored token."""
        ...

    def weight(self, batch: Any) -> Numbers:
        """How many tokens that is the mean of."""
        ...


class EveryToken:
    """The loss of a text: the mean over all tokens of all windows."""

    def __init__(self, tokens: TokenSource):
        self.fetch, self.gather = tokens.fetch, tokens.windows

    def loss(self, model: Model, batch: Windows) -> Numbers:
        """Mean nats per token.

        Window by window: on a processor MLX adds numbers one after the other, and a sum of all of a
        batch's would be off in the fifth digit.
        """
        return window_losses(model, batch).mean(-1).mean(-1)

    def weight(self, batch: Windows) -> Numbers:
        """All tokens but each window's first."""
        return mx.array(float(batch.shape[-2] * (batch.shape[-1] - 1)))


class ScoredTokens:
    """The loss of a task: the mean over the scored tokens of all windows.

    Args:
        tokens: The tokens of the task.
        scored: For each of them, 1 if it is scored, else 0.
    """

    def __init__(self, tokens: TokenSource, scored: TokenSource):
        self._sources = tokens, scored

    def fetch(self, starts: Starts) -> tuple[mx.array, ...]:
        """Of both."""
        return tuple(source.fetch(starts) for source in self._sources)

    def gather(self, fetched: tuple[mx.array, ...]) -> tuple[Windows, Scored]:
        """The windows, and which of their targets are scored."""
        windows, scored = (s.windows(f) for s, f in zip(self._sources, fetched, strict=True))
        return windows, scored[..., 1:]

    def loss(self, model: Model, batch: tuple[Windows, Scored]) -> Numbers:
        """Mean nats per scored token; 0 where there is none."""
        windows, scored = batch
        total = (window_losses(model, windows) * scored).sum(_WINDOW_AXES)
        return total / mx.maximum(scored.sum(_WINDOW_AXES), 1)

    def weight(self, batch: tuple[Windows, Scored]) -> Numbers:
        """The scored ones."""
        return batch[1].sum(_WINDOW_AXES).astype(mx.float32)


def objective_for(split: Split, context_length: int, token_memory: int) -> Objective:
    """The objective of a training on this text; see `token_source` for the numbers."""
    tokens = token_source(split.tokens, context_length, token_memory)
    if split.scored is None:
        return EveryToken(tokens)
    return ScoredTokens(tokens, token_source(split.scored, context_length, token_memory))


def window_losses(model: Model, windows: Windows) -> Float[mx.array, "*N B T"]:
    """Cross-entropy in nats of each token of the windows given those before it, in float32."""
    logits = model(windows[..., :-1]).astype(mx.float32)
    return cross_entropy(logits, windows[..., 1:])


def window_answers(model: Model, windows: Windows) -> Float[mx.array, "2 B T"]:
    """The losses of `window_losses`, and 1 where the likeliest token is the right one, else 0."""
    logits = model(windows[..., :-1]).astype(mx.float32)
    right = logits.argmax(axis=-1) == windows[..., 1:]
    return mx.stack([cross_entropy(logits, windows[..., 1:]), right.astype(mx.float32)])
