"""How the next step of several trainings is launched: as one computation, or one after another."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import mlx.core as mx

from mlx_attn.training.log import Number
from mlx_attn.training.replicas.replica import Replica
from mlx_attn.training.replicas.step import ReplicaStep

Launched = list[tuple[Number, Number]]
"""Of every replica its loss and its gradient norm."""

Launch = Callable[[Sequence[Replica]], Launched]


def in_turn(replicas: Sequence[Replica]) -> Launched:
    """One step of each, as many computations: the same bits as trainings of their own."""
    return [replica.launch_step() for replica in replicas]


class Together:
    """One step of all as one computation; the losses are those of `in_turn` to rounding.

    The replicas are stacked anew when they are others than at the call before.
    """

    def __init__(self):
        self._replicas: list[Replica] = []
        self._step: ReplicaStep | None = None

    def __call__(self, replicas: Sequence[Replica]) -> Launched:
        """Launch the next step of these, which are at the same one."""
        step = self._step_of(replicas)
        step.schedule([replica.optimizer.rates(replica.factor) for replica in replicas])
        losses, norms = step(mx.stack([replica.starts() for replica in replicas]))
        mx.async_eval(losses, norms, *step.state)
        for replica in replicas:
            replica.progress.step += 1
        return [(Element(losses, i), Element(norms, i)) for i in range(len(replicas))]

    def _step_of(self, replicas: Sequence[Replica]) -> ReplicaStep:
        if self._step is None or self._replicas != list(replicas):
            for replica in self._replicas:
                replica.take_back()
            self._replicas = list(replicas)
            self._step = ReplicaStep(replicas[0].step, [replica.state() for replica in replicas])
            for place, replica in enumerate(replicas):
                replica.lend(partial(self._step.share, place))
        return self._step


class Element:
    """One number of an array, read when it is asked for: all of them are one transfer."""

    def __init__(self, array: mx.array, place: int):
        self.array, self.place = array, place

    def item(self) -> float:
        """The number; waits for it."""
        numbers: Any = self.array.tolist()
        return numbers[self.place]
