"""docs/answers.md, made from registration and records alone, and compared with them again."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from mlx_attn.answers import findings, show, tables
from mlx_attn.answers.book import RecordBook, complaints
from mlx_attn.answers.findings import Finding, TrendFinding, trend_findings
from mlx_attn.answers.identities import Checked, parting_curves, truncation_curves
from mlx_attn.answers.registration import REGISTRATION, Registration, check_registered
from mlx_attn.answers.schedule import Records, searches
from mlx_attn.answers.study import BESIDES, OWN, Question, Study, the_study
from mlx_attn.comparison.statistics import critical
from mlx_attn.files import write_text
from mlx_attn.records import read_record
from mlx_attn.ui.plots import render_text, save_figure

CHECKED = "identities.json"
_MATRICES = ("no-key", "no-value")
"""Arms whose learning curves are drawn beside those of the protocol's first."""


def page_of(folder: Path) -> Path:
    """The page of a folder of records lies beside it, under its name."""
    return folder.with_name(f"{folder.name}.md")


def write_page(study: Study, folder: Path) -> Path:
    """Write the page and its pictures from the registration and the records of a folder."""
    contents = Contents.read(study, folder)
    for old in (folder / "figures").glob("*.svg"):
        old.unlink()
    for name, draw in contents.figures():
        _, bitmap = save_figure(draw, folder / "figures" / name)
        bitmap.unlink()
    write_text(page_of(folder), contents.text())
    return page_of(folder)


def verify(study: Study, folder: Path) -> Iterator[str]:
    """What does not agree: registration, records and page; nothing where all do.

    Raises:
        RunError: The study is not the registered one, or a record was changed.
    """
    contents = Contents.read(study, folder)
    yield from complaints(study, contents.book)
    for one in contents.besides.values():
        yield from complaints(one.study, one.book)
    page = page_of(folder)
    written = page.read_text(encoding="utf-8").splitlines() if page.exists() else []
    expected = contents.text().splitlines()
    if len(written) != len(expected):
        yield f"{page}: {len(written)} lines, and the records make {len(expected)}"
    for number, (line, right) in enumerate(zip(written, expected, strict=False), 1):
        if line != right:
            yield f"{page}, line {number}: '{line}', and the records say '{right}'"


@dataclass(frozen=True, slots=True)
class Besides:
    """A study that was asked besides the first, with what it found.

    `book` has its own records; `records`, `found` and `trends` know those of the first study too.
    """

    study: Study
    registration: Registration
    book: RecordBook
    records: Records
    found: Sequence[Finding]
    trends: Sequence[TrendFinding]

    @classmethod
    def read(cls, study: Study, folder: Path, known: Records) -> "Besides":
        """From its folder and the records of the first study."""
        registration, book = check_registered(study, folder), RecordBook(folder / "records")
        records = {**known, **book.records}
        found = findings.findings(study, records)
        return cls(study, registration, book, records, found, trend_findings(study, records))

    @property
    def searched(self) -> bool:
        """Whether it searched for rates that the first study did not."""
        tuning = {*self.study.protocol.tuning_seeds}
        return any(record.seed in tuning for record in self.book.records.values())

    def progress(self) -> str:
        """How much of it is done, in words."""
        finished = sum(f.verdict is not None for f in self.found)
        return f"{len(self.book.records):,} trainings of its own; {finished} of {len(self.found)}"

    def table(self, question: str) -> str:
        """The contrasts of a question, world by world."""
        return tables.contrasts(self.of(question))

    def of(self, question: str) -> list[Finding]:
        """What is found of a question."""
        return [f for f in self.found if f.question == question]

    def places(self, question: str) -> str:
        """Where a question is asked, and with which margins."""
        places: list[str] = []
        for name in dict.fromkeys(f.world for f in self.of(question)):
            world = self.study.world(name)
            tokens = tables.margin_in_tokens(self.study, self.records, name)
            margin = f"{world.margin:g}" + (f" ({tokens} of the tokens)" if tokens else "")
            places.append(f"{name}: {world.summary}, margin {margin}")
        return "; ".join(places)

    def single_runs(self) -> str:
        """How often one run of one seed has the sign of the mean."""
        signs = [
            sum((d > 0) == (f.verdict.mean > 0) for d in f.verdict.differences)
            for f in self.found
            if f.verdict
        ]
        seeds = len(self.study.protocol.verdict_seeds)
        return f"{signs[0]} of {seeds} single runs have the sign of the mean." if signs else ""

    def trend_table(self) -> str:
        """What every arm costs in tokens at each width, and whether that changes."""
        return tables.trends(self.study, self.found, self.trends)

    def figures(self) -> Iterator[tuple[str, Callable[[], Any]]]:
        """Its pictures by the question's name: of the widths where it has trends."""
        for question in self.study.questions:
            found = self.of(question)
            if any(one.costs for one in self.trends):
                yield question, partial(show.width_figure, self.trends)
            elif not self.trends and any(f.verdict for f in found):
                yield question, partial(show.question_figure, found, self.study)


@dataclass(frozen=True, slots=True)
class Contents:
    """What the page says."""

    study: Study
    registration: Registration
    book: RecordBook
    found: Sequence[Finding]
    checked: Mapping[str, Checked]
    name: str
    besides: Mapping[str, Besides] = field(default_factory=dict)

    @classmethod
    def read(cls, study: Study, folder: Path) -> "Contents":
        """The contents of a folder with a registration and records.

        Raises:
            RunError: The study is not the registered one, or a record was changed.
        """
        registration, book = check_registered(study, folder), RecordBook(folder / "records")
        found = findings.findings(study, book.records)
        besides = {
            name: Besides.read(the_study(name), folder / name, book.records)
            for name in BESIDES
            if (folder / name / REGISTRATION).exists()
        }
        checked = read_checked(folder)
        return cls(study, registration, book, found, checked, folder.name, besides)

    def text(self) -> str:
        """The page, in Markdown."""
        return render_text(
            "answers-own.md.jinja" if OWN in self.study.worlds else "answers.md.jinja",
            page=self,
            study=self.study,
            registration=self.registration,
            folder=self.name,
        )

    def progress(self) -> str:
        """How much of the study is done, in words."""
        finished = sum(f.verdict is not None for f in self.found)
        worlds = [w for w in self.study.worlds if any(f.verdict for f in self._of(world=w))]
        where = f", in {', '.join(worlds)}" if worlds else ""
        return (
            f"{len(self.book.records):,} trainings; {finished} of {len(self.found)} contrasts are "
            f"finished{where}"
        )

    def strictness(self, among: int) -> str:
        """Standard errors that a difference must have, the most extreme of so many contrasts."""
        return _strictness(self.study, among)

    def strictness_besides(self, name: str) -> str:
        """The same of all contrasts of a study besides."""
        study = self.besides[name].study
        return _strictness(study, len(study.asked()))

    def question(self, name: str) -> Question:
        """The question of that name."""
        return self.study.question(name)

    def drawn(self, name: str) -> bool:
        """Whether there is anything to draw for a question."""
        return any(f.verdict for f in self._of(question=name))

    def figures(self) -> Iterator[tuple[str, Callable[[], Any]]]:
        """The pictures by name: one of each question, and one of each world with abilities."""
        for name in self.study.questions:
            if self.drawn(name):
                yield name, partial(show.question_figure, self._of(question=name), self.study)
        for world, curves in self.curves().items():
            yield f"abilities-{world}", partial(show.ability_figure, curves)
        yield from self._of_checks()
        for one in self.besides.values():
            yield from one.figures()
        for name, (study, records) in self._searched().items():
            if found := searches(study, records):
                yield "-".join(filter(None, ("rates", name))), partial(show.rates_figure, found)

    def _of_checks(self) -> Iterator[tuple[str, Callable[[], Any]]]:
        if parted := self.checked.get("merged-learns-another-s"):
            yield "drift", partial(show.parting_figure, parting_curves(parted.numbers))
        if cut := self.checked.get("merged-has-a-flatter-spectrum"):
            curves, head_dim = truncation_curves(cut.numbers), int(cut.numbers["head_dim"])
            yield "truncation", partial(show.truncation_figure, curves, head_dim)

    def machines(self) -> str:
        """What the records were made on."""
        books = [self.book, *(one.book for one in self.besides.values())]
        made = {
            (r.machine.get("chip", ""), r.machine.get("device", ""))
            for b in books
            for r in b.records.values()
        }
        return "; ".join(f"{chip} ({device})" for chip, device in sorted(made)) or "no machine yet"

    def pictures(self) -> set[str]:
        """The names of all pictures."""
        return {name for name, _ in self.figures()}

    def curves(self) -> dict[str, list[findings.AbilityCurve]]:
        """By world, how the arms of its abilities differ from the control in training."""
        arms = dict.fromkeys((*self.study.protocol.first, *_MATRICES))
        asked = [arm for arm in arms if arm in self.study.arms]
        found = {
            world: findings.ability_curves(self.study, self.book.records, world, asked)
            for world in self.study.worlds
        }
        return {world: curves for world, curves in found.items() if curves}

    def number(self, identity: str, name: str, form: str) -> str:
        """What a check of an identity measured."""
        if identity not in self.checked:
            return "(not measured)"
        return format(self.checked[identity].numbers[name], form)

    def worlds(self) -> str:
        """The worlds as a table, with what queries and keys are worth in each."""
        return tables.worlds(self.study, self.book.records, self.found)

    def overview(self) -> str:
        """Every contrast in one line: the answers world by world."""
        return tables.overview(self.study, self.found)

    def overview_besides(self, name: str) -> str:
        """The same of a study besides."""
        return tables.overview(self.besides[name].study, self.besides[name].found)

    def table(self, name: str) -> str:
        """The contrasts of a question, a row for each world."""
        return tables.contrasts(self._of(question=name))

    def resolution(self) -> str:
        """What differences are worth where two forms compute the same functions."""
        return tables.resolution(self.study, self.found)

    def abilities(self) -> str:
        """Differences by what a token calls for, where the text says; "" where none is finished."""
        return tables.abilities(self.study, self.book.records, self.found)

    def rates(self) -> str:
        """The factor of the learning rates that every arm was given, and its spread over seeds."""
        return tables.rates(self.study, self.book.records)

    def rates_besides(self) -> dict[str, str]:
        """The same of every study besides that searched for rates, by its name."""
        return {
            name: tables.rates(study, records)
            for name, (study, records) in self._searched().items()
            if name
        }

    def searched(self) -> tuple[int, int]:
        """How many searches for rates are settled, and in how many the best factor is inside."""
        settled = [
            search
            for study, records in self._searched().values()
            for of_arm in searches(study, records).values()
            for search in of_arm.values()
        ]
        return len(settled), sum(search.interior for search in settled)

    def changed(self) -> str:
        """Differences of arms with settings that their study asks no longer; "" without any."""
        each = (tables.changed(study, records) for study, records in self._searched().values())
        return "; ".join(filter(None, each))

    def beside_first(self, name: str, suffix: str) -> str:
        """Differences of a study beside those of the first, where worlds differ by a suffix."""
        return tables.beside_first(self.besides[name].found, self.found, suffix)

    def _searched(self) -> dict[str, tuple[Study, Records]]:
        """The first study, named "", and those besides that searched, with their records."""
        besides = {n: (one.study, one.records) for n, one in self.besides.items() if one.searched}
        return {"": (self.study, self.book.records), **besides}

    def _of(self, **fields: Any) -> list[Finding]:
        return [f for f in self.found if all(getattr(f, k) == v for k, v in fields.items())]


def _strictness(study: Study, among: int) -> str:
    protocol = study.protocol
    seeds, level = len(protocol.verdict_seeds), (1 - protocol.confidence) / among
    return f"{critical(level, seeds):.1f}"


def write_checked(checked: Mapping[str, Checked], folder: Path) -> None:
    """Keep what checks of identities measured."""
    content = {name: asdict(one) for name, one in checked.items()}
    write_text(folder / CHECKED, json.dumps(content, indent=1) + "\n")


def read_checked(folder: Path) -> dict[str, Checked]:
    """What checks of identities measured; none where nothing was kept."""
    file = folder / CHECKED
    return read_record(file, dict[str, Checked]) if file.exists() else {}
