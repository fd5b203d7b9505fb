"""The study as data: worlds, arms, questions and protocol, and the trials that they need.

`worlds.toml` and `questions.toml` hold everything that decides a number of the page; the code holds
nothing of the kind. Their digest is registered (`registration.py`) before anything is trained.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import msgspec

from mlx_attn.errors import ConfigError, RunError, find_row
from mlx_attn.records import as_record, package_table
from studies.decisions import WORDS

STANDARD = "standard"  # the control of every contrast that names no other
STEPS = "steps"  # the outcome of a contrast that asks how soon a task is solved

MODERATED, SHRUNK, WORST_OF_FIVE = "moderated-t", "shrunk-t", "worst-of-five"  # names of tests

TRENDS = {
    "stays": "the change with each doubling is shown to be smaller than the margin",
    "rises": "the cost rises with each doubling, whatever the margin",
    "rises within the margin": "it rises, by less than the margin",
    "falls": "the cost falls with each doubling, whatever the margin",
    "falls within the margin": "it falls, by less than the margin",
    "undecided": "these seeds show neither",
}
"""The words for how a cost changes with the width."""


_RATES = ("lr", "min_lr", "muon_lr")  # the settings that a factor of the learning rates multiplies

_START = "weights by name"
"""How weights are drawn: trainings that drew them otherwise are other trainings."""


def digest_of(value: Any) -> str:
    """Return the BLAKE2b digest of a value as JSON, whatever the order of its keys."""
    text = json.dumps(value, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()


@dataclass(frozen=True)
class Trial:
    """A training of a study. Its settings decide all but the time that it takes."""

    world: str
    arm: str
    settings: Mapping[str, Any]  # all registered settings, flat, learning rates scaled
    lr_scale: float  # the factor that they were scaled with
    text: str  # digest of the training text; "" for a corpus whose download is checked
    jitter: bool = False  # whether every weight of its start is moved by one rounding

    @property
    def seed(self) -> int:
        """Of the batches; trainings of one seed are pairs."""
        return self.settings["seed"]

    @cached_property
    def key(self) -> str:
        """Names the training whatever the versions: the same settings and text, the same key."""
        start = [_START, "jitter"] if self.jitter else [_START]
        return digest_of([dict(self.settings), self.text, start])


class _Row(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A row of the study's data, which refuses unknown keys."""


class World(_Row, frozen=True, kw_only=True):
    """A text and the settings that its trainings share."""

    summary: str
    # BLAKE2b digest of the text, as `sources.read_source` computes it; "" for a corpus that `data`
    # names, because every download of it is checked.
    text: str
    settings: dict[str, Any]  # flat and complete, except for the arm's settings
    margin: float  # the largest difference that counts as equal, in nats per token; see `reason`
    reason: str
    # Modules of Python's standard library whose source is the text; if empty, `data` names it.
    modules: tuple[str, ...] = ()
    same: dict[str, str] = {}  # arms that compute what another arm does here, from the same weights
    # Learning-rate factors by arm, registered here instead of searched for.
    factors: dict[str, float] = {}


_BOOK_NAMES = {
    "out-proj": "output",
    "w-query": "query",
    "w-key": "query",
    "w-value": "value",
    "num-heads": "heads",
    "n-heads": "heads",
}
"""Questions by the book's names of the parts that they ask about."""


class StudyArm(_Row, frozen=True, kw_only=True):
    """A form of attention: the settings that set it apart."""

    settings: dict[str, Any]
    says: str
    steps: float = 1.0  # share of the world's steps
    rates_of: str = ""  # the arm whose factor it takes; "" searches for its own
    # Number of the verdict's seeds to train on; 0 is all. Only a reference may have fewer, because
    # only its mean counts.
    seeds: int = 0
    # If True, every weight of the start is moved to the next float32, up or down.
    jitter: bool = False


class Contrast(_Row, frozen=True, kw_only=True):
    """An arm against a control, with the reference arm that lacks the part in question."""

    arm: str
    reference: str
    statement: str
    source: str
    expects: tuple[str, ...] = ()  # words that bear the statement out
    control: str = STANDARD
    worlds: tuple[str, ...] = ()  # the worlds that ask it; empty is all
    # The number that is compared: "" is the loss of all tokens; the name of an ability is the loss
    # of the tokens that need it; `STEPS` is the logarithm of the steps until a task is solved.
    outcome: str = ""
    null: bool = False  # true if both forms compute the same functions
    # The arm of an earlier contrast with the standard form that this one trains again; "" if it
    # repeats none. A repetition expects the word of the first.
    repeats: str = ""

    @property
    def arms(self) -> tuple[str, str, str]:
        """The control, the reference and the arm."""
        return self.control, self.reference, self.arm


class Question(_Row, frozen=True, kw_only=True):
    """A question of the page, and the contrasts that answer it."""

    title: str
    contrasts: tuple[Contrast, ...]


class Trend(_Row, frozen=True, kw_only=True):
    """How the cost of an arm, in tokens, changes from width to width."""

    arm: str  # the arm of a contrast that every world asks
    statement: str
    margin: float  # the largest change of ln(tokens) per doubling that counts as none; see `reason`
    reason: str
    expects: tuple[str, ...]  # words of `TRENDS` that bear the statement out

    def __post_init__(self) -> None:
        for word in self.expects:
            find_row(TRENDS, word, "trend")


class Prediction(_Row, frozen=True, kw_only=True):
    """An interval that the cost of an arm is predicted to lie in, registered before it is measured.

    Costs are shares of the control's loss: (loss of the arm - loss of the control) / loss of the
    control.
    """

    arm: str  # the arm of a contrast of the study
    low: float  # the smallest predicted cost
    point: float  # the most likely one
    high: float  # the largest

    def __post_init__(self) -> None:
        if not self.low <= self.point <= self.high:
            raise ConfigError(
                f"the prediction of {self.arm}: {self.low} <= {self.point} <= {self.high} is wrong"
            )


class Protocol(_Row, frozen=True, kw_only=True):
    """How every arm is tuned and judged; questions.toml explains each key.

    Without tuning seeds, every arm takes the first factor.
    """

    factors: tuple[float, ...]
    extensions: int
    refine: tuple[float, ...] = ()
    # Multiples of the other matrices' rate that queries and keys are tried with afterwards; empty
    # leaves them at 1. The first must be 1.
    query_key_factors: tuple[float, ...] = ()
    tuning_seeds: tuple[int, ...]
    verdict_seeds: tuple[int, ...]
    confidence: float
    sensitivity: float
    points: int
    curve_share: float
    first: tuple[str, ...]
    analysis: tuple[str, ...]

    @property
    def test(self) -> str:
        """The test that the study was registered with, a name of `findings.TESTS`.

        The analysis names "moderated-t", or a moderated t with an estimated prior; in older studies
        it names neither.
        """
        text = " ".join(self.analysis)
        return (
            MODERATED if MODERATED in text else SHRUNK if "moderated t" in text else WORST_OF_FIVE
        )


class Study(_Row, frozen=True, kw_only=True, dict=True, omit_defaults=True):
    """A whole study: its protocol, worlds, arms, questions, trends and predictions."""

    protocol: Protocol
    worlds: dict[str, World]
    arms: dict[str, StudyArm]
    questions: dict[str, Question]
    not_tested: dict[str, str] = {}
    trends: tuple[Trend, ...] = ()
    predictions: tuple[Prediction, ...] = ()
    rates_from: dict[str, str] = {}  # worlds that take the factors found in another world

    def __post_init__(self) -> None:
        for row in (*self.trends, *self.predictions):
            find_row(self.arms, row.arm, "arm")
        for world in (*self.rates_from, *self.rates_from.values()):
            self.world(world)
        for question in self.questions.values():
            for contrast in question.contrasts:
                self._check(contrast)

    def _check(self, contrast: Contrast) -> None:
        for arm in contrast.arms:
            find_row(self.arms, arm, "arm")
        for world in contrast.worlds:
            self.world(world)
        for word in contrast.expects:
            find_row(WORDS, word, "verdict")
        name = f"the contrast of {contrast.arm}"
        if bool(contrast.expects) == bool(contrast.repeats):
            raise ConfigError(f"{name}: it expects words, or repeats another")
        if contrast.outcome and self.protocol.tuning_seeds:
            raise ConfigError(f"{name}: rates are searched for by the loss, not {contrast.outcome}")
        if any(self.arms[arm].seeds for arm in (contrast.arm, contrast.control)):
            raise ConfigError(f"{name}: only a reference may have fewer seeds")

    @cached_property
    def digest(self) -> str:
        """Digest of everything that is registered."""
        return digest_of(msgspec.to_builtins(self))

    @cached_property
    def _trials(self) -> dict[tuple[str, str, int, float, str], Trial]:
        """A cache of trials: a page asks for each of them some twenty times."""
        return {}

    @cached_property
    def shorter(self) -> str | None:
        """The arm with the standard form and fewer steps, if any."""
        names = (n for n, arm in self.arms.items() if arm.steps != 1 and arm.rates_of == STANDARD)
        return next(names, None)

    def world(self, name: str) -> World:
        """Return the named world; raise ConfigError with the nearest name if it is unknown."""
        return find_row(self.worlds, name, "world")

    def question(self, name: str) -> Question:
        """Return the named question; raise ConfigError with the nearest name if it is unknown."""
        return find_row(self.questions, name, "question")

    def question_name(self, name: str, others: Iterable[str] = ()) -> str:
        """Return the name of a question from that name or from the book's name of its part.

        Args:
            name: As the user wrote it.
            others: Names of questions that other studies ask, which are returned as well.

        Raises:
            ConfigError: The question is unknown; the message has the nearest name.
        """
        plain = name.strip().lower().replace("_", "-")
        own, known = _BOOK_NAMES.get(plain, plain), dict.fromkeys((*self.questions, *others))
        find_row(known, own if own in known else name, "question")
        return own

    def asked(self) -> list[tuple[str, Contrast, str]]:
        """Return every contrast with its question's name and each world that asks it."""
        return [
            (name, contrast, world)
            for name, question in self.questions.items()
            for contrast in question.contrasts
            for world in (contrast.worlds or self.worlds)
        ]

    def arm_in(self, world: str, arm: str) -> str:
        """Return the arm that a world trains in place of this one."""
        return self.world(world).same.get(arm, arm)

    def trial(
        self,
        world: str,
        arm: str,
        seed: int,
        scale: float,
        changes: Mapping[str, Any] | None = None,
    ) -> Trial:
        """Return the trial of an arm in a world, with a factor of the rates and changed settings.

        The settings decide the trial completely; `data` is only the name of the text.
        """
        name = (world, arm, seed, scale, str(changes or {}))
        if name not in self._trials:
            place, form = self.world(world), find_row(self.arms, arm, "arm")
            flat = {**place.settings, **form.settings, **(changes or {}), "seed": seed}
            flat["steps"] = round(flat["steps"] * form.steps)
            flat |= {key: flat[key] * scale for key in _RATES if key in flat}
            self._trials[name] = Trial(world, arm, flat, scale, place.text, form.jitter)
        return self._trials[name]


def study_from(data: Mapping[str, Any]) -> Study:
    """Return a study from the tables of its files.

    Raises:
        ConfigError: A row lacks a key, has an unknown key, or names an unknown row.
    """
    try:
        return as_record(dict(data), Study, "the study's data")
    except RunError as error:
        raise ConfigError(str(error)) from error


@cache
def the_study() -> Study:
    """Return the first study."""
    worlds, rest = (package_table("studies", name) for name in ("worlds", "questions"))
    return study_from({"worlds": worlds, **rest})
