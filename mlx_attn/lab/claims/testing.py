"""Puts claims to the test: an iterator of events that ends with what was found.

All contests share one store of trainings, so an arm that several claims speak of is trained once.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mlx_attn.lab.claims.claim import FAILS, HOLDS, Claim, Conclusion, Contest, Examination, Finding
from mlx_attn.lab.claims.judging import finding_of
from mlx_attn.lab.compare.arms import arms_from
from mlx_attn.lab.compare.comparing import Comparing
from mlx_attn.lab.compare.crew import Trains
from mlx_attn.lab.compare.events import Concluded, Event
from mlx_attn.lab.compare.protocol import Protocol
from mlx_attn.text.tasks import TASKS
from mlx_attn.training.settings import Settings

SETTINGS: dict[str, Any] = {
    "preset": "nano",
    "n_heads": 4,
    "optimizer": "adamw",
    "lr": 0.02,
    "steps": 200,
}
"""What all contests share: two layers of width 64 with four heads, on the tales."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How much goes into every contest.

    Attributes:
        seeds: Of the verdict.
        tuning_seeds: That each learning rate is tried on.
        scales: Factors of the learning rates to begin with.
        settings: Over those of all contests and of each.
    """

    seeds: int = 5
    tuning_seeds: int = 1
    scales: tuple[float, ...] = (0.5, 1.0, 2.0)
    settings: Mapping[str, Any] | None = None


def put_to_the_test(
    claim: Claim, crew: Trains, effort: Effort, command: str, versions: Mapping[str, Any]
) -> Iterator[Event | Conclusion]:
    """Test a claim; what comes last is what was found.

    Args:
        claim: The claim.
        crew: Does the trainings that a contest needs.
        effort: How much goes into a contest.
        command: What reproduces it.
        versions: Of what makes it.

    Raises:
        RunError: A training's process failed, or the control diverged.
    """
    if isinstance(claim.test, Examination):
        yield _examined(claim, claim.test, command, versions)
        return
    for event in Comparing(_protocol(claim, claim.test, effort, command), crew, versions):
        if isinstance(event, Concluded):
            comparison = event.comparison
            yield Conclusion(finding_of(claim, claim.test, comparison), comparison)
        else:
            yield event


def shared_settings(test: Contest, effort: Effort) -> dict[str, Any]:
    """What the arms of a contest share; a task keeps its own recipe."""
    usual = {} if test.settings.get("data") in TASKS else SETTINGS
    return {**usual, **test.settings, **(effort.settings or {})}


def example_of(claims: Sequence[Claim], effort: Effort) -> Settings | None:
    """Settings of the first training that testing needs; None where nothing is trained."""
    for claim in claims:
        if isinstance(claim.test, Contest):
            protocol = _protocol(claim, claim.test, effort, "")
            return protocol.settings(protocol.arms[0])
    return None


def _protocol(claim: Claim, test: Contest, effort: Effort, command: str) -> Protocol:
    return Protocol(
        arms=arms_from(test.arms),
        shared=shared_settings(test, effort),
        seeds=effort.seeds,
        tuning_seeds=effort.tuning_seeds,
        scales=effort.scales,
        budgets=test.budgets,
        name=claim.name,
        question=claim.statement,
        command=command,
    )


def _examined(
    claim: Claim, test: Examination, command: str, versions: Mapping[str, Any]
) -> Conclusion:
    numbers, holds = test.examine()
    finding = Finding(
        claim=claim.name,
        statement=claim.statement,
        source=claim.source,
        protocol=claim.protocol,
        answer=HOLDS if holds else FAILS,
        unit="",
        arms={},
        numbers=dict(numbers),
        noise=None,
        seeds=0,
        delta=0.0,
        settings={},
        command=command,
        versions=versions,
    )
    return Conclusion(finding, None)
