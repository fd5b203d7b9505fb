"""One step of several trainings of one form, as one computation.

The states of all are stacked along a new first axis, the replicas'. The forward pass and the update
are those of one training, mapped over that axis by `mx.vmap`. The loss is taken and differentiated
outside of the map, as the sum over the replicas, whose gradients are apart because their weights
are: operations that keep numbers for their gradient cannot be mapped on every back end.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import mlx.core as mx
from jaxtyping import Integer
from mlx.utils import tree_map

from mlx_attn.streams import undivided
from mlx_attn.training.objective import Numbers
from mlx_attn.training.state import MODEL, gathered, nested, put_back, under
from mlx_attn.training.step import TrainStep

State = dict[str, mx.array]


class ReplicaStep(TrainStep):
    """Trains N models by one step at a call.

    Args:
        single: The step of one of them, whose model and optimizer serve as the form of all.
        states: What `gathered` gives of each.

    Attributes:
        stack: The states, stacked; a call replaces them.
    """

    def __init__(self, single: TrainStep, states: Sequence[Mapping[str, mx.array]]):
        self.stack: State = {
            name: mx.stack([state[name] for state in states]) for name in states[0]
        }
        super().__init__(single.model, single.optimizer, single.objective, single.config)
        self._summed: Any = mx.value_and_grad(self._sum_of_losses)
        self._forwards: Any = mx.vmap(self._forward)

    def schedule(self, rates: Sequence[Sequence[float]]) -> None:
        """Set the learning rates: of every replica those of its groups."""
        for group, of_group in enumerate(zip(*rates, strict=True)):
            self.stack[f"optimizer.{group}.learning_rate"] = mx.array(of_group)

    def share(self, place: int) -> State:
        """The state of the replica at this place."""
        return {name: array[place] for name, array in self.stack.items()}

    @property
    def state(self) -> list:
        """All that a step changes, for `mx.eval`."""
        return [self.stack]

    def _gradients(self, batch: Any) -> tuple[Numbers, dict]:
        with self._borrowed():
            (_, losses), gradients = self._summed(nested(under(MODEL, self.stack)), batch)
        return losses, gradients

    def _sum_of_losses(self, weights: dict, batch: Any) -> tuple[mx.array, Numbers]:
        computed = tree_map(lambda array: array.astype(self._dtype), weights)
        losses = self.objective.loss(partial(self._forwards, computed), batch)
        return losses.sum(), losses

    def _forward(self, weights: dict, tokens: Integer[mx.array, "B T"]) -> mx.array:
        """The logits of one replica."""
        self.model.update(weights)
        return self.model(tokens)

    def _update(self, gradients: dict) -> Numbers:
        def one(state: State, gradients: dict) -> tuple[mx.array, State]:
            put_back(state, self.model, self.optimizer)
            norm = TrainStep._update(self, gradients)
            return norm, gathered(self.model, self.optimizer)

        with self._borrowed():
            mapped: Any = mx.vmap(undivided(one))
            norms, moved = mapped(self.stack, gradients)
        self.stack.update(moved)
        return norms

    @contextmanager
    def _borrowed(self) -> Iterator[None]:
        """Let the map write into the model and the optimizer, and then undo what it wrote."""
        before = gathered(self.model, self.optimizer)
        try:
            self._allow_fused(False)
            yield
        finally:
            self._allow_fused(True)
            put_back(before, self.model, self.optimizer)

    def _allow_fused(self, allowed: bool) -> None:
        for block in self.model.trf_blocks:
            block.att.fused = allowed
