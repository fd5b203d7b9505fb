"""The study as data: worlds, arms, questions and protocol, and the trials that they ask for.

`worlds.toml` and `questions.toml` say everything that decides a number of the page; nothing in code
does. Their digest is registered (`registration.py`) before anything is trained.
"""

from collections.abc import Mapping
from functools import cache, cached_property
from typing import Any

import msgspec

from mlx_attn.comparison.decisions import WORDS
from mlx_attn.comparison.plan import RATES, REPORTS, Trial, digest_of
from mlx_attn.comparison.t_tests import MODERATED, SHRUNK, WORST_OF_FIVE
from mlx_attn.errors import ConfigError, RunError, find_row
from mlx_attn.records import as_record, package_table

STANDARD = "standard"
"""The arm that every contrast has for a control, unless it names another."""

OWN = "own"
"""The world of a study that asks the same of a user's own text."""

TRENDS = {
    "stays": "the change with each doubling is shown to be smaller than the margin",
    "rises": "the cost rises with each doubling, whatever the margin",
    "rises within the margin": "it rises, by less than the margin",
    "falls": "the cost falls with each doubling, whatever the margin",
    "falls within the margin": "it falls, by less than the margin",
    "undecided": "these seeds show neither",
}
"""The words for how a cost changes with the width."""


_LEFT_OUT = {"muon_lr": 0.01, "muon_momentum": 0.95}
"""Settings that worlds were registered without, as they were then: the preset may change."""


class _Row(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A row of the study's data; unknown keys are refused."""


class World(_Row, frozen=True, kw_only=True):
    """A text with all that its trainings share.

    Attributes:
        text: BLAKE2b digest of the text, as `sources.read_source` computes it.
        settings: Flat, complete but for the arm's.
        modules: Of Python's standard library, whose source is the text; else `data` names one.
        margin: Differences below it, in nats per token, do not count; `reason` has the reason.
        same: Arms that compute what another arm does here, from the same weights.
        factors: Of the rates, by arm: registered here instead of searched for.
    """

    summary: str
    text: str
    settings: dict[str, Any]
    margin: float
    reason: str
    modules: tuple[str, ...] = ()
    same: dict[str, str] = {}
    factors: dict[str, float] = {}


_BOOK_NAMES = {
    "out-proj": "output",
    "w-query": "query",
    "w-key": "query",
    "w-value": "value",
    "num-heads": "heads",
    "n-heads": "heads",
}
"""The questions that ask about a part, by the book's name of it."""


class StudyArm(_Row, frozen=True, kw_only=True):
    """A form of attention: the settings that set it apart.

    Attributes:
        steps: Share of the world's steps.
        rates_of: The arm whose factor it takes; "" searches for its own.
        seeds: How many of the verdict's seeds it is trained on, for a reference whose mean alone
            counts; 0 is all.
        jitter: Whether every weight of the start is moved to the next float32, up or down.
    """

    settings: dict[str, Any]
    says: str
    steps: float = 1.0
    rates_of: str = ""
    seeds: int = 0
    jitter: bool = False


class Contrast(_Row, frozen=True, kw_only=True):
    """An arm against a control, with a reference arm that lacks the part in question.

    Attributes:
        expects: Words that bear the statement out.
        worlds: The worlds that ask it; empty means all.
        null: Whether both forms compute the same functions.
        repeats: The arm of a contrast with the standard form that this one trains again; "" is a
            contrast of its own. A repetition expects the word that the first has.
    """

    arm: str
    reference: str
    statement: str
    source: str
    expects: tuple[str, ...] = ()
    control: str = STANDARD
    worlds: tuple[str, ...] = ()
    null: bool = False
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
    """How the cost of an arm, in tokens, changes from width to width.

    Attributes:
        arm: Of a contrast that is asked in every world.
        margin: Changes of ln(tokens) with each doubling below it count as none; `reason` says why.
        expects: Words of `TRENDS` that bear the statement out.
    """

    arm: str
    statement: str
    margin: float
    reason: str
    expects: tuple[str, ...]

    def __post_init__(self) -> None:
        for word in self.expects:
            find_row(TRENDS, word, "trend")


class Protocol(_Row, frozen=True, kw_only=True):
    """How every arm is tuned and judged; the meaning of each key is said in questions.toml.

    Without tuning seeds every arm has the first factor.
    """

    factors: tuple[float, ...]
    extensions: int
    refine: tuple[float, ...] = ()
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
        """The test that the study was registered with, one of `t_tests.TESTS`.

        Its analysis names "moderated-t", or a moderated t with a prior that is estimated; older
        ones name neither.
        """
        text = " ".join(self.analysis)
        return (
            MODERATED if MODERATED in text else SHRUNK if "moderated t" in text else WORST_OF_FIVE
        )


class Study(_Row, frozen=True, kw_only=True, dict=True, omit_defaults=True):
    """Everything that is asked, and how."""

    protocol: Protocol
    worlds: dict[str, World]
    arms: dict[str, StudyArm]
    questions: dict[str, Question]
    not_tested: dict[str, str] = {}
    trends: tuple[Trend, ...] = ()

    def __post_init__(self) -> None:
        for trend in self.trends:
            find_row(self.arms, trend.arm, "arm")
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
        what = f"the contrast of {contrast.arm}"
        if bool(contrast.expects) == bool(contrast.repeats):
            raise ConfigError(f"{what}: it expects words, or repeats another")
        if any(self.arms[arm].seeds for arm in (contrast.arm, contrast.control)):
            raise ConfigError(f"{what}: only a reference may have fewer seeds")

    @cached_property
    def digest(self) -> str:
        """Of all that is registered."""
        return digest_of(msgspec.to_builtins(self))

    @cached_property
    def _trials(self) -> dict[tuple[str, str, int, float, str], Trial]:
        """The trials made so far: a page asks for each of them some twenty times."""
        return {}

    @cached_property
    def shorter(self) -> str | None:
        """Return the arm that is the standard form with fewer steps, or None."""
        found = (n for n, arm in self.arms.items() if arm.steps != 1 and arm.rates_of == STANDARD)
        return next(found, None)

    def world(self, name: str) -> World:
        """Return the named world; an unknown one is refused with the nearest."""
        return find_row(self.worlds, name, "world")

    def question(self, name: str) -> Question:
        """Return the named question; an unknown one is refused with the nearest."""
        return find_row(self.questions, name, "question")

    def question_name(self, name: str) -> str:
        """Return the name of a question, given its own name or the book's name of the part.

        Raises:
            ConfigError: The question is unknown; the message suggests the nearest.
        """
        plain = name.strip().lower().replace("_", "-")
        own = _BOOK_NAMES.get(plain, plain)
        self.question(own if own in self.questions else name)
        return own

    def asked(self) -> list[tuple[str, Contrast, str]]:
        """Return every contrast in every world where it is asked, with its question's name."""
        return [
            (name, contrast, world)
            for name, question in self.questions.items()
            for contrast in question.contrasts
            for world in (contrast.worlds or self.worlds)
        ]

    def arm_in(self, world: str, arm: str) -> str:
        """Return the arm that is trained in a world for this one."""
        return self.world(world).same.get(arm, arm)

    def trial(
        self,
        world: str,
        arm: str,
        seed: int,
        scale: float,
        changes: Mapping[str, Any] | None = None,
    ) -> Trial:
        """Return a training of an arm in a world, with a factor of the rates and changed settings.

        Its settings are all that decides it; `data` is the name of the text.
        """
        name = (world, arm, seed, scale, str(changes or {}))
        if name not in self._trials:
            place, form = self.world(world), find_row(self.arms, arm, "arm")
            flat = {**place.settings, **form.settings, **(changes or {}), "seed": seed}
            flat["steps"] = round(flat["steps"] * form.steps)
            flat |= {key: flat[key] * scale for key in RATES if key in flat}
            more = {k: v for k, v in _LEFT_OUT.items() if k not in flat}
            more |= dict.fromkeys(REPORTS, 0)
            more["log_every"] = max(1, flat["steps"] // self.protocol.points)
            self._trials[name] = Trial(
                arm=arm,
                settings=flat | more,
                lr_scale=scale,
                text=place.text,
                jitter=form.jitter,
                world=world,
                curve_share=self.protocol.curve_share,
                unnamed=tuple(more),
            )
        return self._trials[name]


def study_from(data: Mapping[str, Any]) -> Study:
    """Return a study of tables, as the files hold them.

    Raises:
        ConfigError: A row lacks a key, has one too many, or names what there is not.
    """
    try:
        return as_record(dict(data), Study, "the study's data")
    except RunError as error:
        raise ConfigError(str(error)) from error


@cache
def the_study() -> Study:
    """Return the study that this package holds: the questions that can be asked of any text."""
    worlds, rest = (package_table("mlx_attn.answers", name) for name in ("worlds", "questions"))
    return study_from({"worlds": worlds, **rest})
