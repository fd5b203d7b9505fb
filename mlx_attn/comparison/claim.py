"""Published claims about attention: `claims.toml`, and what testing one of them finds.

A claim about learning is a comparison of arms, and holds where the verdicts are those that it
expects. A claim about algebra or cost is a check of one model.
"""

import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from statistics import fmean
from typing import Any, NamedTuple

from mlx_attn.comparison import checks, plan
from mlx_attn.comparison.decisions import Verdict, judge
from mlx_attn.comparison.result import BudgetResult, Comparison, TrialResult
from mlx_attn.comparison.run import ComparisonRun
from mlx_attn.comparison.runner import ComparisonEvent, Runner
from mlx_attn.errors import find_row
from mlx_attn.text.tasks import TASKS

HOLDS, FAILS, UNDECIDED = "holds", "does not hold", "undecided"
"""The answers on a claim, at the size of these trainings."""

SETTINGS: dict[str, Any] = {
    **{"preset": "nano", "n_heads": 4, "optimizer": "adamw", "lr": 0.02, "steps": 200}
}
"""Shared by all comparisons on stories: two layers of width 64 with four heads."""

TUNING_SEEDS, LR_SCALES = 1, (0.5, 1.0, 2.0)
"""Seeds that each learning rate is tried on, and its factors to begin with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A statement about attention, and its test. Without arms, `checks.check` tests it.

    Attributes:
        protocol: How it is tested here, in one sentence.
        arms: As `plan.arms_from` reads them; the first is the control.
        expects: For each arm that the claim is about, the verdicts that bear it out.
        settings: Shared by all arms, over `SETTINGS`.
        budgets: The quantities held equal; the first decides.
        metric: A name in `METRICS`; differences smaller than `delta` count as none.
    """

    name: str
    statement: str
    source: str
    protocol: str
    arms: Sequence[str] = ()
    expects: Mapping[str, Sequence[str]] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    budgets: Sequence[str] = ("steps",)
    metric: str = "loss"
    delta: float = 0.02

    def config(
        self, seeds: int = 5, settings: Mapping[str, Any] | None = None, command: str = ""
    ) -> plan.ComparisonConfig:
        """The comparison that tests the claim; `settings` go over the claim's own."""
        # A task comes with its own recipe.
        usual = {} if self.settings.get("data") in TASKS else SETTINGS
        return plan.ComparisonConfig(
            arms=plan.arms_from(self.arms),
            shared={**usual, **self.settings, **(settings or {})},
            seeds=seeds,
            tuning_seeds=TUNING_SEEDS,
            scales=LR_SCALES,
            budgets=tuple(self.budgets),
            name=self.name,
            question=self.statement,
            command=command,
        )


_TABLE = (files("mlx_attn.comparison") / "claims.toml").read_text(encoding="utf-8")

CLAIMS = {name: Claim(name=name, **row) for name, row in tomllib.loads(_TABLE).items()}


def find_claim(name: str) -> Claim:
    """The named claim; an unknown name is refused with the nearest."""
    return find_row(CLAIMS, name, "claim")


class Metric(NamedTuple):
    """A number of a finished training, its unit, and -1 where larger is better, else 1."""

    read: Callable[[TrialResult], Any]
    unit: str
    sign: int


METRICS = {
    "loss": Metric(lambda trained: trained.val_loss, "nats per token", 1),
    "score rank": Metric(
        lambda trained: trained.ranks[-1].scores,
        "effective rank of S_h (a positive difference is a lower rank)",
        -1,
    ),
    "accuracy": Metric(
        lambda trained: trained.accuracy,
        "share of answers right (a positive difference is fewer)",
        -1,
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmFinding:
    """One arm under one budget: the metric's mean over seeds, and the verdict against the control.

    `refused` says why there is no result, "" where there is one.
    """

    arm: str
    value: float | None = None
    params: int = 0
    multiply_adds: int = 0
    cache_bytes_per_token: int = 0
    verdict: Verdict | None = None
    refused: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The result of testing a claim, as findings/NAME.json holds it.

    A check has no arms (by budget), noise (the control against itself) or seeds; `numbers` are what
    it measured, or how noisy the comparison was.
    """

    claim: str
    statement: str
    source: str
    protocol: str
    answer: str
    unit: str = ""
    arms: Mapping[str, Sequence[ArmFinding]] = field(default_factory=dict)
    numbers: Mapping[str, float] = field(default_factory=dict)
    noise: Verdict | None = None
    seeds: int = 0
    delta: float = 0.0
    settings: Mapping[str, Any] = field(default_factory=dict)
    command: str
    versions: Mapping[str, Any]


def run_claim(
    claim: Claim,
    runner: Runner,
    versions: Mapping[str, Any],
    command: str = "",
    seeds: int = 5,
    settings: Mapping[str, Any] | None = None,
) -> Iterator[ComparisonEvent | Finding]:
    """Test a claim: the events of its comparison, if it has arms, and the finding last.

    `settings` go over those of the claim; `versions` and `command` are for the record.
    """
    texts = {key: getattr(claim, key) for key in ("statement", "source", "protocol")}
    found: dict[str, Any] = {"claim": claim.name, **texts, "command": command, "versions": versions}
    if claim.arms:
        for event in ComparisonRun(claim.config(seeds, settings, command), runner, versions):
            yield event
            if isinstance(event, Comparison):
                found |= _judged(claim, event)
    else:
        numbers, holds = checks.check(claim.name)
        found |= {"answer": HOLDS if holds else FAILS, "numbers": numbers}
    yield Finding(**found)


def _judged(claim: Claim, comparison: Comparison) -> dict[str, Any]:
    """The fields of a finding that a comparison decides."""
    arms = {b.budget: _arms(claim, b, comparison.confidence) for b in comparison.budgets}
    noise, numbers = comparison.noise, {}
    if noise:
        spread, repeat = noise.seed_spread, noise.repeat_difference
        numbers = {"spread between seeds": spread, "same seed twice": repeat}
    return {
        "answer": answer_of(claim, arms[claim.budgets[0]]),
        "unit": METRICS[claim.metric].unit,
        "arms": arms,
        "numbers": numbers,
        "noise": noise and noise.verdict,
        "seeds": len(comparison.budgets[0].arms[0].trainings),
        "delta": claim.delta,
        "settings": comparison.settings,
        "versions": comparison.versions,
    }


def answer_of(claim: Claim, arms: Sequence[ArmFinding]) -> str:
    """Whether a claim holds: every arm that it is about must end with a verdict that it expects.

    One arm that decidedly ends with another verdict refutes it.
    """
    words = {arm.arm: arm.verdict.word for arm in arms if arm.verdict}
    found = [(_meanings(words.get(arm, UNDECIDED)), {*e}) for arm, e in claim.expects.items()]
    if all(meanings & expected for meanings, expected in found):
        return HOLDS
    silent = {UNDECIDED}, {"insensitive"}
    refuted = any(not meanings & expected for meanings, expected in found if meanings not in silent)
    return FAILS if refuted else UNDECIDED


def _meanings(word: str) -> set[str]:
    """A difference within the margin is one, and equivalent too."""
    direction, _, within = word.partition(" ")
    return {direction, "equivalent"} if within else {word}


def _arms(claim: Claim, result: BudgetResult, confidence: float) -> tuple[ArmFinding, ...]:
    """The arms of a budget, judged by the claim's metric; refused arms last."""
    metric = METRICS[claim.metric]
    values = {arm.arm: [metric.read(training) for training in arm.trainings] for arm in result.arms}
    control, *others = values
    differences = {
        arm: [metric.sign * (a - b) for a, b in zip(values[arm], values[control], strict=True)]
        for arm in others
    }
    verdicts = judge(differences, claim.delta, confidence) if others else {}
    costs = ("params", "multiply_adds", "cache_bytes_per_token")
    found = [
        ArmFinding(
            arm=arm.arm,
            value=fmean(values[arm.arm]),
            verdict=verdicts.get(arm.arm),
            **{cost: getattr(arm, cost) for cost in costs},
        )
        for arm in result.arms
    ]
    refused = [ArmFinding(arm=name, refused=reason) for name, reason in result.refused.items()]
    return (*found, *refused)
