"""From a comparison to what it says of a claim."""

from collections.abc import Mapping
from statistics import fmean
from typing import Any

from mlx_attn.lab.claims.claim import (
    FAILS,
    HOLDS,
    UNDECIDED,
    ArmFinding,
    Claim,
    Contest,
    Finding,
)
from mlx_attn.lab.claims.measures import MEASURES, Measure
from mlx_attn.lab.compare.result import ArmResult, BudgetResult, Comparison
from mlx_attn.lab.statistics import Verdict, judge


def finding_of(claim: Claim, contest: Contest, comparison: Comparison) -> Finding:
    """What a comparison says of a claim."""
    measure = MEASURES[contest.measure]
    arms = {
        result.budget: _arms(result, measure, contest.delta, comparison.confidence)
        for result in comparison.budgets
    }
    return Finding(
        claim=claim.name,
        statement=claim.statement,
        source=claim.source,
        protocol=claim.protocol,
        answer=answer_of(contest, arms[contest.budgets[0]]),
        unit=measure.unit,
        arms=arms,
        numbers=_noise(comparison),
        noise=comparison.noise.verdict if comparison.noise else None,
        seeds=len(comparison.budgets[0].arms[0].trainings),
        delta=contest.delta,
        settings=comparison.settings,
        command=comparison.command,
        versions=comparison.versions,
    )


def answer_of(contest: Contest, arms: tuple[ArmFinding, ...]) -> str:
    """Whether a claim holds: every arm that it speaks of must end with a word that it expects.

    One arm that decidedly ends with another word refutes it.
    """
    words = {arm.arm: arm.verdict.word for arm in arms if arm.verdict}
    said = [(words.get(arm, UNDECIDED), expected) for arm, expected in contest.expects.items()]
    if all(word in expected for word, expected in said):
        return HOLDS
    decided = [(word, expected) for word, expected in said if word != UNDECIDED]
    return FAILS if any(word not in expected for word, expected in decided) else UNDECIDED


def _arms(
    result: BudgetResult, measure: Measure, delta: float, confidence: float
) -> tuple[ArmFinding, ...]:
    control, *others = result.arms
    differences = {
        arm.arm: [
            measure.sign * (a - b)
            for a, b in zip(_values(arm, measure), _values(control, measure), strict=True)
        ]
        for arm in others
    }
    verdicts: Mapping[str, Verdict] = judge(differences, delta, confidence) if others else {}
    found = [_arm(arm, measure, verdicts.get(arm.arm)) for arm in result.arms]
    refused = [
        ArmFinding(
            arm=name,
            value=None,
            params=0,
            multiply_adds=0,
            cache_bytes_per_token=0,
            verdict=None,
            refused=reason,
        )
        for name, reason in result.refused.items()
    ]
    return (*found, *refused)


def _values(arm: ArmResult, measure: Measure) -> list[float]:
    return [measure.of(training) for training in arm.trainings]


def _arm(arm: ArmResult, measure: Measure, verdict: Verdict | None) -> ArmFinding:
    return ArmFinding(
        arm=arm.arm,
        value=fmean(_values(arm, measure)),
        params=arm.params,
        multiply_adds=arm.multiply_adds,
        cache_bytes_per_token=arm.cache_bytes_per_token,
        verdict=verdict,
    )


def _noise(comparison: Comparison) -> dict[str, Any]:
    noise = comparison.noise
    if noise is None:
        return {}
    return {
        "spread between seeds": noise.seed_spread,
        "same seed twice": noise.repeat_difference,
    }
