"""Several seeds of one form, trained side by side in one process.

Their steps are one mapped computation (`Vmapped`) or taken one after the other (`sequential`). This
is built on `Trainer`, `TrainStep` and the loop's `between_steps`, which do not know of replicas.
"""

import math
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import mlx.core as mx
from jaxtyping import Float, Integer
from mlx.utils import tree_map

from mlx_attn.attention.attention import explicit_attention
from mlx_attn.cpu import single_stream
from mlx_attn.errors import ConfigError
from mlx_attn.text.corpus import Corpus
from mlx_attn.training.checkpoint import get_state, nested, set_state
from mlx_attn.training.config import Settings
from mlx_attn.training.events import Event, Failed
from mlx_attn.training.loop import Monitor, between_steps, never
from mlx_attn.training.step import TrainStep, compiled
from mlx_attn.training.trainer import Diverged, Trainer, translate_mlx_errors

VARIED = frozenset({"seed", "init_seed", "lr", "min_lr", "muon_lr"})
"""The settings in which replicas may differ."""

State = dict[str, mx.array]
PerReplica = Float[mx.array, " N"]


class Replica(Trainer):
    """A training beside others in one process.

    While steps are taken together, `stacked` gets this replica's state out of those of all.
    """

    stacked: Callable[[], State] | None = None

    def sync(self) -> None:
        """Bring weights and optimizer up to date."""
        if self.stacked:
            set_state(self.stacked(), self.model, self.optimizer)


def replicas_of(settings: Sequence[Settings], corpus: Corpus) -> list[Replica]:
    """A training for each of the settings, which differ in `VARIED` alone.

    Raises:
        ConfigError: They differ in more; or they have dropout, or a budget of minutes.
    """
    check_alike(settings)
    replicas = [Replica(each, corpus) for each in settings]
    for replica in replicas[1:]:
        # One copy of the text serves all.
        replica.step.objective = replicas[0].step.objective
    return replicas


def with_seeds(settings: Settings, count: int) -> list[Settings]:
    """The settings with their own seed and those after it."""
    first = settings.training.seed
    recipes = [replace(settings.training, seed=first + i) for i in range(count)]
    return [replace(settings, training=recipe) for recipe in recipes]


def check_alike(settings: Sequence[Settings]) -> None:
    """Refuse what cannot be trained as replicas; see `replicas_of`."""
    facts = [
        {"drop_rate": 0.0, **each.model, **asdict(each.training), **asdict(each.text)}
        for each in settings
    ]
    first = facts[0]
    for other in facts[1:]:
        for key, value in first.items():
            if key not in VARIED and other[key] != value:
                raise ConfigError(
                    f"replicas have one form: {key} is {value!r} and {other[key]!r}; what may "
                    f"differ: {', '.join(sorted(VARIED))}"
                )
    if first["drop_rate"]:
        raise ConfigError(
            f"drop_rate={first['drop_rate']:g}: replicas would share MLX's one stream of random "
            "numbers, and so their masks: train without dropout, or one seed after another"
        )
    if first["minutes"]:
        raise ConfigError(
            f"minutes={first['minutes']:g} would be shared by all replicas, so that none would be "
            "the training it stands for: bound them by steps or epochs"
        )


class ReplicaStep:
    """Trains N models by one step at a call.

    Args:
        single: The step of one of them, whose model and optimizer serve as the form of all.
        states: What `get_state` gives of each.

    Attributes:
        stack: The states, stacked along a first axis N; a call replaces them.
    """

    def __init__(self, single: TrainStep, states: Sequence[Mapping[str, mx.array]]):
        self.n = len(states)
        self.stack = {name: mx.stack([state[name] for state in states]) for name in states[0]}
        self.model, self.optimizer = single.model, single.optimizer
        self.objective, self.config = single.objective, single.config
        self._dtype = getattr(mx, self.config.dtype)
        self._loss_and_grad: Any = mx.value_and_grad(self._sum_of_losses)
        self._gradients = compiled(self._losses_and_gradients, self.config, [self.stack])
        self._update = compiled(self._updated, self.config, [self.stack])

    def __call__(self, starts: Integer[mx.array, "N B"]) -> tuple[PerReplica, PerReplica]:
        """Train on the windows that start there: losses and gradient norms, as of `TrainStep`."""
        n, losses, total = self.config.accumulate, mx.zeros(self.n), None
        for part in starts.split(n, axis=1):
            part_losses, gradients = self._gradients(self.objective.fetch(part.reshape(-1)))
            gradients = tree_map(lambda g: g / n, gradients)
            total = gradients if total is None else tree_map(mx.add, total, gradients)
            losses = losses + part_losses / n
            if n > 1:
                mx.eval(losses, total)
        return losses, self._update(total)

    def schedule(self, optimizers: Sequence[list[dict]]) -> None:
        """Take the learning rates of the replicas' optimizers, given by their states."""
        for group, states in enumerate(zip(*optimizers, strict=True)):
            rates = mx.stack([state["learning_rate"] for state in states])
            self.stack[f"optimizer.{group}.learning_rate"] = rates

    def share(self, place: int) -> State:
        """The state of the replica at this place."""
        return {name: array[place] for name, array in self.stack.items()}

    def _losses_and_gradients(self, fetched: Any) -> tuple[PerReplica, dict]:
        """The mean loss of every replica on its own windows, and the gradients, stacked."""
        batch = self.objective.gather(fetched)  # of windows [N * B, T + 1]
        batch = tree_map(lambda array: array.reshape(self.n, -1, *array.shape[1:]), batch)
        with self._borrowed():
            (_, losses), gradients = self._loss_and_grad(nested(self.stack)["model"], batch)
        return losses, gradients

    def _sum_of_losses(self, weights: dict, batch: Any) -> tuple[mx.array, PerReplica]:
        """The sum, whose gradient by the weights of a replica is that of the replica's loss."""

        def loss(weights: dict, batch: Any) -> mx.array:
            self.model.update(weights)
            return self.objective.loss(self.model, batch)

        mapped: Any = mx.vmap(single_stream(loss))
        losses = mapped(tree_map(lambda array: array.astype(self._dtype), weights), batch)
        return losses.sum(), losses

    def _updated(self, gradients: dict) -> PerReplica:
        def one(state: State, gradients: dict) -> tuple[mx.array, State]:
            set_state(state, self.model, self.optimizer)
            norm = self.optimizer.update(self.model, gradients, self.config.clip or math.inf)
            return norm, get_state(self.model, self.optimizer)

        with self._borrowed():
            mapped: Any = mx.vmap(single_stream(one))
            norms, moved = mapped(self.stack, gradients)
        self.stack.update(moved)
        return norms

    @contextmanager
    def _borrowed(self) -> Iterator[None]:
        """Let the map write into the model and the optimizer, and then undo what it wrote.

        MLX's own attention cannot be mapped: a kernel that saves numbers for its gradient has more
        outputs than the graph that `mx.vmap` puts in its place.
        """
        before = get_state(self.model, self.optimizer)
        layers = [block.att for block in self.model.trf_blocks]
        paths = [layer.attend for layer in layers]
        try:
            for layer in layers:
                layer.attend = explicit_attention
            yield
        finally:
            for layer, path in zip(layers, paths, strict=True):
                layer.attend = path
            set_state(before, self.model, self.optimizer)


Launched = list[tuple[mx.array, mx.array]]
"""The loss and the gradient norm of every replica."""

Launch = Callable[[Sequence[Replica]], Launched]


def sequential(replicas: Sequence[Replica]) -> Launched:
    """One step of each, one after the other: the same bits as separate trainings."""
    return [replica.launch_step() for replica in replicas]


class Vmapped:
    """One step of all as one computation; the losses are those of `sequential` to rounding.

    The replicas are stacked anew when they are others than at the call before.
    """

    def __init__(self):
        self._replicas: list[Replica] = []
        self._step: ReplicaStep | None = None

    def __call__(self, replicas: Sequence[Replica]) -> Launched:
        """Launch the next step of these, which are at the same one."""
        step = self._step_of(replicas)
        for replica in replicas:
            replica.optimizer.schedule(replica.factor())
        step.schedule([replica.optimizer.state for replica in replicas])
        results = step(mx.stack([replica.starts() for replica in replicas]))
        pairs = [(results[0][i], results[1][i]) for i in range(len(replicas))]
        mx.async_eval(pairs, step.stack)
        for replica in replicas:
            replica.progress.step += 1
        return pairs

    def _step_of(self, replicas: Sequence[Replica]) -> ReplicaStep:
        if self._step is None or self._replicas != list(replicas):
            for replica in self._replicas:
                replica.sync()
                replica.stacked = None
            self._replicas = list(replicas)
            states = [get_state(replica.model, replica.optimizer) for replica in replicas]
            self._step = ReplicaStep(replicas[0].step, states)
            for place, replica in enumerate(replicas):
                replica.stacked = partial(self._step.share, place)
        return self._step


ROUNDS = 5
WORTH_IT = 1.2
"""A smaller gain is not worth results that differ in the last digits."""


def step_times(
    settings: Sequence[Settings], corpus: Corpus, rounds: int = ROUNDS
) -> tuple[float, float]:
    """Seconds of one step of all: in turn, and together; the best of some rounds.

    Trains throw-away models.
    """
    kinds: list[tuple[Launch, list[Replica]]] = [
        (launch, replicas_of(settings, corpus)) for launch in (sequential, Vmapped())
    ]
    times = [[_timed(*kind) for kind in kinds] for _ in range(rounds + 1)]
    apart, together = (min(column) for column in zip(*times[1:], strict=True))
    return apart, together


def step_seconds(settings: Settings, corpus: Corpus, rounds: int = ROUNDS) -> float:
    """Seconds of one step of one training alone; see `step_times`."""
    group = replicas_of([settings], corpus)
    return min([_timed(sequential, group) for _ in range(rounds + 1)][1:])


def is_faster(settings: Sequence[Settings], corpus: Corpus) -> bool:
    """Whether training these together is faster by a fifth or more; see `step_times`."""
    if len(settings) == 1:
        return False
    apart, together = step_times(settings, corpus)
    return apart / together >= WORTH_IT


def _timed(launch: Launch, group: Sequence[Replica]) -> float:
    start = time.perf_counter()
    mx.eval(launch(group))
    mx.synchronize()
    return time.perf_counter() - start


def train_replicas(
    replicas: Sequence[Replica], launch: Launch, should_stop: Callable[[], bool] = never
) -> Iterator[tuple[Replica, Event]]:
    """Train every replica until a bound is reached, and yield what happens.

    Args:
        replicas: Their run directories are kept up to date.
        launch: Takes a step of each: `Vmapped()` or `sequential`.
        should_stop: Asked before every step; when it says so, all are saved and end.
    """
    mx.reset_peak_memory()
    monitors = {replica: Monitor(replica) for replica in replicas}
    for replica, monitor in monitors.items():
        replica.model.train()
        yield replica, monitor.started()
    launched: dict[Replica, tuple[mx.array, mx.array]] = {}
    ready, stop = list(replicas), False
    with translate_mlx_errors():
        while monitors:
            stop = stop or should_stop()  # asked once for all, so that all are saved at one step
            for replica in ready:
                if (yield from _advance(replica, monitors[replica], launched.get(replica), stop)):
                    del monitors[replica]
            # Those that resumed at an earlier step catch up first.
            least = min((replica.progress.step for replica in monitors), default=0)
            ready = [replica for replica in monitors if replica.progress.step == least]
            for monitor in monitors.values():
                monitor.pause()  # a validation of one replica is no training time of the others
            launched = dict(zip(ready, launch(ready) if ready else [], strict=True))


def _advance(
    replica: Replica, monitor: Monitor, launched: tuple[mx.array, mx.array] | None, stop: bool
) -> Generator[tuple[Replica, Event], None, bool]:
    """The events of one replica up to its next step; returns whether there is none."""
    try:
        if launched:
            monitor.launched(launched)
        events = between_steps(replica, monitor, lambda: stop)
        while True:
            yield replica, next(events)
    except StopIteration as end:
        if end.value:
            yield replica, monitor.ended(end.value)
        return bool(end.value)
    except Diverged as error:
        yield replica, Failed(step=replica.progress.step, message=str(error))
        return True
