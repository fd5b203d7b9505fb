"""The data set `lengths`: the cost of each form by text and by length of training.

Eight studies asked the same contrasts, with other seeds, rates and lengths. Here they are one table
with one model (`mixed`).
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from shlex import quote
from statistics import fmean
from typing import Any, Self

import msgspec

from mlx_attn.records import package_table
from studies.mixed import Estimate, between_searches, estimate, words
from studies.trainings import SHORT, STANDARD, TUNING, Training, differences, losses, rates_at, read


class Text(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A text, with those settings of its trainings that are its own."""

    margin: float  # nats: smaller differences count as none
    longest: int  # steps; longer trainings measure nothing, or there are none
    rates: dict[str, float]  # at 300 steps; times (300 / steps)^(1/4) at others
    settings: dict[str, Any]
    modules: tuple[str, ...] = ()  # of Python's standard library, whose source is the text


class Contrast(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A form against a control."""

    arm: str
    question: str
    says: str
    settings: dict[str, Any]
    control: str = STANDARD
    without: tuple[str, ...] = ()  # studies whose protocol asks another question
    once: bool = False  # asked by the first study alone; corrected apart from the others


class Question(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A question of readers."""

    title: str  # with names of parts in backticks, as on the page
    also: tuple[str, ...]  # other names, among them the book's names of the parts
    compare: str  # the options of `compare` that ask it of a user's own text
    holds_for: str = ""  # which models were trained, if they are not those of `lengths`


class Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The contents of lengths.toml."""

    holds_for: str  # which models were trained
    searches: dict[str, str]  # the search that a study's rates are from
    texts: dict[str, Text]
    shared: dict[str, Any]
    questions: dict[str, Question]
    contrasts: tuple[Contrast, ...]


def table() -> Table:
    """Read lengths.toml."""
    return msgspec.convert(package_table("studies", "lengths"), Table)


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of a form on a text after a number of steps.

    Attributes:
        loss: The control's mean loss.
        params, saved: Parameters of the control, and how many of them the form does not have.
        tokens: Tokens of training for each parameter of the control.
    """

    contrast: Contrast
    text: str
    steps: int
    estimate: Estimate
    word: str
    loss: float
    params: int
    saved: int
    tokens: float


class Lengths:
    """All costs of the data set.

    Args:
        trainings: Its records.
        of: The table of texts and contrasts.
    """

    def __init__(self, trainings: Iterable[Training], of: Table):
        self.trainings, self.table = [*trainings], of
        self._losses = losses(self.trainings)
        self._of_world = {
            (t.study, t.world): t
            for t in self.trainings
            if t.arm == STANDARD and t.steps and t.seed < TUNING
        }
        self._params = {(t.text, t.arm): t.params for t in self.trainings if t.params}

    @classmethod
    def read(cls) -> Self:
        """Read the committed records."""
        return cls(read("lengths"), table())

    def worlds(self, text: str, steps: int) -> list[tuple[str, str]]:
        """Return study and world of all trainings on a text of this length."""
        at = text, steps
        return [name for name, t in self._of_world.items() if (t.text, t.steps) == at]

    def studies(self, contrast: Contrast, text: str, steps: int) -> dict[str, list[float]]:
        """Return the differences by seed of each study that asked a contrast."""
        found = {
            study: differences(self._losses, (study, world, contrast.arm), contrast.control)
            for study, world in self.worlds(text, steps)
            if study not in contrast.without
        }
        return {study: by_seed for study, by_seed in found.items() if by_seed}

    def searches(self, contrast: Contrast, text: str, steps: int) -> dict[str, list[float]]:
        """Return the differences by seed of each search; studies of one search are joined."""
        groups = defaultdict[str, list[float]](list)
        for study, by_seed in self.studies(contrast, text, steps).items():
            groups[self.table.searches[study]] += by_seed
        return {name: found for name, found in groups.items() if len(found) > 1}

    @cached_property
    def between(self) -> float:
        """The standard deviation between searches, from all contrasts with three or more."""
        asked = [contrast for contrast in self.table.contrasts if not contrast.without]
        each = [
            [*self.searches(contrast, text, SHORT).values()]
            for contrast, text in product(asked, self.table.texts)
        ]
        return between_searches([groups for groups in each if len(groups) > 2])

    @cached_property
    def costs(self) -> dict[tuple[str, str, int], Cost]:
        """Every contrast that is measured, by arm, text and steps.

        Words are corrected over the contrasts that are asked together.
        """
        found = dict[tuple[str, str, int], Cost]()
        for (text, steps), once in product(self._places(), (False, True)):
            asked = {c.arm: c for c in self.table.contrasts if c.once == once}
            estimates = {
                arm: estimate([*groups.values()], self.between)
                for arm, contrast in asked.items()
                if (groups := self.searches(contrast, text, steps))
            }
            margin = self.table.texts[text].margin
            small = [arm for arm, one in estimates.items() if one.within(margin)]
            said = words(estimates, small)
            for arm, one in estimates.items():
                found[arm, text, steps] = self._cost(asked[arm], text, steps, one, said[arm])
        return found

    def _places(self) -> list[tuple[str, int]]:
        """Return each text with each of its lengths, the longest first."""
        pairs = {(t.text, t.steps) for t in self._of_world.values()}
        fits = [pair for pair in pairs if pair[1] <= self.table.texts[pair[0]].longest]
        texts = [*self.table.texts]
        return sorted(fits, key=lambda pair: (texts.index(pair[0]), -pair[1]))

    def _cost(self, contrast: Contrast, text: str, steps: int, of: Estimate, word: str) -> Cost:
        settings = self.table.texts[text].settings
        params = self._params[text, contrast.control]
        by_world = [
            self._losses.get((*world, contrast.control), {}) for world in self.worlds(text, steps)
        ]
        return Cost(
            contrast=contrast,
            text=text,
            steps=steps,
            estimate=of,
            word=word,
            loss=fmean(loss for by_seed in by_world for loss in by_seed.values()),
            params=params,
            saved=params - self._params[text, contrast.arm],
            tokens=steps * settings["batch_size"] * settings["context_length"] / params,
        )

    def cost(self, arm: str, text: str, steps: int = 0) -> Cost | None:
        """Return a cost, by default after the longest training; None if it is not measured."""
        at = [c for c in self.costs.values() if (c.contrast.arm, c.text) == (arm, text)]
        return next((c for c in at if steps in (0, c.steps)), None)  # the longest comes first


def command(of: Table, contrast: Contrast, text: str, steps: int, seeds: int) -> str:
    """Return the command that asks a contrast again, with the settings of its trainings.

    After 300 steps each form searches for its own rates; at other lengths they follow the rule.
    """
    place = of.texts[text]
    rates = {name: round(rate, 4) for name, rate in rates_at(steps, place.rates).items()}
    settings = {**place.settings, **of.shared, **rates, "steps": steps, "seeds": seeds}
    forms = {STANDARD: {}} | {one.arm: one.settings for one in of.contrasts}
    arms = [arm(name, forms[name]) for name in (contrast.control, contrast.arm)]
    tuned = [] if steps == SHORT else ["--no-tune"]
    flags = [option(name, value) for name, value in settings.items()]
    return " ".join(["mlx-attn compare", *arms, *flags, *tuned])


def arm(name: str, settings: Mapping[str, Any]) -> str:
    """Return the option of `compare` that names a form."""
    if settings.get("variant", STANDARD) == name and len(settings) < 2:
        return f"--arm {name}"
    changes = [settings.get("variant", STANDARD)]
    changes += [f"{key}={value}" for key, value in settings.items() if key != "variant"]
    return f"--arm {quote(f'{name}: ' + ', '.join(changes))}"


def option(name: str, value: object) -> str:
    """Return a setting as an option of the command line."""
    flag = name.replace("_", "-")
    if isinstance(value, bool):
        return f"--{flag}" if value else f"--no-{flag}"
    return f"--{flag} {value:g}" if isinstance(value, float) else f"--{flag} {value}"
