"""What a claim is, and what testing it finds."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from mlx_attn.lab.compare.result import Comparison
from mlx_attn.lab.statistics import Verdict

HOLDS, FAILS, UNDECIDED = "holds", "does not hold", "undecided"
"""What can be said of a claim, here, at this size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contest:
    """A claim about what is learned: put to the test by a comparison.

    Attributes:
        arms: The contestants as `arms_from` reads them; the first is the control.
        expects: For each arm that the claim speaks of, the words of a verdict that it amounts to.
        settings: What all arms share, over those of all claims.
        budgets: What is equal.
        measure: What is compared: a name in `measures.MEASURES`.
        delta: Differences of it smaller than this count as none.
    """

    arms: tuple[str, ...]
    expects: Mapping[str, tuple[str, ...]]
    settings: Mapping[str, Any] = field(default_factory=dict)
    budgets: tuple[str, ...] = ("steps",)
    measure: str = "loss"
    delta: float = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Examination:
    """A claim about algebra or cost: one model is examined, and the same numbers come every time.

    Attributes:
        examine: Measures; gives numbers by name, and whether they bear the claim out.
    """

    examine: Callable[[], tuple[Mapping[str, float], bool]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """Something that was said of attention.

    Attributes:
        name: What `claims run` calls it.
        statement: What it says, in one sentence.
        source: Who says so.
        protocol: How it is tested here, in one sentence.
        test: The test.
    """

    name: str
    statement: str
    source: str
    protocol: str
    test: Contest | Examination


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmFinding:
    """One arm of a contest.

    Attributes:
        arm: Its name.
        value: The mean of what is measured, over seeds.
        params: Trained numbers.
        multiply_adds: Per token, forward.
        cache_bytes_per_token: Bytes remembered per token when decoding.
        verdict: Against the control; None for the control itself.
        refused: Why there is no result, "" where there is one.
    """

    arm: str
    value: float | None
    params: int
    multiply_adds: int
    cache_bytes_per_token: int
    verdict: Verdict | None
    refused: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What testing a claim found.

    Attributes:
        claim: Its name.
        statement: What it says.
        source: Who says so.
        protocol: How it was tested.
        answer: "holds", "does not hold" or "undecided": here, at this size.
        unit: Of the arms' values.
        arms: The arms of a contest, by budget; empty for an examination.
        numbers: What an examination measured, or how noisy a contest was.
        noise: The contest's control against itself; None for an examination.
        seeds: Seeds of the verdict; 0 for an examination.
        delta: Differences smaller than this count as none.
        settings: The contest's shared settings.
        command: What reproduces it.
        versions: Of what made it.
    """

    claim: str
    statement: str
    source: str
    protocol: str
    answer: str
    unit: str
    arms: Mapping[str, tuple[ArmFinding, ...]]
    numbers: Mapping[str, float]
    noise: Verdict | None
    seeds: int
    delta: float
    settings: Mapping[str, Any]
    command: str
    versions: Mapping[str, Any]

    def as_dict(self) -> dict[str, Any]:
        """All of it as one JSON object."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Conclusion:
    """A claim was tested.

    Attributes:
        finding: What came of it.
        comparison: All that a contest's finding rests on; None for an examination.
    """

    finding: Finding
    comparison: Comparison | None
