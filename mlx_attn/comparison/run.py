"""A comparison from plan to verdict: tune, choose the seeds, train, judge.

Every arm is trained under every budget with every seed; `TrialPlan` lists these trials,
`ComparisonRun` has them trained, and judges them.
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from math import log, sqrt
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

from mlx_attn.comparison import result, stages, tuning
from mlx_attn.comparison.decisions import Case, Verdict, degrees_lent, judge_all
from mlx_attn.comparison.plan import (
    RESEED,
    SHORTER,
    Arm,
    ComparisonConfig,
    Trial,
    corpus_of,
    floor_of,
)
from mlx_attn.comparison.regression import adjusted
from mlx_attn.comparison.result import AATest, Comparison, TrialResult
from mlx_attn.comparison.runner import Runner
from mlx_attn.comparison.solving import Solving, judge_solving
from mlx_attn.comparison.t_tests import TTest, minimum_detectable_effect
from mlx_attn.comparison.trial import Diverged, Store
from mlx_attn.errors import ConfigError, RunError
from mlx_attn.machine.facts import versions
from mlx_attn.model.config import GPTConfig
from mlx_attn.model.gpt import model_cost
from mlx_attn.text.corpus import Corpus

FEWEST_SEEDS, MOST_SEEDS = 3, 30  # the range of seeds that a plan by time may choose
EQUAL_PARAMS = 0.005  # the largest relative difference of two arms' parameters that counts as equal

FLOAT_BYTES = 4

Events = Generator[stages.ComparisonEvent, None, None]


class ComparisonRun:
    """One comparison; iterating trains the missing trials and yields events."""

    def __init__(self, protocol: ComparisonConfig, trains: Runner):
        self.runner, self.store = trains, trains.store
        # Prepared here, once, before several processes want it at the same time.
        self.corpus = corpus_of(protocol.settings(protocol.arms[0]))
        self.protocol = replace(protocol, text=self.corpus.digest)
        self.vocab_size = self.corpus.tokenizer.vocab_size
        for arm in protocol.all_arms:
            protocol.settings(arm).model_config(self.vocab_size)

    def __iter__(self) -> Iterator[stages.ComparisonEvent]:
        # Every stage asks the store first, so a resumed comparison passes through here quickly.
        protocol = self.protocol
        train_for_rates = partial(self._train, "tuning")
        searches = yield from tuning.tune(protocol, self.store, train_for_rates)
        arms = [tuning.tuned(protocol, arm, searches[arm.name]) for arm in protocol.all_arms]
        # Trainings of every arm, for their times. Without tuning, the verdict's first seed is
        # trained first: no trial is only for its time.
        trials = [trial for search in searches.values() for trial in search.trials]
        if not trials:
            trials = [protocol.trial(arm, 0) for arm in arms]
            yield from self._train("first seed", trials)
        timed: dict[str, list[TrialResult]] = {}
        for trial in trials:
            if isinstance(outcome := self.store[trial], TrialResult):
                timed.setdefault(trial.arm, []).append(outcome)
        # The median ignores trainings that something else on the machine slowed down.
        speeds = {name: median(t.tok_s for t in done) for name, done in timed.items()}
        plan = TrialPlan(protocol, arms, self.vocab_size, speeds)
        per_seed = plan.seconds(timed)
        looks = protocol.looks or (protocol.seeds or self._affordable_seeds(per_seed, timed),)
        for seeds in looks:
            minutes = per_seed * seeds / self.runner.size / 60
            yield stages.Planned(seeds, minutes, self._detectable(searches, seeds))
            yield from self._train("verdict", plan.all(range(seeds)))
            comparison = _Summary(plan, self.store, range(seeds), searches).comparison(self.corpus)
            # Looks that are not taken still cost: each has its share of 1 - confidence.
            if seeds == looks[-1] or _all_decided(comparison):
                yield comparison
                return

    def _train(self, stage: str, trials: Iterable[Trial]) -> Events:
        # Arms or budgets with the same settings share a trial.
        wanted = {trial.digest: trial for trial in trials}
        missing = self.runner.missing(wanted.values())
        yield stages.Began(stage, len(wanted), len(wanted) - len(missing))
        left, taken = len(missing), []
        for trial, outcome in self.runner(missing):
            left -= 1
            taken += [outcome.seconds] if isinstance(outcome, TrialResult) else []
            # Diverged trials end early and would make the rest look short.
            each = fmean(taken) if taken else 0.0
            yield stages.Finished(trial, outcome, left, left * each / self.runner.size)

    def _affordable_seeds(self, per_seed: float, timed: Mapping[str, Sequence[TrialResult]]) -> int:
        """Return the seeds that fit into the time; by recorded times, so resuming changes none."""
        spent = sum(trial.seconds for done in timed.values() for trial in done)
        of_control = [trial.seconds for trial in timed.get(self.protocol.arms[0].name, ())]
        spent += self.protocol.control_seeds * fmean(of_control or [0])
        # `size` workers have size * minutes of processor time, of which tuning has spent a part.
        seeds = int((60 * self.protocol.minutes * self.runner.size - spent) / per_seed)
        if seeds < FEWEST_SEEDS:
            raise ConfigError(
                f"{self.protocol.minutes:g} minutes leave time for {max(seeds, 0)} seeds and at "
                f"least {FEWEST_SEEDS} are needed: give about {FEWEST_SEEDS * per_seed / 60:.0f} "
                "more minutes of processor time, fewer arms, fewer budgets or fewer steps"
            )
        return min(seeds, MOST_SEEDS)

    def _detectable(self, searches: Mapping[str, tuning.Search], seeds: int) -> float | None:
        """Return the minimum detectable effect, judged by the spread seen while tuning."""
        spread = tuning.spread_of([*searches.values()])
        if not spread or seeds < 2:
            return None
        # Neither the control nor the reference is judged.
        arms_judged = max(1, len(self.protocol.arms) - 1)
        test = TTest(seeds, degrees_lent(self.protocol.tuning_seeds, arms_judged))
        return minimum_detectable_effect(spread, test, self.protocol.confidence, arms_judged)


def conclude(
    run: ComparisonRun, directory: Path, on_event: Callable[[stages.ComparisonEvent], Any]
) -> Comparison:
    """Train the missing trials, pass on every event, and write the result to a directory."""
    event = None
    for event in run:
        on_event(event)
    assert isinstance(event, Comparison)
    result.save_comparison(event, directory)
    return event


def _all_decided(comparison: Comparison) -> bool:
    """Return True if every arm but the reference is decided under every budget."""
    return not any(
        budget.word(arm) == "undecided"
        for budget in comparison.budgets
        for arm in budget.verdicts
        if arm != comparison.reference
    )


@dataclass(frozen=True, slots=True)
class TrialPlan:
    """The trials of a comparison's verdict; the first arm is the control, speeds in tokens/s."""

    protocol: ComparisonConfig
    arms: Sequence[Arm]
    vocab_size: int
    speeds: Mapping[str, float]

    @property
    def control(self) -> Arm:
        """The arm that the others are compared with."""
        return self.arms[0]

    @property
    def steps(self) -> int:
        """Steps of the control."""
        return self.protocol.settings(self.control).training.steps

    def all(self, seeds: Sequence[int]) -> list[Trial]:
        """List all trials once, seed by seed, so that an interruption leaves whole pairs behind."""
        jittered = [self.jittered_control(seeds[0])] if self.protocol.noise else []
        trials = [*jittered, *(trial for seed in seeds for trial in self._of_seed(seed))]
        trials += [self.trial("steps", self.control, seed) for seed in self.further(seeds)]
        # A dict keeps the first trial of each digest, in order.
        return [*{trial.digest: trial for trial in trials}.values()]

    def further(self, seeds: Sequence[int]) -> range:
        """Return the seeds that only the control is trained with."""
        return range(seeds[-1] + 1, seeds[-1] + 1 + self.protocol.control_seeds)

    def _of_seed(self, seed: int) -> Iterator[Trial]:
        for arm in self.arms:
            for budget in self.protocol.budgets:
                # The result lists the refused arms with their reasons.
                with suppress(ConfigError):
                    yield self.trial(budget, arm, seed)
        if not self.protocol.delta:
            yield self.shorter_control(seed)
        if self.protocol.noise:
            yield self.reseeded_control(seed)

    def trial(self, budget: str, arm: Arm, seed: int) -> Trial:
        """Return an arm's trial under a budget; see `changes`."""
        return self.protocol.trial(arm, seed, self.changes(budget, arm))

    def reseeded_control(self, seed: int) -> Trial:
        """Return the control again: the same batches, other initial weights."""
        return self.protocol.trial(self.control, seed, {"init_seed": RESEED + seed})

    def shorter_control(self, seed: int) -> Trial:
        """Return the control with fewer steps, and a schedule of its own."""
        steps = max(1, round(SHORTER * self.steps))
        return self.protocol.trial(self.control, seed, {"steps": steps})

    def jittered_control(self, seed: int) -> Trial:
        """Return the control again, its start moved by one rounding."""
        return replace(self.protocol.trial(self.control, seed), jitter=True)

    def changes(self, budget: str, arm: Arm) -> dict[str, Any]:
        """Return an arm's changes under a budget; ConfigError if the budget makes it impossible."""
        # The control defines every budget; the reference is like it in all but the part.
        reference = self.protocol.reference
        if budget == "steps" or arm is self.control or (reference and arm.name == reference.name):
            return {}
        both = self.control, arm
        if budget == "params":
            settings = map(self.protocol.settings, both)
            return _equal_parameters(*(each.model_config(self.vocab_size) for each in settings))
        # As many steps as the arm takes in the seconds that the control needs for all of its own.
        speeds = [self.speeds[one.name] for one in both if one.name in self.speeds]
        if len(speeds) < 2:
            raise ConfigError("its speed is not known: it diverged with every learning rate")
        return {"steps": max(1, round(self.steps * speeds[1] / speeds[0]))}

    def seconds(self, timed: Mapping[str, Sequence[TrialResult]]) -> float:
        """Return the time of one seed's trials, of all processes together, judged by timed ones."""
        # An arm whose trials all diverged counts with the mean of the others.
        each = {name: fmean(t.seconds for t in done) for name, done in timed.items() if done}
        usual, steps = fmean(each.values()), self.steps
        trials = {trial.digest: trial for trial in self._of_seed(0)}.values()
        return sum(each.get(t.arm, usual) * t.settings["steps"] / steps for t in trials)


def _equal_parameters(control: GPTConfig, arm: GPTConfig) -> dict[str, Any]:
    """Return the feed-forward width that gives an arm as many parameters as the control."""
    wanted, has = model_cost(control).parameters, model_cost(arm).parameters
    # Parameters are linear in the width, so one more unit gives the slope.
    per_width = model_cost(replace(arm, hidden_dim=arm.hidden_dim + 1)).parameters - has
    hidden = arm.hidden_dim + round((wanted - has) / per_width)
    if hidden < 1:
        raise ConfigError(
            f"it has {has - wanted:,} parameters more than the control, and its feed-forward "
            f"layers have only {arm.hidden_dim * per_width:,} to give: use fewer heads"
        )
    # The width is whole, so a small difference may remain.
    gap = abs(model_cost(replace(arm, hidden_dim=hidden)).parameters - wanted)
    if gap > EQUAL_PARAMS * wanted:
        raise ConfigError(f"the nearest width leaves a difference of {gap:,} parameters")
    return {} if hidden == arm.hidden_dim else {"hidden_dim": hidden}


class _Summary:
    """The result of a comparison whose trials are all in the store."""

    def __init__(
        self,
        plan: TrialPlan,
        store: Store,
        seeds: Sequence[int],
        searches: Mapping[str, tuning.Search],
    ):
        self.plan, self.store, self.seeds, self.searches = plan, store, seeds, searches

    def comparison(self, corpus: Corpus) -> Comparison:
        plan, protocol = self.plan, self.plan.protocol
        # Before the A/A test, which would name a control that diverged less clearly.
        budgets = tuple(map(self._budget, protocol.budgets))
        outcomes = [self.store[trial] for trial in plan.all(self.seeds)]
        settings = protocol.settings(plan.control)
        # Only settings that every arm leaves alike are shared.
        own = {key for arm in plan.arms for key in arm.settings}
        flat = {**settings.model, **settings.training.as_dict(), "data": settings.text.data}
        return Comparison(
            name=protocol.name,
            question=protocol.question,
            command=protocol.command,
            control=plan.control.name,
            settings={"preset": settings.preset, **{k: v for k, v in flat.items() if k not in own}},
            delta=self.margin,
            confidence=protocol.confidence,
            text={"name": corpus.name, "digest": corpus.digest, "floor": floor_of(corpus)},
            versions=versions(),
            noise=self._aa_test() if protocol.noise else None,
            tunings=tuning.tunings_of(protocol, self.searches),
            budgets=budgets,
            seconds=sum(o.seconds for o in outcomes if isinstance(o, TrialResult)),
            reference=protocol.reference.name if protocol.reference else "",
            looks=protocol.looks,
            delta_tokens=0 if protocol.delta else protocol.delta_tokens,
            further_control=self.further_control,
        )

    def _budget(self, budget: str) -> result.BudgetResult:
        plan, arms = self.plan, list[result.ArmResult]()
        refused: dict[str, str] = {}
        for arm in plan.arms:
            try:
                changes = plan.changes(budget, arm)
                trainings = self._results(plan.trial(budget, arm, seed) for seed in self.seeds)
            except ConfigError as error:
                refused[arm.name] = str(error)
                continue
            cost = model_cost(plan.protocol.settings(arm, changes).model_config(plan.vocab_size))
            arm_result = result.ArmResult(
                arm=arm.name,
                settings={**arm.settings, **changes},
                lr_scale=arm.lr_scale,
                params=cost.parameters,
                multiply_adds=cost.multiply_adds,
                cache_bytes_per_token=FLOAT_BYTES * cost.cache_floats,
                trainings=trainings,
            )
            arms.append(arm_result)
        if reason := refused.get(plan.control.name):
            raise RunError(f"the control diverged, so there is nothing to compare with: {reason}")
        return result.BudgetResult(
            budget=budget,
            arms=tuple(arms),
            refused=refused,
            verdicts=self._verdicts(arms),
            solving=self._solving(arms),
        )

    def _solving(self, arms: Sequence[result.ArmResult]) -> dict[str, Solving]:
        """Judge how soon arms solve a task, the reference apart; nothing if no training does."""
        times = result.times_to_solve(arms)
        if not any(time.solved for each in times.values() for time in each):
            return {}
        protocol, looks = self.plan.protocol, max(1, len(self.plan.protocol.looks))
        apart = protocol.reference.name if protocol.reference else ""
        solving: dict[str, Solving] = {}
        # The reference is judged by itself: it takes no share of the arms' correction.
        if apart in times:
            alone = {arm: times[arm] for arm in (arms[0].arm, apart)}
            solving |= judge_solving(alone, protocol.confidence, looks)
        group = {arm: each for arm, each in times.items() if arm != apart}
        return solving | judge_solving(group, protocol.confidence, looks)

    def _verdicts(self, arms: Sequence[result.ArmResult]) -> dict[str, Verdict]:
        """Judge arms against the first one; the reference, whose mean is the part's worth, last."""
        control, *others = arms
        cases: dict[str, Case] = {}
        for arm in others:
            searches = self.searches[arm.arm], self.searches[control.arm]
            cases[arm.arm] = self._case(arm.trainings, control.trainings, searches)
        reference = self.plan.protocol.reference
        if not reference or reference.name not in cases:
            return self._judge(cases)
        last = self._judge({reference.name: cases.pop(reference.name)})
        worth = last[reference.name].mean
        return self._judge({a: replace(case, worth=worth) for a, case in cases.items()}) | last

    def _case(
        self,
        arm: Sequence[TrialResult],
        control: Sequence[TrialResult],
        searches: Sequence[tuning.Search] = (),
    ) -> Case:
        """Return the paired differences of two arms, and the searches for the rates of both."""
        groups = tuning.replicates_of(*[search.finite for search in searches] or ({}, {}))
        return Case(
            differences=tuple(a.val_loss - c.val_loss for a, c in zip(arm, control, strict=True)),
            margin=self.margin,
            # Both rates were chosen, independently: their squares add up.
            tuning=sqrt(sum(search.error**2 for search in searches)),
            rounding=self.rounding,
            replicates=groups.differences,
            world="arms",
            control=tuple(training.val_loss for training in control),
            control_replicates=groups.control,
            further=self.further_control,
        )

    def _judge(self, cases: Mapping[str, Case]) -> dict[str, Verdict]:
        protocol = self.plan.protocol
        return judge_all(adjusted(cases), protocol.confidence, protocol.looks)

    def _aa_test(self) -> AATest:
        name = self.plan.control.name
        # Same batches in both runs; only the initial weights differ.
        again = self._of_control(self.plan.reseeded_control)
        losses = [training.val_loss for training in self.control]
        return AATest(
            rounding=self.rounding,
            seed_spread=stdev(losses) if len(losses) > 1 else 0.0,
            verdict=self._judge({name: self._case(again, self.control)})[name],
        )

    @cached_property
    def margin(self) -> float:
        """The margin in nats: `delta`, or the worth of the share `delta_tokens` of the tokens.

        It is 0 if fewer tokens cost the control nothing: then no difference counts as none.
        """
        plan, share = self.plan, self.plan.protocol.delta_tokens
        if plan.protocol.delta:
            return plan.protocol.delta
        # The scaling below takes the loss as linear in log(tokens) between these two.
        whole = fmean(training.val_loss for training in self.control)
        short = fmean(training.val_loss for training in self._of_control(plan.shorter_control))
        # From SHORTER to 1 - share on a logarithmic axis; three digits are enough for a margin.
        return float(f"{max(0.0, short - whole) * log(1 - share) / log(SHORTER):.3g}")

    @cached_property
    def rounding(self) -> float:
        """The change of the control's loss by rounding the start; 0 if not measured."""
        if not self.plan.protocol.noise:
            return 0.0
        (jittered,) = self._of_control(self.plan.jittered_control, self.seeds[:1])
        return abs(jittered.val_loss - self.control[0].val_loss)

    @cached_property
    def control(self) -> tuple[TrialResult, ...]:
        """The trainings of the control, with equal steps."""
        return self._of_control(partial(self.plan.trial, "steps", self.plan.control))

    @cached_property
    def further_control(self) -> tuple[float, ...]:
        """The losses of the control with seeds that no arm has."""
        trial_of = partial(self.plan.trial, "steps", self.plan.control)
        trainings = self._of_control(trial_of, self.plan.further(self.seeds))
        return tuple(training.val_loss for training in trainings)

    def _of_control(
        self, trial_of: Callable[[int], Trial], seeds: Sequence[int] | None = None
    ) -> tuple[TrialResult, ...]:
        try:
            return self._results(map(trial_of, self.seeds if seeds is None else seeds))
        except ConfigError as error:
            raise RunError(f"the control against itself: {error}") from error

    def _results(self, trials: Iterable[Trial]) -> tuple[TrialResult, ...]:
        results: list[TrialResult] = []
        for trial in trials:
            outcome = self.store[trial]
            # A mean over the seeds that did not diverge would flatter the arm.
            if isinstance(outcome, Diverged):
                raise ConfigError(f"with seed {trial.seed} it diverged: {outcome.message}")
            results.append(outcome)
        return tuple(results)
