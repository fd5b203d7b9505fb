"""One training step, with the batch divided among the processor's cores.

The loss is a mean over tokens. It equals the sum of the shards' losses, each weighted by the
shard's fraction of the tokens. Each shard runs its forward and backward pass in parallel with the
others.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_map

from mlx_attn.arrays import count_parameters
from mlx_attn.machine.streams import (
    compiled_share,
    compiled_step,
    compiles_step,
    num_shards,
    parallel_map,
)
from mlx_attn.model.gpt import GPT
from mlx_attn.training.batches import Objective, Scalar, Starts
from mlx_attn.training.config import TrainConfig
from mlx_attn.training.optimizers import GroupedOptimizer

Gradients = Callable[..., tuple[Scalar, dict]]
MOST_COPIED = 2**26  # the most gradient numbers to hold at a time, summed over all shards


def shard_batch(gradients: Gradients, weight: Callable[[Any], Scalar], n_weights: int) -> Gradients:
    """Return a function with the same mean loss and gradients, computed in shards.

    `gradients` returns the mean loss of a batch times a weight, and `n_weights` gradients; `weight`
    returns the number of tokens in the mean.
    """

    def sharded(batch: Sequence[mx.array]) -> tuple[Scalar, dict]:
        shards = num_shards(len(batch[0]))
        # Each shard has gradients of its own until they are added up.
        if shards == 1 or shards * n_weights > MOST_COPIED:
            return parallel_map(gradients, [batch])[0]
        # Along the first axis: [B, ...] -> shards of [B / shards, ...]
        parts = list(zip(*(array.split(shards) for array in batch), strict=True))
        # [shards]: a task may score a different number of tokens in each.
        weights = mx.stack([weight(part) for part in parts])
        weights = weights / mx.maximum(weights.sum(), 1)
        # The weighted losses and gradients of the shards only need to be added.
        pairs = list(zip(parts, weights, strict=True))
        results = parallel_map(lambda part: gradients(*part), pairs)
        return tree_map(lambda first, *others: sum(others, start=first), *results)

    return sharded


class TrainStep:
    """Trains a model in place, one step per call."""

    def __init__(
        self,
        model: GPT,
        optimizer: GroupedOptimizer,
        objective: Objective,
        config: TrainConfig,
    ):
        self.model, self.optimizer, self.config = model, optimizer, config
        self.objective = objective
        # Weights stay float32; only the computation runs in this type.
        self._dtype = getattr(mx, config.dtype)
        # A share reads and changes the state that dropout draws from.
        drawing = [model.state, mx.random.state]
        share = compiled_share(nn.value_and_grad(model, self._loss), config.compile, drawing)
        self._sharded = shard_batch(share, objective.weight, count_parameters(model))
        self._whole = compiled_step(self._step, config.compile, self.state)
        self._micro = compiled_step(self._micro_batch, config.compile, self.state)
        self._finish = compiled_step(self._apply, config.compile, self.state)

    def __call__(self, starts: Starts) -> tuple[Scalar, Scalar]:
        """Train on the windows at these starts, lazily: evaluate `state` with the results.

        Returns:
            The mean loss in nats per token and the gradients' global norm before clipping.
        """
        self.optimizer.hold(self.model)
        if self.config.accumulate == 1:
            loss, norm = self._whole(starts)
        else:
            total, loss = None, mx.array(0.0)
            # [accumulate B] starts, B at a time.
            for part in starts.split(self.config.accumulate):
                part_loss, total = self._micro(total, part)
                loss = loss + part_loss / self.config.accumulate
                # Otherwise the graphs of all micro-batches would be in memory at once.
                mx.eval(loss, total, self.state)
            loss, norm = self._finish(loss, total)
        self.optimizer.leave(self.model)
        return loss, norm

    def in_phases(self, starts: Starts) -> Iterator[Any]:
        """Take a step in two phases, yielding what to evaluate after each one, for measurements.

        The gradients are ready before the optimizer begins. A compiled step has only one phase.
        """
        # Nothing within a compiled step can be evaluated on its own.
        if compiles_step(self.config.compile) or self.config.accumulate > 1:
            yield [self(starts), self.state]
            return
        self.optimizer.hold(self.model)
        loss, gradients = self._gradients(starts)
        yield [loss, gradients]
        yield [self._apply(loss, gradients), self.state]
        self.optimizer.leave(self.model)

    @property
    def state(self) -> list:
        """Return everything that a step changes, for `mx.eval`."""
        return [self.model.state, self.optimizer.state, self.optimizer.held, mx.random.state]

    def _gradients(self, starts: Starts) -> tuple[Scalar, dict]:
        return self._sharded(self.objective.gather(starts))

    def _step(self, starts: Starts) -> tuple[Scalar, Scalar]:
        return self._apply(*self._gradients(starts))

    def _micro_batch(self, total: dict | None, starts: Starts) -> tuple[Scalar, dict]:
        loss, gradients = self._gradients(starts)
        # Micro-batches have equal sizes, so their mean is the batch's.
        gradients = tree_map(lambda g: g / self.config.accumulate, gradients)
        return loss, gradients if total is None else tree_map(mx.add, total, gradients)

    def _apply(self, loss: Scalar, gradients: dict) -> tuple[Scalar, Scalar]:
        """Move the weights; return the loss, and the norm of the gradients."""
        return loss, self.optimizer.update(self.model, gradients, self.config.clip or math.inf)

    def _loss(self, batch: Sequence[mx.array], weight: float | Scalar = 1.0) -> Scalar:
        """Return the weighted mean loss in the compute type, from float32 master weights."""
        if self._dtype == mx.float32:
            return self.objective.loss(self.model, batch) * weight
        # The gradients flow through the cast, so they are float32 like the masters.
        masters = self.model.trainable_parameters()
        self.model.update(tree_map(lambda p: p.astype(self._dtype), masters))
        loss = self.objective.loss(self.model, batch)
        # The optimizer must see the float32 weights again.
        self.model.update(masters)
        return loss * weight
