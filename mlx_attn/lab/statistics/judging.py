"""The verdict on every arm of a comparison, from losses paired by seed."""

from collections.abc import Mapping, Sequence
from math import isfinite

from mlx_attn.errors import ConfigError
from mlx_attn.lab.statistics.decisions import Decision, Sample, decide, sample
from mlx_attn.lab.statistics.intervals import bootstrap_interval, student_interval
from mlx_attn.lab.statistics.planning import resolvable, seeds_for
from mlx_attn.lab.statistics.verdict import Verdict


def judge(
    differences: Mapping[str, Sequence[float]], delta: float, confidence: float = 0.95
) -> dict[str, Verdict]:
    """Every arm's verdict; the arms share one probability of error, after Holm.

    "equivalent" where the difference is proved to be smaller than delta, even if it is not zero;
    else "better" or "worse" where it is proved not to be zero; else "undecided".

    Args:
        differences: For each arm its loss less the control's, seed by seed, in nats per token.
        delta: Differences smaller than this, in nats per token, count as none; 0: nothing does.
        confidence: Of the intervals and the words, such as 0.95.

    Raises:
        ConfigError: An arm has no differences, or one that is not finite; delta is negative;
            confidence is not from 0.5 to 1.
    """
    paired = {arm: tuple(map(float, found)) for arm, found in differences.items()}
    _check(paired, delta, confidence)
    samples = {arm: sample(found) for arm, found in paired.items()}
    decisions = decide(samples, delta, confidence)

    def verdict(arm: str) -> Verdict:
        found, decision, arms = samples[arm], decisions[arm], len(samples)
        spread_known = found.size > 1
        return Verdict(
            word=decision.word,
            differences=paired[arm],
            mean=found.mean,
            interval=student_interval(found, confidence) if spread_known else None,
            bootstrap=bootstrap_interval(paired[arm], confidence) if spread_known else None,
            p_value=decision.p_value,
            p_holm=decision.p_holm,
            p_equivalence=decision.p_equivalence,
            resolves=_resolves(found, confidence, arms) if spread_known else None,
            seeds_needed=_seeds_needed(found, decision, delta, confidence, arms),
        )

    return {arm: verdict(arm) for arm in paired}


def _resolves(found: Sample, confidence: float, arms: int) -> float:
    return resolvable(found.spread, found.size, confidence, arms=arms)


def _seeds_needed(
    found: Sample, decision: Decision, delta: float, confidence: float, arms: int
) -> int | None:
    if decision.word != "undecided":
        return None
    if found.size < 2:
        return 2
    return seeds_for(found.spread, found.mean, delta, confidence, arms=arms)


def _check(paired: Mapping[str, Sequence[float]], delta: float, confidence: float) -> None:
    for arm, found in paired.items():
        if not found or not all(map(isfinite, found)):
            raise ConfigError(
                f"the differences of {arm} must be one finite number or more: got {list(found)}; "
                "leave out what diverged"
            )
    if not 0 <= delta < float("inf"):
        raise ConfigError(f"delta is in nats per token and not negative: got {delta}")
    if not 0.5 <= confidence < 1:
        raise ConfigError(f"confidence is from 0.5 to below 1, such as 0.95: got {confidence}")
