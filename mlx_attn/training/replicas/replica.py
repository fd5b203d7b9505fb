"""One of several trainings that take their steps together."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace

import mlx.core as mx

from mlx_attn.errors import ConfigError
from mlx_attn.text.corpus import Corpus
from mlx_attn.training.evaluation import Evaluation
from mlx_attn.training.reports import Tracked
from mlx_attn.training.settings import Settings
from mlx_attn.training.state import gathered, put_back
from mlx_attn.training.trainer import Trainer

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
        return gathered(self.model, self.optimizer)

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
            put_back(self._share(), self.model, self.optimizer)


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
