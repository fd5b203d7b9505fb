"""One training step: gather, forward, backward, clip, update.

The batch is gathered from the resident corpus inside the step, so the host sends a few start
positions and nothing else; a corpus too long for that sends windows instead (`training.tokens`).
Compiled, the step is one call; model, optimizer and random state are its inputs and outputs.
"""

from collections.abc import Callable

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim
from jaxtyping import Float, Integer
from mlx.utils import tree_map

from mlx_attn.attention.metal import on_gpu
from mlx_attn.exponentials import cross_entropy
from mlx_attn.model import GPT
from mlx_attn.training.config import TrainConfig
from mlx_attn.training.optimizers import GroupedOptimizer
from mlx_attn.training.tokens import Starts, TokenSource

Scalar = Float[mx.array, ""]


class TrainStep:
    """Trains a model by one step at a call.

    Args:
        model: Trained in place.
        optimizer: Moves its weights.
        tokens: The training text, by windows.
        config: The recipe.
    """

    def __init__(
        self,
        model: GPT,
        optimizer: GroupedOptimizer,
        tokens: TokenSource,
        config: TrainConfig,
    ):
        self.model, self.optimizer, self.tokens, self.config = model, optimizer, tokens, config
        self._dtype = getattr(mx, config.dtype)
        self._gradients = nn.value_and_grad(model, self._loss)
        self._single = self._compiled(self._step)
        self._micro = self._compiled(self._accumulate)
        self._apply = self._compiled(self._update)

    def __call__(self, starts: Starts) -> tuple[Scalar, Scalar]:
        """Train on the windows that start there; lazily, `state` is to be evaluated with these.

        Returns:
            The mean loss in nats per token, and the gradient's global norm before clipping.
        """
        if self.config.accumulate == 1:
            return self._single(self.tokens.fetch(starts))
        total, loss = None, mx.array(0.0)
        for part in starts.split(self.config.accumulate):
            part_loss, total = self._micro(total, self.tokens.fetch(part))
            loss = loss + part_loss / self.config.accumulate
            # Without this the graphs of all micro-batches would be alive at once.
            mx.eval(loss, total, mx.random.state)
        return loss, self._apply(total)

    @property
    def state(self) -> list:
        """All that a step changes, for `mx.eval`."""
        return [self.model.state, self.optimizer.state, mx.random.state]

    def _step(self, fetched: mx.array) -> tuple[Scalar, Scalar]:
        loss, gradients = self._gradients(self.tokens.windows(fetched))
        return loss, self._update(gradients)

    def _accumulate(self, total: dict | None, fetched: mx.array) -> tuple[Scalar, dict]:
        loss, gradients = self._gradients(self.tokens.windows(fetched))
        gradients = tree_map(lambda g: g / self.config.accumulate, gradients)
        return loss, gradients if total is None else tree_map(mx.add, total, gradients)

    def _update(self, gradients: dict) -> Scalar:
        limit = self.config.clip or float("inf")
        gradients, norm = optim.clip_grad_norm(gradients, limit)
        self.optimizer.update(self.model, gradients)
        return norm

    def _loss(self, windows: Integer[mx.array, "B T1"]) -> Scalar:
        """Mean loss, computed in the compute type over float32 master weights."""
        if self._dtype == mx.float32:
            return window_losses(self.model, windows).mean()
        masters = self.model.trainable_parameters()
        self.model.update(tree_map(lambda p: p.astype(self._dtype), masters))
        loss = window_losses(self.model, windows).mean()
        self.model.update(masters)
        return loss

    def _compiled(self, function: Callable) -> Callable:
        wanted = {"auto": on_gpu(), "on": True, "off": False}[self.config.compile]
        if not wanted:
            return function
        return mx.compile(function, inputs=self.state, outputs=self.state)


def window_losses(model: GPT, windows: Integer[mx.array, "B T1"]) -> Float[mx.array, "B T"]:
    """Cross-entropy in nats of each token of the windows given those before it, in float32."""
    logits = model(windows[:, :-1]).astype(mx.float32)
    return cross_entropy(logits, windows[:, 1:])
