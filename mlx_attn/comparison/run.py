"""A comparison from plan to verdict: tune, train every arm with the same seeds, judge."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from math import log
from pathlib import Path
from statistics import fmean
from typing import Any

from mlx_attn.comparison import stages, tuning
from mlx_attn.comparison.config import MADE_HERE, Arm, ComparisonConfig
from mlx_attn.comparison.judging import Contrast, judge, judge_solving
from mlx_attn.comparison.plan import SHORTER, Trial, trial_of
from mlx_attn.comparison.result import ArmResult, Comparison, Solving, TrialResult, Verdict
from mlx_attn.comparison.runner import Runner
from mlx_attn.comparison.trial import Store
from mlx_attn.cost import model_cost
from mlx_attn.errors import ConfigError, RunError
from mlx_attn.machine.facts import versions
from mlx_attn.model.gpt import GPT
from mlx_attn.plugins import check_in_files
from mlx_attn.runs import RUNS
from mlx_attn.training.batches import batch_sampler
from mlx_attn.training.config import layer_from
from mlx_attn.training.trainer import FLOAT_BYTES

Trainings = tuple[TrialResult, ...]


class ComparisonRun:
    """One comparison; iterating trains the missing trials and yields events."""

    def __init__(self, config: ComparisonConfig, runner: Runner):
        self.runner, self.store = runner, runner.store
        arms = [config.settings(arm) for arm in config.all_arms]
        for each in arms:
            check_in_files(each.plugins)
            GPT(each.model_config(1), seed=None)  # which tries the laws of a user's choices
        # Prepared here, once, before several processes want it at the same time.
        self.corpus = arms[0].corpus()
        self.config = replace(config, text=self.corpus.fingerprint)
        self.vocab_size = self.corpus.tokenizer.vocab_size
        for each in arms:
            batch_sampler(self.corpus.train, each.model_config(1).context_length, each.training)

    def __iter__(self) -> Iterator[stages.ComparisonEvent]:
        # Both stages ask the store first, so a resumed comparison passes through here quickly.
        searches = yield from tuning.tune(self.config, self.store, partial(self.train, "tuning"))
        plan = VerdictPlan.of(self.config, searches)
        yield from self.train("verdict", plan.trials)
        yield self._concluded(plan, searches)

    def train(self, stage: str, trials: Iterable[Trial]) -> stages.Events:
        """Train the trials that the store lacks, and yield events."""
        # Arms with the same settings share a trial.
        wanted = {trial.digest: trial for trial in trials}
        missing = self.store.missing(wanted.values())
        unused = self.store.of_other_code() if missing else 0
        yield stages.Began(stage, len(wanted), len(wanted) - len(missing), unused)
        left, taken = len(missing), []
        for trial, outcome in self.runner(missing):
            left -= 1
            taken += [outcome.seconds] if isinstance(outcome, TrialResult) else []
            # Diverged trials end early and would make the rest look short.
            each = fmean(taken) if taken else 0.0
            yield stages.Finished(trial, outcome, left, left * each / self.runner.size)

    def _concluded(self, plan: "VerdictPlan", searches: Mapping[str, tuning.Search]) -> Comparison:
        """Return the result of a comparison whose trials are all in the store."""
        config = self.config
        found, diverged = plan.outcomes(self.store)
        margin = plan.margin(found)
        finished = [arm for arm in plan.arms if arm.name in found]
        trainings = {arm.name: found[arm.name] for arm in finished}
        settings = {arm.name: self._flat_settings(arm) for arm in plan.arms}
        shared = set.intersection(*({*flat.items()} for flat in settings.values()))
        searched = (trial for search in searches.values() for trial in search.trials)
        trained = {trial.digest: self.store[trial] for trial in (*plan.trials, *searched)}
        records = (record for trial in plan.trials for record in trial.plugins)
        plugins = {Path(record["path"]).name: record["sha256"] for record in records}
        return Comparison(
            name=config.name,
            question=config.question,
            command=config.command,
            control=plan.control.name,
            reference=config.reference.name if config.reference else "",
            settings=dict(
                entry for entry in settings[plan.control.name].items() if entry in shared
            ),
            settings_by_arm=settings,
            delta=margin,
            delta_tokens=config.margin.tokens,
            confidence=config.confidence,
            text={
                "name": self.corpus.name,
                "digest": self.corpus.digest,
                "floor": self.corpus.val.floor,
            },
            versions=versions() | plugins,
            tunings=tuning.tunings_of(config, searches),
            arms=tuple(self._arm_result(arm, found[arm.name]) for arm in finished),
            diverged=diverged,
            verdicts=verdicts_of(config, trainings, searches, margin),
            solving=solving_of(config, trainings),
            seconds=sum(o.seconds for o in trained.values() if isinstance(o, TrialResult)),
        )

    def _flat_settings(self, arm: Arm) -> dict[str, Any]:
        """Return all settings of an arm but those that the comparison makes for each training."""
        settings = self.config.settings(arm)
        flat = layer_from(settings.record(settings.model_config(self.vocab_size)))
        return {key: value for key, value in flat.items() if key not in MADE_HERE}

    def _arm_result(self, arm: Arm, trainings: Trainings) -> ArmResult:
        cost = model_cost(self.config.settings(arm).model_config(self.vocab_size))
        return ArmResult(
            arm=arm.name,
            lr_scale=arm.lr_scale,
            params=cost.parameters,
            cache_bytes_per_token=FLOAT_BYTES * cost.cache_floats,
            trainings=trainings,
        )


def open_comparison(
    settings: Mapping[str, Any],
    command: str,
    out: Path | None,
    jobs: int = 0,
    on: str = "",
) -> tuple[ComparisonRun, Path]:
    """Return the comparison that settings describe, and its directory: `out`, or one in runs/.

    `ComparisonConfig.of` describes settings and command, `Runner` the last two.
    """
    config = ComparisonConfig.of(settings, name=out.name if out else "", command=command)
    directory = out or RUNS / config.name
    store = Store(directory / "trainings")
    return ComparisonRun(config, Runner(store, jobs, on)), directory


@dataclass(frozen=True, slots=True)
class VerdictPlan:
    """The trainings that the verdict rests on; all arms have their rates."""

    config: ComparisonConfig
    arms: tuple[Arm, ...]  # the control first
    # The control with fewer steps and a schedule of its own, which shows the worth of tokens.
    shorter: Arm | None = None

    @classmethod
    def of(cls, config: ComparisonConfig, searches: Mapping[str, tuning.Search]) -> "VerdictPlan":
        """Return the plan with the learning rates that settled searches have chosen."""
        best = {name: search.best or 1.0 for name, search in searches.items()}
        arms = tuple(replace(arm, lr_scale=best[arm.name]) for arm in config.all_arms)
        if config.margin.nats:
            return cls(config, arms)
        steps = max(1, round(SHORTER * config.settings(arms[0]).training.steps))
        # Progress shows no name with two losses, and no arm has a colon in its name.
        name, settings = f"{arms[0].name}: {steps} steps", {**arms[0].settings, "steps": steps}
        return cls(config, arms, replace(arms[0], name=name, settings=settings))

    @property
    def control(self) -> Arm:
        """The arm that the others are compared with."""
        return self.arms[0]

    @property
    def trained(self) -> tuple[Arm, ...]:
        """The arms and the shorter control."""
        return (*self.arms, self.shorter) if self.shorter else self.arms

    @property
    def trials(self) -> list[Trial]:
        """All trials, seed by seed, so that an interruption leaves whole pairs behind."""
        seeds = range(self.config.seeds)
        return [trial_of(self.config, arm, seed) for seed in seeds for arm in self.trained]

    def outcomes(self, store: Store) -> tuple[dict[str, Trainings], dict[str, str]]:
        """Return the trainings by name, and of arms that diverged the reason.

        Raises:
            RunError: The control diverged.
        """
        trainings: dict[str, Trainings] = {}
        diverged: dict[str, str] = {}
        for arm in self.trained:
            trials = [trial_of(self.config, arm, seed) for seed in range(self.config.seeds)]
            try:
                trainings[arm.name] = store.trainings(trials)
            except ConfigError as error:
                diverged[arm.name] = str(error)
        for arm in (self.control, self.shorter):
            if arm and (reason := diverged.get(arm.name)):
                raise RunError(f"there is nothing to compare with, because of {arm.name}: {reason}")
        return trainings, diverged

    def margin(self, trainings: Mapping[str, Trainings]) -> float:
        """Return the margin in nats, if need be the worth of a share of the tokens.

        It is 0 if fewer tokens cost the control nothing: then no difference counts as none.
        """
        if not self.shorter:
            return self.config.margin.nats
        arms = (self.shorter, self.control)
        short, whole = (fmean(one.val_loss for one in trainings[arm.name]) for arm in arms)
        fewer, steps = (self.config.settings(arm).training.steps for arm in arms)
        if fewer == steps:  # there are too few to leave some out
            return 0.0
        # Taking the loss as linear in log(tokens) from the fewer ones to 1 - share; three digits
        # are enough for a margin.
        share = log(1 - self.config.margin.tokens) / log(fewer / steps)
        return float(f"{max(0.0, short - whole) * share:.3g}")


def verdicts_of(
    config: ComparisonConfig,
    trainings: Mapping[str, Trainings],
    searches: Mapping[str, tuning.Search],
    margin: float,
) -> dict[str, Verdict]:
    """Judge arms against the first one; the reference, which shows the part's worth, apart."""
    (control, of_control), *others = trainings.items()
    contrasts: dict[str, Contrast] = {}
    for arm, of_arm in others:
        pairs = zip(of_arm, of_control, strict=True)
        contrasts[arm] = Contrast(
            differences=tuple(one.val_loss - other.val_loss for one, other in pairs),
            tuning=tuning.tuning_pairs(searches[arm], searches[control]),
        )
    reference = config.reference.name if config.reference else ""
    # It takes no share of the arms' correction.
    alone = {reference: contrasts.pop(reference)} if reference in contrasts else {}
    of_reference = judge(alone, margin, config.confidence, planned=config.tuning_seeds_of)
    worth = of_reference.get(reference)
    judged = judge(contrasts, margin, config.confidence, worth, config.tuning_seeds_of)
    return judged | of_reference


def solving_of(config: ComparisonConfig, trainings: Mapping[str, Trainings]) -> dict[str, Solving]:
    """Judge how often arms solve a task, the reference apart; nothing if no training does."""
    solving = {
        arm: Solving.of([one.steps_to_solve for one in each]) for arm, each in trainings.items()
    }
    if not any(each.solved for each in solving.values()):
        return {}
    reference = config.reference.name if config.reference else ""
    arms = {arm: each for arm, each in solving.items() if arm != reference}
    alone = {arm: each for arm, each in solving.items() if arm in (next(iter(solving)), reference)}
    return judge_solving(arms, config.confidence) | judge_solving(alone, config.confidence)
