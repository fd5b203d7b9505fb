"""One of several trainings that take their steps together."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import mlx.core as mx
from jaxtyping import Integer
from mlx.utils import tree_map

from mlx_attn.attention.attention import explicit_attention, fastest_attention
from mlx_attn.cpu import single_stream
from mlx_attn.errors import ConfigError
from mlx_attn.text.corpus import Corpus
from mlx_attn.training.batches import Numbers
from mlx_attn.training.checkpoint import MODEL, get_state, nested, set_state, strip_prefix
from mlx_attn.training.config import Settings
from mlx_attn.training.evaluation import Evaluation
from mlx_attn.training.events import Event, Failed, Tracked
from mlx_attn.training.loop import Monitor, Number, Stopwatch, never, training_events
from mlx_attn.training.step import TrainStep
from mlx_attn.training.trainer import Diverged, Trainer, translate_mlx_errors

VARIED = frozenset({"seed", "init_seed", "lr", "min_lr", "muon_lr"})
"""The settings in which replicas may differ."""

State = dict[str, mx.array]


class Replica(Trainer):
    """A training beside others in one process.

    While it takes its steps together with others, its state is in theirs; it comes back when it is
    evaluated, tracked or saved.
    """

    def __init__(self, settings: Settings, corpus: Corpus):
        super().__init__(settings, corpus)
        self._share: Callable[[], State] | None = None

    def evaluate(self) -> tuple[Evaluation, bool]:
        """As every training, with its own weights."""
        self.settle()
        return super().evaluate()

    def track(self) -> Tracked:
        """As every training, with its own weights."""
        self.settle()
        return super().track()

    def save(self) -> None:
        """As every training, with its own state."""
        self.settle()
        super().save()

    def state(self) -> State:
        """All that its steps change, as it is now."""
        self.settle()
        return get_state(self.model, self.optimizer)

    def lend(self, share: Callable[[], State]) -> None:
        """Its steps are taken elsewhere; `share` gets the state that they lead to."""
        self._share = share

    def take_back(self) -> None:
        """Its steps are its own again."""
        self.settle()
        self._share = None

    def settle(self) -> None:
        """Bring weights and optimizer up to date."""
        if self._share:
            set_state(self._share(), self.model, self.optimizer)


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
    """The settings with their own seed and those after it.

    Raises:
        ConfigError: There are not that many seeds.
    """
    first = settings.training.seed
    recipes = [replace(settings.training, seed=first + i) for i in range(count)]
    return [replace(settings, training=recipe) for recipe in recipes]


def check_alike(settings: Sequence[Settings]) -> None:
    """Refuse what cannot be trained as replicas; see `replicas_of`."""
    first, *others = (_facts(each) for each in settings)
    for other in others:
        for key, value in first.items():
            if other[key] != value:
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


def _facts(settings: Settings) -> dict:
    facts = {
        "drop_rate": 0.0,
        **settings.model,
        **asdict(settings.training),
        **asdict(settings.text),
    }
    return {key: value for key, value in facts.items() if key not in VARIED}


class ReplicaStep(TrainStep):
    """Trains N models by one step at a call.

    Args:
        single: The step of one of them, whose model and optimizer serve as the form of all.
        states: What `get_state` gives of each.

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
            (_, losses), gradients = self._summed(nested(strip_prefix(MODEL, self.stack)), batch)
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
            set_state(state, self.model, self.optimizer)
            norm = TrainStep._update(self, gradients)
            return norm, get_state(self.model, self.optimizer)

        with self._borrowed():
            mapped: Any = mx.vmap(single_stream(one))
            norms, moved = mapped(self.stack, gradients)
        self.stack.update(moved)
        return norms

    @contextmanager
    def _borrowed(self) -> Iterator[None]:
        """Let the map write into the model and the optimizer, and then undo what it wrote."""
        before = get_state(self.model, self.optimizer)
        try:
            self._allow_fused(False)
            yield
        finally:
            self._allow_fused(True)
            set_state(before, self.model, self.optimizer)

    def _allow_fused(self, allowed: bool) -> None:
        for block in self.model.trf_blocks:
            block.att.attend = fastest_attention if allowed else explicit_attention


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


ROUNDS = 5
WORTH_IT = 1.2
"""A smaller gain than this is not worth results that differ in the last digits."""


def step_times(
    settings: Sequence[Settings], corpus: Corpus, rounds: int = ROUNDS
) -> tuple[float, float]:
    """Seconds of one step of all: in turn, and together; the best of each kind.

    Trains throw-away models for a few steps. The state of MLX's random numbers is not kept, so this
    is to be called before the models of a training are made.

    Args:
        settings: Of the replicas, as for `replicas_of`.
        corpus: What they train on.
        rounds: Steps of each kind that are timed, alternating, after one that is not.
    """
    kinds: list[Launch] = [in_turn, Together()]
    pairs = [(launch, replicas_of(settings, corpus)) for launch in kinds]
    apart, together = _best_times(pairs, rounds)
    return apart, together


def step_seconds(settings: Settings, corpus: Corpus, rounds: int = ROUNDS) -> float:
    """Seconds of one step of one training alone; see `step_times`."""
    (best,) = _best_times([(in_turn, replicas_of([settings], corpus))], rounds)
    return best


def speedup(settings: Sequence[Settings], corpus: Corpus, rounds: int = ROUNDS) -> float:
    """The time of a step in turn, divided by that of one together; see `step_times`."""
    apart, together = step_times(settings, corpus, rounds)
    return apart / together


def pays_off(settings: Sequence[Settings], corpus: Corpus) -> bool:
    """Whether training these together is faster by a fifth or more; see `speedup`."""
    return len(settings) > 1 and speedup(settings, corpus) >= WORTH_IT


def _best_times(pairs: Sequence[tuple[Launch, Sequence[Replica]]], rounds: int) -> list[float]:
    """Of every kind the time of its fastest step, but for the first, which compiles."""
    times = [[_seconds(launch, group) for launch, group in pairs] for _ in range(rounds + 1)]
    return [min(column) for column in zip(*times[1:], strict=True)]


def _seconds(launch: Launch, group: Sequence[Replica]) -> float:
    """The time of one step of all."""
    start = time.perf_counter()
    for result in launch(group):
        for number in result:
            number.item()
    mx.synchronize()
    return time.perf_counter() - start


@dataclass(slots=True)
class _Going:
    """A replica on its course; `launched` is the step whose loss its log is to be told."""

    replica: Replica
    log: Monitor
    course: Iterator[Event | None]
    launched: tuple[Number, Number] | None = None
    waits: bool = False

    @property
    def step(self) -> int:
        return self.replica.progress.step

    def advance(self) -> Iterator[Event]:
        """What happens up to its next step, where it waits; it does not if there is none."""
        self.waits = False
        try:
            if self.launched:
                self.log.launched(self.launched)
            for report in self.course:
                if report is None:
                    self.waits = True
                    return
                yield report
        except Diverged as error:
            yield Failed(step=self.step, message=str(error))


def train_replicas(
    replicas: Sequence[Replica], launch: Launch, should_stop: Callable[[], bool] = never
) -> Iterator[tuple[Replica, Event]]:
    """Train every replica until a bound is reached, and yield what happens.

    Args:
        replicas: Their run directories are kept up to date.
        launch: Takes a step of each: `Together()` or `in_turn`.
        should_stop: Asked before every step; when it says so, all are saved and end.

    Raises:
        RunError: The disk cannot be written.
    """
    stops: list[bool] = []
    stopwatch = Stopwatch([replica.progress for replica in replicas])
    going = [_departing(replica, stopwatch, lambda: bool(stops)) for replica in replicas]
    mx.reset_peak_memory()
    with translate_mlx_errors():
        while going:
            # Asked once for all, so that all are saved at the same step.
            stops += [True] if should_stop() else []
            for each in going:
                for report in [] if each.waits else each.advance():
                    yield each.replica, report
            going = [each for each in going if each.waits]
            _launch_hindmost(going, launch)


def _departing(replica: Replica, stopwatch: Stopwatch, should_stop: Callable[[], bool]) -> _Going:
    replica.model.train()
    log = Monitor(replica, stopwatch)
    return _Going(replica, log, training_events(replica, log, should_stop))


def _launch_hindmost(going: Sequence[_Going], launch: Launch) -> None:
    """Launch the next step of those that have the most steps to do."""
    first = min((each.step for each in going), default=0)
    hindmost = [each for each in going if each.step == first]
    if hindmost:
        launched = launch([each.replica for each in hindmost])
        for each, each.launched in zip(hindmost, launched, strict=True):
            each.waits = False
