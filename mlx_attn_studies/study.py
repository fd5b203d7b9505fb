"""The study as data: worlds, arms, questions and protocol, and the trials that they need.

`worlds.toml` and `questions.toml` hold everything that decides a number of the page; the code holds
nothing of the kind. Their digest is registered (`registration.py`) before anything is trained.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict
from functools import cache, cached_property
from typing import Any

import msgspec
from msgspec import structs

from mlx_attn.attention.config import MAPS
from mlx_attn.comparison.decisions import WORDS
from mlx_attn.comparison.plan import DEFAULTS, RATES, REPORTS, Trial, digest_of
from mlx_attn.errors import ConfigError, RunError, find_row
from mlx_attn.records import as_record, package_table
from mlx_attn.text.downloads import data_directory
from mlx_attn.text.sources import read_source
from mlx_attn.training.config import Settings, resolve

STANDARD = "standard"  # the control of every contrast that names no other
STEPS = "steps"  # the outcome of a contrast that asks how soon a task is solved
OWN = "own"  # the world of a study of a user's own text

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


_LEFT_OUT = {"muon_lr": 0.01, "muon_momentum": 0.95}
"""Settings missing from registered worlds, with their values then: the preset may change."""


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
    """Return the study in this package, whose questions can be asked of any text."""
    worlds, rest = (package_table("mlx_attn_studies", name) for name in ("worlds", "questions"))
    return study_from({"worlds": worlds, **rest})


# The questions on a user's own text: a study of one world.

TEST = (
    "p-values are those of the test moderated-t (mlx_attn.comparison.t_tests): the largest over "
    "five families of distributions, of t with a standard error that contains the spread of "
    "tuning's runs and of other arms, and the choice of the learning rates: what it costs when "
    "tuning seeds are drawn again, and what a parabola says a finer grid would gain."
)
"""The test that a study of a user's own text registers, in place of the first study's test."""

_FIRST_SEED = 100
_SET_BY_THE_STUDY = {
    *("seed", "init_seed", "eval_every", "save_every", "log_every", "track", "patience"),
    *("epochs", "minutes"),
}


def own_study(
    data: str, preset: str, delta: float, seeds: int, questions: Collection[str] = ()
) -> Study:
    """Return a study that asks all or some of the questions of one text.

    Args:
        data: A value of `--data`; "" uses the preset's text.
        preset: Name of the preset; "" uses the defaults of `compare`.
        delta: The margin, in nats per token.
        seeds: Number of seeds of every verdict.
        questions: Names of the questions to ask; empty asks all.

    Raises:
        ConfigError: The preset is not bounded by steps, has one head, or changes the attention.
    """
    first = the_study()
    for name in questions:
        first.question(name)
    layer: dict[str, Any] = {"preset": preset} if preset else {**DEFAULTS}
    settings = resolve(layer, {"data": data} if data else {})
    _check_fits(settings, preset)
    world = _world(settings, first, delta)
    asked = {
        name: Question(title=question.title, contrasts=contrasts)
        for name, question in first.questions.items()
        if (not questions or name in questions)
        and (contrasts := _contrasts(question, world.settings["position"]))
    }
    named = {arm for q in asked.values() for contrast in q.contrasts for arm in contrast.arms}
    arms = {n: a for n, a in first.arms.items() if n in named | {first.shorter}}
    order = tuple(name for name in first.protocol.first if name in arms)
    numbers = tuple(range(_FIRST_SEED, _FIRST_SEED + seeds))
    analysis = tuple(
        TEST if line.startswith("p-values") else line for line in first.protocol.analysis
    )
    protocol = structs.replace(
        first.protocol, verdict_seeds=numbers, first=order, analysis=analysis
    )
    return Study(protocol=protocol, worlds={OWN: world}, arms=arms, questions=asked)


def _check_fits(settings: Settings, preset: str) -> None:
    if not settings.training.steps:
        raise ConfigError(f"preset {preset} is not bounded by steps: name one that is, as tiny")
    if settings.variant != STANDARD:
        raise ConfigError(
            f"preset {preset} has the attention {settings.variant}, and the questions are about "
            "changes of the standard form: name another, as tiny"
        )
    if settings.model.get("n_heads", 0) == 1:
        raise ConfigError(f"preset {preset} has one head, and the questions are about several")


def _world(settings: Settings, first: Study, delta: float) -> World:
    """Return the world of a text; branches start as in the book, as the statements assume."""
    flat = {**settings.model, **settings.training.as_dict(), **asdict(settings.text)}
    flat = {key: value for key, value in flat.items() if key not in {*_SET_BY_THE_STUDY, *MAPS}}
    flat |= {"start": "book", "position": settings.model_config(1).position}
    same_positions = [
        w for w in first.worlds.values() if w.settings["position"] == flat["position"]
    ]
    world = World(
        summary=f"{flat['data']}; the settings of preset {settings.preset}",
        text="",
        settings=flat,
        margin=delta,
        reason="given with --delta",
        # Only the positions decide which reference arms compute the same function.
        same=same_positions[0].same if same_positions else {},
    )
    return structs.replace(world, text=read_source(flat["data"], data_directory()).digest)


def _contrasts(question: Question, position: str) -> tuple[Contrast, ...]:
    """Return the contrasts of a question that also hold for another text.

    With RoPE, forms that compute one function elsewhere compute two. Repetitions from jittered
    starts are only about the first study's own trainings.
    """
    return tuple(
        structs.replace(contrast, worlds=())
        for contrast in question.contrasts
        if not contrast.repeats and (not contrast.worlds or (contrast.null and position != "rope"))
    )
