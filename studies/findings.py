"""Compute findings from records: the verdict of every contrast, corrected over the whole page.

    d_s   = loss(arm, seed s) - loss(control, seed s)            paired, on the verdict's seeds
    worth = mean loss(reference) - mean loss(control)            the worth of the part in question
    t     = mean d / sqrt(var d / n + tuning^2)

The test is the one that the study registered (`Protocol.test`). The page also prints the word of
the moderated t, or where that decides, of the worst of five families.

Each d has two tests: that its mean is 0, and that it lies outside the margin. Both are corrected
(Holm) for all contrasts of all worlds. Unfinished contrasts count with p = 1, so finishing one
never withdraws a word. Each p-value is the largest over all means within the rounding floor of d,
so a rounding of the start cannot reverse a word.

A word can be withdrawn later, by listing it in `withdrawn.toml` in the study's folder. The numbers
stay as computed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, isfinite, log, sqrt
from pathlib import Path
from statistics import fmean

import msgspec

from mlx_attn.records import as_record, read_toml
from studies.decisions import Case, Test, Verdict, judge_all, worst_of_five
from studies.schedule import ArmPlan, Records
from studies.shrunk_t import shrunk_t
from studies.study import (
    MODERATED,
    SHRUNK,
    STANDARD,
    STEPS,
    WORST_OF_FIVE,
    Contrast,
    Study,
)
from studies.t_tests import benjamini_hochberg
from studies.tuning import Replicates, replicates_of

TESTS: Mapping[str, Test | None] = {
    MODERATED: None,
    SHRUNK: shrunk_t,
    WORST_OF_FIVE: worst_of_five,
}
"""The tests that studies registered; None is the one that `judge_all` takes by default."""

HOLDS, FAILS = "holds", "does not hold"
UNDECIDED, INSENSITIVE = "undecided", "insensitive"
UNFINISHED, DIVERGED = "not finished", "diverged"
UNSOLVED = "never solved"
WITHDRAWN = "withdrawn"
"""The answers on a contrast in one world."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The result of a contrast in one world."""

    question: str
    contrast: Contrast
    world: str
    answer: str  # one of the words above
    done: tuple[int, int]  # numbers of finished trials and of all trials planned so far
    # Mean losses of the control, the reference and the arm, or means of the contrast's other
    # outcome; None, like the verdict, until every trial has finished, and if one diverged.
    losses: tuple[float, float, float] | None = None
    verdict: Verdict | None = None  # its p-values are corrected over the page; its interval is not
    # Share of its tokens that the control can drop and still reach the arm's loss; negative if it
    # needs more; None if not measured.
    tokens: float | None = None
    steps: int = 0  # length of the world's trainings, to which the word applies
    # Numbers of trainings of the control and of the arm that never solved the task, if the steps to
    # solve it are compared.
    unsolved: tuple[int, int] = (0, 0)
    # False discovery rate: of all contrasts of the study with this q or a smaller one, the expected
    # share whose true difference is 0 (Benjamini and Hochberg, 1995). No word depends on it.
    q: float = 1.0

    @property
    def text(self) -> str:
        """The name of its world without an ending: "tales" for the world "tales-600"."""
        return self.world.partition("-")[0]

    @property
    def asked(self) -> tuple[int, str, str, str, str]:
        """What a finding of another study must share to be about the same contrast."""
        contrast = self.contrast
        return self.steps, self.text, contrast.arm, contrast.control, contrast.outcome

    @property
    def word(self) -> str:
        """One of `decisions.WORDS`; "" without a verdict."""
        return self.verdict.word if self.verdict else ""

    @property
    def said(self) -> str:
        """The word with its length, such as "worse at 300 steps", or that it was withdrawn."""
        word = f"{self.word} at {self.steps} steps"
        return f"{WITHDRAWN} ({word})" if self.answer == WITHDRAWN else word

    @property
    def worth(self) -> float:
        """Worth of the part that the reference lacks, in nats per token."""
        return self.losses[1] - self.losses[0] if self.losses else 0.0


def findings(study: Study, records: Records) -> list[Finding]:
    """Return the finding of every contrast in each of its worlds, in the order of the questions."""
    asked, protocol = study.asked(), study.protocol
    floors = {world: rounding_floor(study, records, world) for world in study.worlds}
    cases = {
        str(place): measure(study, records, contrast, world, floors[world])
        for place, (_, contrast, world) in enumerate(asked)
    }
    verdicts = judge_all(
        cases,
        protocol.confidence,
        sensitivity=protocol.sensitivity,
        test=TESTS[protocol.test],
    )
    slopes = {world: token_worth(study, records, world) for world in study.worlds}
    # A contrast that is not finished counts with p = 1, as in Holm's correction.
    rates = benjamini_hochberg(
        {name: verdicts[name].p_value if name in verdicts else 1.0 for name in cases}
    )
    found = [
        replace(_finding(study, records, one, verdicts.get(name), slopes[one[2]]), q=rates[name])
        for name, one in zip(cases, asked, strict=True)
    ]
    words = {
        (f.contrast.arm, f.world): f.word
        for f in found
        if f.contrast.control == STANDARD and not f.contrast.outcome
    }
    return [
        replace(f, answer=HOLDS if f.word == words[f.contrast.repeats, f.world] else FAILS)
        if f.contrast.repeats and f.word
        else f
        for f in found
    ]


def measure(
    study: Study, records: Records, contrast: Contrast, world: str, rounding: float = 0.0
) -> Case | None:
    """Return the paired differences of a contrast.

    Return None if a trial is missing or diverged, and if nobody solved the task whose steps are
    compared: two forms that both never solve it are not equally good.
    """
    losses = _losses(study, records, contrast, world)
    if losses is None or _nobody_solves(study, records, contrast, world):
        return None
    control, reference, arm = losses
    # Arms that share a search share its choice of rates: its error cancels in the difference.
    names = (contrast.control, contrast.arm)
    own = {study.arms[name].rates_of or name for name in names}
    plans = [plan_of(study, records, world, name) for name in names] if len(own) > 1 else []
    lent = replicates_of(*(p.search.finite for p in reversed(plans))) if plans else Replicates()
    return Case(
        differences=tuple(a - c for a, c in zip(arm, control, strict=True)),
        margin=study.worlds[world].margin,
        worth=fmean(reference) - fmean(control),
        tuning=sqrt(sum(plan.search.error**2 for plan in plans)),
        rounding=rounding,
        replicates=lent.differences,
        world="" if study.arms[contrast.arm].jitter else world,
    )


def _losses(
    study: Study, records: Records, contrast: Contrast, world: str
) -> list[list[float]] | None:
    """Return losses of control, reference and arm by seed; None if one is missing or diverged."""
    plans = [plan_of(study, records, world, arm) for arm in contrast.arms]
    losses = [plan.losses(contrast.outcome) or [] for plan in plans]
    return losses if all(of_arm and all(map(isfinite, of_arm)) for of_arm in losses) else None


def _unsolved(study: Study, records: Records, contrast: Contrast, world: str) -> tuple[int, int]:
    """Return how many trainings of control and arm never solve a task; 0 if that is not asked."""
    if contrast.outcome != STEPS:
        return 0, 0
    control, arm = (
        sum(not run.steps_to_solve[1] for run in plan_of(study, records, world, name).verdict())
        for name in (contrast.control, contrast.arm)
    )
    return control, arm


def _nobody_solves(study: Study, records: Records, contrast: Contrast, world: str) -> bool:
    runs = len(plan_of(study, records, world, contrast.arm).verdict())
    return runs > 0 and _unsolved(study, records, contrast, world) == (runs, runs)


def rounding_floor(study: Study, records: Records, world: str) -> float:
    """Return the largest change of a final loss by rounding the start, over all seeds, in nats.

    It is the largest difference between an arm and the same arm with a jittered start; 0 if the
    study trains none.
    """
    twins = [c for _, c, w in study.asked() if w == world and c.null and study.arms[c.arm].jitter]
    cases = [measure(study, records, contrast, world) for contrast in twins]
    return max((abs(d) for case in cases if case for d in case.differences), default=0.0)


def by_ability(study: Study, records: Records, contrast: Contrast, world: str) -> dict[str, float]:
    """Return the mean difference on the tokens that need each ability, in nats per such token.

    The result is empty if the text has no abilities or a run is missing.
    """
    control, _, arm = (plan_of(study, records, world, a).verdict() for a in contrast.arms)
    if not arm or not control:
        return {}
    pairs = [*zip(arm, control, strict=True)]
    return {
        name: fmean(one.abilities[name] - other.abilities[name] for one, other in pairs)
        for name in arm[0].abilities
    }


def token_worth(study: Study, records: Records, world: str) -> float | None:
    """Return the nats that the standard form gains from e times its tokens; None if unmeasured."""
    values = token_values(study, records, world)
    return fmean(values) if values else None


def token_values(study: Study, records: Records, world: str) -> list[float]:
    """Return `token_worth` for each seed; [] if unmeasured.

    It compares complete trainings of all steps and of fewer, each with its own schedule.
    """
    if study.shorter is None:
        return []
    pair = [plan_of(study, records, world, arm).losses() for arm in (study.shorter, STANDARD)]
    if pair[0] is None or pair[1] is None:
        return []
    efolds = -log(study.arms[study.shorter].steps)
    return [(shorter - whole) / efolds for shorter, whole in zip(*pair, strict=True)]


def plan_of(study: Study, records: Records, world: str, arm: str) -> ArmPlan:
    """Return the plan of an arm in a world, or of the arm that is trained there in its place."""
    return ArmPlan(study, records, world, study.arm_in(world, arm))


def _finding(
    study: Study,
    records: Records,
    asked: tuple[str, Contrast, str],
    verdict: Verdict | None,
    slope: float | None,
) -> Finding:
    question, contrast, world = asked
    done = _progress([plan_of(study, records, world, arm) for arm in contrast.arms])
    at = {"question": question, "contrast": contrast, "world": world, "done": done}
    at["steps"] = study.world(world).settings["steps"]
    losses = _losses(study, records, contrast, world)
    if verdict is None or losses is None:
        ended = UNSOLVED if _nobody_solves(study, records, contrast, world) else DIVERGED
        return Finding(**at, answer=ended if done[0] == done[1] else UNFINISHED)
    control, reference, arm = map(fmean, losses)
    return Finding(
        **at,
        answer=answer_of(contrast, verdict.word),
        losses=(control, reference, arm),
        verdict=verdict,
        tokens=1 - exp(-verdict.mean / slope)
        if slope and slope > 0 and not contrast.outcome
        else None,
        unsolved=_unsolved(study, records, contrast, world),
    )


def _progress(plans: Sequence[ArmPlan]) -> tuple[int, int]:
    """Return the numbers of finished runs and of all runs that are planned so far."""
    done = total = 0
    for plan in plans:
        search, protocol = plan.search, plan.study.protocol
        tuned = len(search.losses) * len(protocol.tuning_seeds)
        factors = len(protocol.factors) + len(protocol.refine)
        fewest = max(tuned, factors * len(protocol.tuning_seeds))
        missing = len(plan.wanted()) if search.settled else len(protocol.verdict_seeds)
        done += tuned + len(protocol.verdict_seeds) - missing
        total += fewest + len(protocol.verdict_seeds)
    return done, total


def answer_of(contrast: Contrast, word: str) -> str:
    """Return the answer for a word; a difference within the margin also counts as equivalent."""
    direction, _, within = word.partition(" ")
    meanings = {word, direction, "equivalent"} if within else {word}
    if word in (UNDECIDED, INSENSITIVE):
        return word
    return HOLDS if meanings & {*contrast.expects} else FAILS


# Words that were withdrawn later.

_WITHDRAWN_FILE = "withdrawn.toml"


class Withdrawal(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An arm whose words against the standard form are withdrawn in some worlds, and why."""

    arm: str
    worlds: tuple[str, ...]
    reason: str


def withdrawals(folder: Path) -> tuple[Withdrawal, ...]:
    """Return the withdrawn words of the study in a folder.

    Raises:
        RunError: The file that lists them is damaged.
    """
    file = folder / _WITHDRAWN_FILE
    if not file.exists():
        return ()
    return as_record(read_toml(file).get("words", []), tuple[Withdrawal, ...], str(file))


def withdraw(found: Sequence[Finding], listed: Sequence[Withdrawal]) -> list[Finding]:
    """Return the findings, with the answer "withdrawn" for each withdrawn word."""
    withdrawn = {(row.arm, world) for row in listed for world in row.worlds}
    return [
        replace(f, answer=WITHDRAWN) if f.verdict and (f.contrast.arm, f.world) in withdrawn else f
        for f in found
    ]


def standing(study: Study, records: Records, folder: Path) -> list[Finding]:
    """Return the findings of the study in a folder, without the words that it lists as withdrawn.

    Raises:
        RunError: The file of withdrawn words is damaged.
    """
    return withdraw(findings(study, records), withdrawals(folder))
