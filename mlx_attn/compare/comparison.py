"""Which trainings a verdict rests on: every arm, under every budget, with every seed."""

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from statistics import fmean, median, stdev
from typing import Any

from mlx_attn.compare.plan import AGAIN_SEED, ComparisonConfig, Trial, corpus_of, floor_of
from mlx_attn.compare.result import AATest, ArmResult, BudgetResult, Comparison, TrialResult, Tuning
from mlx_attn.compare.runner import (
    Began,
    ComparisonEvent,
    Concluded,
    Finished,
    Planned,
    Runner,
)
from mlx_attn.compare.statistics import judge, minimum_detectable_effect
from mlx_attn.compare.trial import Diverged, Store
from mlx_attn.compare.tuning import TunedArm, Tuner, trial_for
from mlx_attn.errors import ConfigError, RunError
from mlx_attn.model.config import GPTConfig
from mlx_attn.model.gpt import model_cost
from mlx_attn.text.corpus import Corpus

FEWEST_SEEDS, MOST_SEEDS = 3, 30
"""How many seeds a plan by time may choose."""


@dataclass(frozen=True, slots=True)
class TrialPlan:
    """The trainings of a comparison's verdict.

    Attributes:
        protocol: The comparison.
        choices: The arms with their learning rates, the control first.
        vocab_size: Tokens of the text's vocabulary.
        speeds: Tokens per second of each arm, by name.
    """

    protocol: ComparisonConfig
    choices: Sequence[TunedArm]
    vocab_size: int
    speeds: Mapping[str, float]

    @property
    def control(self) -> TunedArm:
        """What the other arms are compared with."""
        return self.choices[0]

    def changes(self, budget: str, choice: TunedArm) -> dict[str, Any]:
        """What an arm changes under a budget.

        Raises:
            ConfigError: The arm cannot be had under it.
        """
        return changes_for(
            budget, self.protocol, self.control, choice, self.vocab_size, self.speeds
        )

    def trainings(self, budget: str, choice: TunedArm, seeds: Sequence[int]) -> list[Trial]:
        """The trainings of an arm under a budget, seed by seed.

        Raises:
            ConfigError: The arm cannot be had under this budget.
        """
        changes = self.changes(budget, choice)
        return [trial_for(self.protocol, choice, seed, changes) for seed in seeds]

    def again(self, seeds: Sequence[int]) -> list[Trial]:
        """The control once more, seed by seed: the same batches, other weights to start with."""
        return [
            trial_for(self.protocol, self.control, seed, {"init_seed": AGAIN_SEED + seed})
            for seed in seeds
        ]

    def repeat(self, seeds: Sequence[int]) -> Trial:
        """The control's first training once more, the same in every respect."""
        return replace(trial_for(self.protocol, self.control, seeds[0]), repeat=1)

    def all(self, seeds: Sequence[int]) -> Iterator[Trial]:
        """Every training, seed by seed, so that an interruption leaves whole pairs behind."""
        if self.protocol.noise:
            yield self.repeat(seeds)
        for seed in seeds:
            yield from self._of_seed(seed)

    def seeds_within(self, seconds: float, tuning: Mapping[str, Sequence[TrialResult]]) -> int:
        """How many seeds' trainings take so long, judged by the time that tuning took.

        Args:
            seconds: Of all processes together.
            tuning: Trainings of each arm.

        Raises:
            ConfigError: There is no time for `FEWEST_SEEDS`.
        """
        per_seed = self.seconds(tuning)
        seeds = int(seconds / per_seed)
        if seeds < FEWEST_SEEDS:
            raise ConfigError(
                f"{self.protocol.minutes:g} minutes leave time for {max(seeds, 0)} seeds and at "
                f"least {FEWEST_SEEDS} are needed: give about {FEWEST_SEEDS * per_seed / 60:.0f} "
                "more minutes of processor time, fewer arms, fewer budgets or fewer steps"
            )
        return min(seeds, MOST_SEEDS)

    def seconds(self, tuning: Mapping[str, Sequence[TrialResult]]) -> float:
        """What the trainings of one seed take, of all processes together."""
        each = {name: fmean(t.seconds for t in done) for name, done in tuning.items() if done}
        usual = fmean(each.values())
        cells = {cell.digest: cell for cell in self._of_seed(0)}.values()
        return sum(each.get(cell.arm, usual) * self._length(cell) for cell in cells)

    def _of_seed(self, seed: int) -> Iterator[Trial]:
        for choice, budget in chain.from_iterable(
            ((choice, budget) for budget in self.protocol.budgets) for choice in self.choices
        ):
            try:
                yield from self.trainings(budget, choice, [seed])
            except ConfigError:
                continue  # The result says that this arm is refused, and why.
        if self.protocol.noise:
            yield from self.again([seed])

    def _length(self, cell: Trial) -> float:
        """How much longer than its arm's tuning a training is."""
        return cell.settings["steps"] / self.protocol.settings(self.control.arm).training.steps


NEAREST = 0.005
"""How far, as a share, the numbers of two arms may be apart and still count as equal."""


def equal_parameters(control: GPTConfig, arm: GPTConfig) -> dict[str, Any]:
    """The feed-forward width that gives an arm as many trained numbers as the control has.

    Raises:
        ConfigError: No width does; the message has the numbers.
    """
    wanted, has = model_cost(control).parameters, model_cost(arm).parameters
    per_width = model_cost(replace(arm, hidden_dim=arm.hidden_dim + 1)).parameters - has
    hidden = arm.hidden_dim + round((wanted - has) / per_width)
    if hidden < 1:
        raise ConfigError(
            f"it has {has - wanted:,} parameters more than the control, and its feed-forward "
            f"layers have only {arm.hidden_dim * per_width:,} to give: use fewer heads"
        )
    gap = abs(model_cost(replace(arm, hidden_dim=hidden)).parameters - wanted)
    if gap > NEAREST * wanted:
        raise ConfigError(f"the nearest width leaves a difference of {gap:,} parameters")
    return {} if hidden == arm.hidden_dim else {"hidden_dim": hidden}


def equal_seconds(steps: int, control: float, arm: float) -> dict[str, Any]:
    """The steps that an arm does in the time in which the control does `steps`.

    Args:
        steps: Of the control.
        control: Tokens per second of the control's training.
        arm: The same of the arm.
    """
    return {"steps": max(1, round(steps * arm / control))}


def changes_for(
    budget: str,
    protocol: ComparisonConfig,
    control: TunedArm,
    choice: TunedArm,
    vocab_size: int,
    speeds: Mapping[str, float],
) -> dict[str, Any]:
    """What an arm changes under a budget; nothing for the control.

    Raises:
        ConfigError: The arm cannot be had under this budget.
    """
    if choice is control or budget == "steps":
        return {}
    if budget == "seconds":
        if choice.arm.name not in speeds or control.arm.name not in speeds:
            raise ConfigError("its speed is not known: it diverged with every learning rate")
        steps = protocol.settings(control.arm).training.steps
        return equal_seconds(steps, speeds[control.arm.name], speeds[choice.arm.name])
    configs = [protocol.settings(c.arm).model_config(vocab_size) for c in (control, choice)]
    return equal_parameters(*configs)


FLOAT_BYTES = 4


def summarize(
    layout: TrialPlan,
    store: Store,
    corpus: Corpus,
    tunings: Sequence[Tuning],
    seeds: Sequence[int],
    versions: Mapping[str, Any],
) -> Comparison:
    """The result of a comparison whose trainings are all finished.

    Raises:
        RunError: The control diverged.
    """
    protocol = layout.protocol
    budgets = tuple(_budget(budget, layout, store, seeds) for budget in protocol.budgets)
    everything = {cell.digest: cell for cell in layout.all(seeds)}.values()
    outcomes = [store[cell] for cell in everything]
    return Comparison(
        name=protocol.name,
        question=protocol.question,
        command=protocol.command,
        control=layout.control.arm.name,
        settings=_shared(layout),
        delta=protocol.delta,
        confidence=protocol.confidence,
        text={"name": corpus.name, "digest": corpus.digest, "floor": floor_of(corpus)},
        versions=dict(versions),
        noise=_noise(layout, store, seeds) if protocol.noise else None,
        tunings=tuple(tunings),
        budgets=budgets,
        seconds=sum(o.seconds for o in outcomes if isinstance(o, TrialResult)),
    )


def _shared(layout: TrialPlan) -> dict[str, Any]:
    """All settings of the control but what sets arms apart, for people."""
    settings = layout.protocol.settings(layout.control.arm)
    own = {key for choice in layout.choices for key in choice.arm.settings}
    flat = {**settings.model, **settings.training.as_dict(), "data": settings.text.data}
    return {"preset": settings.preset, **{k: v for k, v in flat.items() if k not in own}}


def _budget(budget: str, layout: TrialPlan, store: Store, seeds: Sequence[int]) -> BudgetResult:
    arms: list[ArmResult] = []
    refused: dict[str, str] = {}
    for choice in layout.choices:
        try:
            arms.append(_arm(budget, choice, layout, store, seeds))
        except ConfigError as error:
            refused[choice.arm.name] = str(error)
    if layout.control.arm.name in refused:
        raise RunError(
            f"the control diverged, so there is nothing to compare with: "
            f"{refused[layout.control.arm.name]}"
        )
    differences = {arm.arm: _differences(arm, arms[0]) for arm in arms[1:]}
    protocol = layout.protocol
    verdicts = judge(differences, protocol.delta, protocol.confidence) if differences else {}
    return BudgetResult(budget=budget, arms=tuple(arms), refused=refused, verdicts=verdicts)


def _arm(
    budget: str, choice: TunedArm, layout: TrialPlan, store: Store, seeds: Sequence[int]
) -> ArmResult:
    """An arm's trainings and its size.

    Raises:
        ConfigError: It cannot be had under this budget, or a training diverged.
    """
    changes = {**choice.changes, **layout.changes(budget, choice)}
    config = layout.protocol.settings(choice.arm, changes).model_config(layout.vocab_size)
    cost = model_cost(config)
    return ArmResult(
        arm=choice.arm.name,
        settings={**choice.arm.settings, **changes},
        lr_scale=choice.lr_scale,
        params=cost.parameters,
        multiply_adds=cost.multiply_adds,
        cache_bytes_per_token=FLOAT_BYTES * cost.cache_floats,
        trainings=_finished(layout.trainings(budget, choice, seeds), store),
    )


def _finished(cells: Sequence[Trial], store: Store) -> tuple[TrialResult, ...]:
    trainings: list[TrialResult] = []
    for cell in cells:
        outcome = store[cell]
        if isinstance(outcome, Diverged):
            raise ConfigError(f"with seed {cell.seed} it diverged: {outcome.message}")
        trainings.append(outcome)
    return tuple(trainings)


def _differences(arm: ArmResult, control: ArmResult) -> list[float]:
    """Loss of the arm less that of the control, seed by seed."""
    pairs = zip(arm.trainings, control.trainings, strict=True)
    return [one.val_loss - other.val_loss for one, other in pairs]


def _noise(layout: TrialPlan, store: Store, seeds: Sequence[int]) -> AATest:
    """The control against itself.

    Raises:
        RunError: It diverged.
    """
    try:
        once = _finished(layout.trainings("steps", layout.control, seeds), store)
        again = _finished(layout.again(seeds), store)
        repeated = _finished([layout.repeat(seeds)], store)
    except ConfigError as error:
        raise RunError(f"the control against itself: {error}") from error
    losses = [training.val_loss for training in once]
    differences = [a.val_loss - b.val_loss for a, b in zip(again, once, strict=True)]
    name, protocol = layout.control.arm.name, layout.protocol
    return AATest(
        repeat_difference=abs(repeated[0].val_loss - losses[0]),
        seed_spread=stdev(losses) if len(losses) > 1 else 0.0,
        verdict=judge({name: differences}, protocol.delta, protocol.confidence)[name],
    )


class ComparisonRun:
    """One comparison.

    Args:
        protocol: What to do.
        runner: Does the trainings, and keeps them.
        versions: What made the result, for the record.

    Raises:
        ConfigError: An arm's settings cannot work.
        RunError: The text cannot be read.
    """

    def __init__(self, protocol: ComparisonConfig, runner: Runner, versions: Mapping[str, Any]):
        self.runner, self.store = runner, runner.store
        self.versions = {**versions, "trained": runner.mode}
        # Prepared here, once, before several processes want it at the same time.
        self.corpus = corpus_of(protocol.settings(protocol.arms[0]))
        self.protocol = replace(protocol, text=self.corpus.digest)
        self.vocab_size = self.corpus.tokenizer.vocab_size
        for arm in protocol.arms:
            protocol.settings(arm).model_config(self.vocab_size)

    def __iter__(self) -> Iterator[ComparisonEvent]:
        """Do what is not done yet.

        Raises:
            ConfigError: The time is too short.
            RunError: A process failed, the disk cannot be written, or the control diverged.
        """
        tuner = Tuner(self.protocol, self.store, lambda cells: self._train("tuning", cells))
        choices, tunings = yield from tuner()
        tuning = yield from self._timed(tuner, choices, tunings)
        speeds = {name: median(t.tok_s for t in done) for name, done in tuning.items()}
        layout = TrialPlan(self.protocol, choices, self.vocab_size, speeds)
        seeds = range(self._seeds(layout, tuning))
        minutes = layout.seconds(tuning) * len(seeds) / self.runner.size / 60
        yield Planned(len(seeds), minutes, self._resolves(tuner, choices, len(seeds)))
        yield from self._train("verdict", layout.all(seeds))
        yield Concluded(summarize(layout, self.store, self.corpus, tunings, seeds, self.versions))

    def _train(self, stage: str, cells: Iterable[Trial]) -> Generator[ComparisonEvent, None, None]:
        """Do the trainings that the store lacks."""
        wanted = {cell.digest: cell for cell in cells}
        missing = self.runner.missing(wanted.values())
        yield Began(stage, len(wanted), len(wanted) - len(missing))
        taken: list[float] = []
        for left, (cell, outcome) in zip(
            range(len(missing) - 1, -1, -1), self.runner(missing), strict=True
        ):
            taken += [outcome.seconds] if isinstance(outcome, TrialResult) else []
            each = sum(taken) / max(1, len(taken))
            yield Finished(cell, outcome, left, left * each / self.runner.size)

    def _timed(
        self, tuner: Tuner, choices: Sequence[TunedArm], tunings: Sequence[Tuning]
    ) -> Generator[ComparisonEvent, None, dict[str, list[TrialResult]]]:
        """Finished trainings of every arm, for their times: those of tuning, or a first seed."""
        if tunings:
            first = [tuning for tuning in tunings if tuning.knob == "lr"]
            return {t.arm: done for t in first if (done := tuner.trainings(t))}
        cells = [trial_for(self.protocol, choice, 0) for choice in choices]
        yield from self._train("first seed", cells)
        outcomes = {cell.arm: self.store[cell] for cell in cells}
        return {arm: [o] for arm, o in outcomes.items() if isinstance(o, TrialResult)}

    def _resolves(self, tuner: Tuner, choices: Sequence[TunedArm], seeds: int) -> float | None:
        """The smallest difference to expect to find, judged by the spread seen while tuning."""
        spread = tuner.spread(choices) if self.protocol.tunes else None
        if not spread or seeds < 2:
            return None
        arms = len(choices) - 1
        return minimum_detectable_effect(
            spread, seeds, confidence=self.protocol.confidence, arms=arms
        )

    def _seeds(self, layout: TrialPlan, tuning: Mapping[str, Sequence[TrialResult]]) -> int:
        """Seeds of the verdict. Counted from what trainings took, so that resuming changes none."""
        if self.protocol.seeds:
            return self.protocol.seeds
        spent = sum(training.seconds for done in tuning.values() for training in done)
        left = 60 * self.protocol.minutes * self.runner.size - spent
        return layout.seeds_within(left, tuning)
