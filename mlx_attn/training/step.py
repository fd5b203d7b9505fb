"""One training step: a batch, its loss, the gradients, and the optimizer."""

from collections.abc import Sequence

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_map

from mlx_attn.arrays import count_parameters
from mlx_attn.machine.streams import compiled_part, compiled_step, shard_batch
from mlx_attn.training.batches import Objective, Scalar, Starts
from mlx_attn.training.config import TrainConfig
from mlx_attn.training.optimizers import GroupedOptimizer


class TrainStep:
    """Trains the optimizer's model in place, one step per call."""

    def __init__(self, optimizer: GroupedOptimizer, objective: Objective, config: TrainConfig):
        self.model, self.optimizer = optimizer.model, optimizer
        self.objective, self.config = objective, config
        # Weights stay float32; only the computation runs in this type.
        self._dtype = getattr(mx, config.dtype)
        # A share reads and changes the state that dropout draws from.
        drawing = [self.model.state, mx.random.state]
        share = compiled_part(nn.value_and_grad(self.model, self._loss), config.compile, drawing)
        self._sharded = shard_batch(share, objective.weight, count_parameters(self.model))
        self._part = compiled_step(self._part_gradients, config.compile, self.state)
        self.update = compiled_step(optimizer.step, config.compile, self.state)

    def __call__(self, starts: Starts) -> tuple[Scalar, Scalar]:
        """Train on the windows at these starts, lazily: evaluate `state` with the results.

        Returns:
            The mean loss in nats per token and the gradients' global norm before clipping.
        """
        loss, gradients = self.gradients(starts)
        return loss, self.update(gradients)

    def gradients(self, starts: Starts) -> tuple[Scalar, dict]:
        """Return the mean loss, and the gradients of all weights as a tree like the model's."""
        # [accumulate B] -> [B], the first of the micro-batches, and others
        first, *others = starts.split(self.config.accumulate)
        total = self._part(first)
        for part in others:
            # Otherwise the graphs of all micro-batches would be in memory at once.
            mx.eval(total, mx.random.state)
            total = tree_map(mx.add, total, self._part(part))
        return total

    def _part_gradients(self, starts: Starts) -> tuple[Scalar, dict]:
        """Return a micro-batch's share of the mean loss and of its gradients."""
        # [B] -> [B, T + 1] tokens
        loss, gradients = self._sharded(self.objective.gather(starts))
        if self.config.accumulate == 1:
            return loss, gradients
        # Micro-batches have equal sizes, so their mean is the batch's.
        return tree_map(lambda array: array / self.config.accumulate, (loss, gradients))

    def _loss(self, batch: Sequence[mx.array], weight: Scalar | None = None) -> Scalar:
        """Return the mean loss, of a shard times its weight, from weights in the compute type."""
        masters = None if self._dtype == mx.float32 else self.model.trainable_parameters()
        if masters:
            # The gradients flow through the cast, so they are float32 like the masters.
            self.model.update(tree_map(lambda p: p.astype(self._dtype), masters))
        loss = self.objective.loss(self.model, batch)
        if masters:
            # The optimizer must see the float32 weights again.
            self.model.update(masters)
        return loss if weight is None else loss * weight

    @property
    def state(self) -> list:
        """Return everything that a step changes, for `mx.eval`."""
        weights = [group.weights for group in self.optimizer.groups.values()]
        return [self.model.state, self.optimizer.state, weights, mx.random.state]
