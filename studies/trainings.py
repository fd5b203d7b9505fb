"""Read the records of finished trainings: one line of JSON per training, one file per data set.

A record has the fields of `Training`. Its key is the digest of the settings that it was trained
with. `digests.json` holds a digest of each file, and of the registrations of the last trainings,
so that a changed digit or expectation is noticed.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import inf, log
from pathlib import Path
from statistics import mean
from typing import Any

import msgspec

from mlx_attn.errors import RunError
from mlx_attn.files import digest, write_text

ROOT = Path(__file__).parents[1]
ANSWERS = ROOT / "docs" / "answers"
RECORDS = ANSWERS / "records"
DIGESTS = "digests.json"
SIZES = ("two-sizes", "two-sizes-rates")  # the registrations of the study of two sizes
REGISTERED = [Path(__file__).with_name(f"{name}.toml") for name in ("lengths-late", *SIZES)]
"""Questions, forms, seeds, rates, test and expectations, written before the trainings they name."""

STANDARD = "standard"  # the book's form, the control of most contrasts
SHORT = 300
"""Steps at which rates were searched for most often; those at others follow a rule."""
TUNING = 10_000  # seeds from here on are of searches for rates, and no verdict uses them
SOLVED = 0.2
"""The loss of a solved task, in nats per answer, whose floor is 0: four of five are right."""


class Training(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """One finished training."""

    study: str  # the registered study that asked for it
    world: str  # a text with settings, such as "shakespeare-4800"; its first word names the text
    arm: str  # the form of attention
    seed: int
    rate: float  # factor of all learning rates of the world
    changes: dict[str, float] = {}  # other settings that its search chose, as query_key_lr
    loss: float | None  # nats per token of the whole validation text; None if it diverged
    curve: tuple[tuple[int, float], ...] = ()  # steps, and the loss of a part of that text
    key: str
    params: int
    seconds: float
    machine: str = ""  # digest of the rounding of its products; "" in the oldest records
    commit: str = ""
    # Since the study of two sizes:
    tokens: int = 0
    device: str = ""
    mlx: str = ""
    products: str = ""  # float32 or TF32
    source: str = ""  # digest of the package's files

    @property
    def text(self) -> str:
        """The text that it read."""
        return self.world.split("-")[0]

    @property
    def steps(self) -> int:
        """The number of steps; 0 for one that diverged."""
        return self.curve[-1][0] if self.curve else 0

    @property
    def rates(self) -> tuple[float, tuple[tuple[str, float], ...]]:
        """All that its search chose."""
        return self.rate, tuple(sorted(self.changes.items()))

    @property
    def steps_to_solve(self) -> tuple[float, bool]:
        """The steps until the loss falls to `SOLVED`, and True; all steps and False if never.

        The logarithm of the loss is interpolated between two measurements.
        """
        before: tuple[int, float] | None = None
        for step, loss in self.curve:
            if loss <= SOLVED:
                if before is None:
                    return float(step), True
                share = log(before[1] / SOLVED) / log(before[1] / loss)
                return before[0] + share * (step - before[0]), True
            before = step, loss
        return float(self.steps), False


def read(name: str, folder: Path = RECORDS) -> list[Training]:
    """Read a data set.

    Raises:
        RunError: A line is not a record, or two lines have one key.
    """
    file = folder / f"{name}.jsonl"
    decoder, found = msgspec.json.Decoder(Training), dict[str, Training]()
    for number, line in enumerate(file.read_bytes().splitlines(), 1):
        try:
            training = decoder.decode(line)
        except msgspec.DecodeError as error:
            raise RunError(f"{file}, line {number}: not a record ({error})") from error
        if training.key in found:
            raise RunError(f"{file}, line {number}: another line has the key {training.key}")
        found[training.key] = training
    return [*found.values()]


def names(folder: Path = RECORDS) -> list[str]:
    """Return the names of all data sets."""
    return sorted(file.stem for file in folder.glob("*.jsonl"))


def digests(folder: Path = RECORDS) -> dict[str, str]:
    """Return the digest of each file of records, and of each registration."""
    files = [*(folder / f"{name}.jsonl" for name in names(folder)), *REGISTERED]
    return {file.name: digest(file.read_bytes()) for file in files}


def seal(folder: Path = RECORDS) -> Path:
    """Note the digests of the records, after some were added; return the file."""
    path = folder / DIGESTS
    write_text(path, json.dumps(digests(folder), indent=1) + "\n")
    return path


def complaints(folder: Path = RECORDS) -> Iterator[str]:
    """Yield a complaint for each file that was changed, is missing, or is not known."""
    written = json.loads((folder / DIGESTS).read_text(encoding="utf-8"))
    found = digests(folder)
    for name in sorted({*written, *found}):
        if written.get(name) != found.get(name):
            yield f"{name}: its digest is {found.get(name)}, not {written.get(name)}"


Name = tuple[str, str, str]  # study, world and arm
Losses = dict[int, float]  # by seed


def rates_at(steps: int, rates: Mapping[str, float]) -> dict[str, float]:
    """Return the rates of a length from those at 300 steps: times (300 / steps)^(1/4)."""
    factor = (SHORT / steps) ** 0.25
    return {name: factor * rate for name, rate in rates.items()}


def by_rates(trainings: Iterable[Training], of_searches: bool) -> dict[Name, dict[Any, Losses]]:
    """Return the losses of verdicts or of searches by name, rates and seed; inf if diverged."""
    found = defaultdict[Name, dict[Any, Losses]](dict)
    for t in trainings:
        if (t.seed >= TUNING) == of_searches:
            of_seeds = found[t.study, t.world, t.arm].setdefault(t.rates, {})
            of_seeds[t.seed] = inf if t.loss is None else t.loss
    return {**found}


def losses(trainings: Sequence[Training]) -> dict[Name, Losses]:
    """Return the losses of verdicts by study, world and arm: at the rates that the arm chose.

    Those are the rates with the most seeds, and of several the best ones of the search, as a search
    was continued.
    """
    tuned, found = by_rates(trainings, of_searches=True), dict[Name, Losses]()
    for name, of_rates in by_rates(trainings, of_searches=False).items():
        means = {rates: mean(of.values()) for rates, of in tuned.get(name, {}).items()}
        chosen = min(of_rates, key=lambda rates: (-len(of_rates[rates]), means.get(rates, inf)))
        found[name] = of_rates[chosen]
    return found


def differences(of: Mapping[Name, Losses], name: Name, control: str = STANDARD) -> list[float]:
    """Return an arm's loss minus the control's, by seed, for the seeds that both have."""
    mine, theirs = of.get(name, {}), of.get((*name[:2], control), {})
    return [mine[seed] - theirs[seed] for seed in sorted({*mine} & {*theirs})]
