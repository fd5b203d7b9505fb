"""One training step: gather, forward, backward, average over the ranks, clip, update.

The batch is gathered from the resident corpus inside the step, so the host sends a few start
positions and nothing else; a corpus too long for that sends windows instead (`training.tokens`).
Compiled, the step is one call; model, optimizer and random state are its inputs and outputs.
"""

import math
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_map

from mlx_attn.attention.metal import on_gpu
from mlx_attn.model import GPT
from mlx_attn.streams import undivided
from mlx_attn.training.config import TrainConfig
from mlx_attn.training.objective import Numbers, Objective
from mlx_attn.training.optimizers import GroupedOptimizer
from mlx_attn.training.ranks import ALONE, Ranks
from mlx_attn.training.shares import divided
from mlx_attn.training.tokens import Starts
from mlx_attn.trees import count_parameters


class TrainStep:
    """Trains a model by one step at a call.

    Args:
        model: Trained in place.
        optimizer: Moves its weights.
        objective: The training text, by windows, and what counts in it.
        config: The recipe.
        ranks: The processes that average their gradients in every step.
    """

    def __init__(
        self,
        model: GPT,
        optimizer: GroupedOptimizer,
        objective: Objective,
        config: TrainConfig,
        ranks: Ranks = ALONE,
    ):
        self.model, self.optimizer, self.config = model, optimizer, config
        self.objective, self.ranks = objective, ranks
        self._dtype = getattr(mx, config.dtype)
        whole = nn.value_and_grad(model, self._loss)
        self._value_and_grad = divided(whole, objective.weight, count_parameters(model))
        self._single = self._compiled(self._step)
        self._micro = self._compiled(self._accumulate)
        self._apply = self._compiled(self._finish)

    def __call__(self, starts: Starts) -> tuple[Numbers, Numbers]:
        """Train on the windows that start there; lazily, `state` is to be evaluated with these.

        Returns:
            The mean loss in nats per token, and the gradient's global norm before clipping; both of
            all ranks' windows.
        """
        if self.config.accumulate == 1:
            return self._single(self.objective.fetch(starts))
        total, loss = None, mx.array(0.0)
        for part in starts.split(self.config.accumulate, axis=-1):
            part_loss, total = self._micro(total, self.objective.fetch(part))
            loss = loss + part_loss / self.config.accumulate
            # Without this the graphs of all micro-batches would be alive at once.
            mx.eval(loss, total, self.state)
        return self._apply(loss, total)

    @property
    def state(self) -> list:
        """All that a step changes, for `mx.eval`."""
        return [self.model.state, self.optimizer.state, mx.random.state]

    def _step(self, fetched: Any) -> tuple[Numbers, Numbers]:
        return self._finish(*self._gradients(self.objective.gather(fetched)))

    def _accumulate(self, total: dict | None, fetched: Any) -> tuple[Numbers, dict]:
        loss, gradients = self._gradients(self.objective.gather(fetched))
        gradients = tree_map(lambda g: g / self.config.accumulate, gradients)
        return loss, gradients if total is None else tree_map(mx.add, total, gradients)

    def _finish(self, loss: Numbers, gradients: dict) -> tuple[Numbers, Numbers]:
        loss, gradients = self.ranks.average([loss, gradients])
        return loss, self._update(gradients)

    def _update(self, gradients: dict) -> Numbers:
        return self.optimizer.update(self.model, gradients, self.config.clip or math.inf)

    def _gradients(self, batch: Any) -> tuple[Numbers, dict]:
        return self._value_and_grad(batch)

    def _loss(self, batch: Any, weight: float | Numbers = 1.0) -> Numbers:
        """Mean loss by weight, computed in the compute type over float32 master weights."""
        if self._dtype == mx.float32:
            return self.objective.loss(self.model, batch) * weight
        masters = self.model.trainable_parameters()
        self.model.update(tree_map(lambda p: p.astype(self._dtype), masters))
        loss = self.objective.loss(self.model, batch)
        self.model.update(masters)
        return loss * weight

    def _compiled(self, function: Callable) -> Callable:
        wanted = {"auto": on_gpu(), "on": True, "off": False}[self.config.compile]
        if not wanted:
            return function
        return mx.compile(undivided(function), inputs=self.state, outputs=self.state)
