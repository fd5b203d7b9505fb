"""docs/answers.md, made from registration and records alone, and compared with them again."""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from math import expm1
from pathlib import Path
from statistics import stdev
from typing import Any

from mlx_attn.answers import findings, show
from mlx_attn.answers.book import RecordBook, complaints
from mlx_attn.answers.findings import Cost, Finding, TrendFinding, trend_findings
from mlx_attn.answers.identities import Checked, truncation_curves
from mlx_attn.answers.schedule import ArmPlan, Records, arm_plans
from mlx_attn.answers.study import (
    BESIDES,
    OWN,
    REGISTRATION,
    Contrast,
    Question,
    Registration,
    Study,
    check_registered,
    the_study,
)
from mlx_attn.comparison.statistics import critical
from mlx_attn.files import write_text
from mlx_attn.records import read_record
from mlx_attn.ui.plots import render_text, save_figure

CHECKED = "identities.json"
_DONE = "{} of {} runs"
_COLUMNS = (
    *("contrast", "world", "control", "arm", "difference, 95 %", "p: no difference"),
    *("p: outside the margin", "word", "of the part", "tokens"),
)


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

    def progress(self) -> str:
        """How much of it is done, in words."""
        finished = sum(f.measured is not None for f in self.found)
        return f"{len(self.book.records):,} trainings of its own; {finished} of {len(self.found)}"

    def table(self, question: str) -> str:
        """The contrasts of a question, world by world."""
        return "\n".join([*_heading(_COLUMNS), *map(_row, self.of(question))])

    def of(self, question: str) -> list[Finding]:
        """What is found of a question."""
        return [f for f in self.found if f.question == question]

    def places(self, question: str) -> str:
        """Where a question is asked, and with which margins."""
        worlds = dict.fromkeys(f.world for f in self.of(question))
        named = ((name, self.study.worlds[name]) for name in worlds)
        return "; ".join(f"{name}: {w.summary}, margin {w.margin:g}" for name, w in named)

    def single_runs(self) -> str:
        """How often one run of one seed has the sign of the mean."""
        signs = [
            sum((d > 0) == (f.measured.sample.mean > 0) for d in f.measured.differences)
            for f in self.found
            if f.measured
        ]
        seeds = len(self.study.protocol.verdict_seeds)
        return f"{signs[0]} of {seeds} single runs have the sign of the mean." if signs else ""

    def trend_table(self) -> str:
        """What every arm costs in tokens at each width, and whether that changes."""
        worlds = {w.settings["emb_dim"]: name for name, w in self.study.worlds.items()}
        names = [f"width {width}" for width in worlds]
        rows = _heading(("arm", *names, "each doubling", "p: no change", "word", "expected"))
        for one in self.trends:
            costs = {cost.width: cost for cost in one.costs}
            cells = [
                _tokens(costs[width]) if width in costs else self._done(one.trend.arm, world)
                for width, world in worlds.items()
            ]
            ends = ["", "", one.answer, one.trend.statement]
            if one.slope is not None and one.interval is not None:
                change = _percent(one.slope, one.interval)
                ends = [change, f"{one.p_change:.2g}", f"{one.word}: {one.answer}", ends[-1]]
            rows.append(f"| {one.trend.arm} | {' | '.join([*cells, *ends])} |")
        return "\n".join(rows)

    def figures(self) -> Iterator[tuple[str, Callable[[], Any]]]:
        """Its pictures by the question's name: of the widths where it has trends."""
        for question in self.study.questions:
            found = self.of(question)
            if any(one.costs for one in self.trends):
                yield question, partial(show.width_figure, self.trends)
            elif not self.trends and any(f.measured for f in found):
                yield question, partial(show.question_figure, found, self.study)

    def _done(self, arm: str, world: str) -> str:
        found = next(f for f in self.found if (f.contrast.arm, f.world) == (arm, world))
        return _DONE.format(*found.done)


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
        finished = sum(f.measured is not None for f in self.found)
        worlds = [w for w in self.study.worlds if any(f.measured for f in self._of(world=w))]
        where = f", in {', '.join(worlds)}" if worlds else ""
        return (
            f"{len(self.book.records):,} trainings; {finished} of {len(self.found)} contrasts are "
            f"finished{where}"
        )

    def strictness(self, among: int) -> str:
        """Standard errors that a difference must have, the most extreme of so many contrasts."""
        protocol = self.study.protocol
        seeds, level = len(protocol.verdict_seeds), (1 - protocol.confidence) / among
        return f"{critical(level, seeds):.1f}"

    def question(self, name: str) -> Question:
        """The question of that name."""
        return self.study.question(name)

    def drawn(self, name: str) -> bool:
        """Whether there is anything to draw for a question."""
        return any(f.measured for f in self._of(question=name))

    def figures(self) -> Iterator[tuple[str, Callable[[], Any]]]:
        """The pictures by name: one of each question, and one of each world with abilities."""
        for name in self.study.questions:
            if self.drawn(name):
                yield name, partial(show.question_figure, self._of(question=name), self.study)
        for world, curves in self.curves().items():
            yield f"abilities-{world}", partial(show.ability_figure, curves)
        if "merged-has-a-flatter-spectrum" in self.checked:
            numbers = self.checked["merged-has-a-flatter-spectrum"].numbers
            curves, head_dim = truncation_curves(numbers), int(numbers["head_dim"])
            yield "truncation", partial(show.truncation_figure, curves, head_dim)
        for one in self.besides.values():
            yield from one.figures()

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
        records, protocol = self.book.records, self.study.protocol
        found = {
            world: findings.ability_curves(self.study, records, world, protocol.first)
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
        head = (
            "world",
            "text, positions, block, optimizer",
            "margin",
            "queries and keys are worth",
        )
        rows = _heading(head)
        for name, world in self.study.worlds.items():
            worths = {
                f.measured.worth
                for f in self._of(world=name)
                if f.measured and f.contrast.reference == "scores-off"
            }
            worth = f"{worths.pop():.3f} nats" if worths else "not finished"
            rows.append(f"| {name} | {world.summary} | {world.margin:g} | {worth} |")
        return "\n".join(rows)

    def overview(self) -> str:
        """Every contrast in one line: the answers world by world."""
        names = [*self.study.worlds]
        rows = _heading(("expected", *names, "in all"))
        for contrast in self._contrasts():
            found = {f.world: f for f in self._of(contrast=contrast)}
            cells = [_cell(found[world]) if world in found else "not asked" for world in names]
            rows.append(
                f"| {contrast.statement} | {' | '.join(cells)} | {self._in_all(contrast)} |"
            )
        return "\n".join(rows)

    def table(self, name: str) -> str:
        """The contrasts of a question, a row for each world."""
        rows = _heading(_COLUMNS)
        rows += [_row(f) for f in self.found if f.question == name]
        return "\n".join(rows)

    def abilities(self) -> str:
        """Differences by what a token calls for, where the text says; "" where none is finished."""
        found = [
            (f, findings.by_ability(self.study, self.book.records, f.contrast, f.world))
            for f in self.found
            if f.measured
        ]
        known = [(f, of) for f, of in found if of]
        if not known:
            return ""
        names = [*known[0][1]]
        rows = _heading(("contrast", "world", *names))
        for f, of in known:
            cells = [f"{of[name]:+.3f}" for name in names]
            rows.append(f"| {_name(f.contrast)} | {f.world} | {' | '.join(cells)} |")
        return "\n".join(rows)

    def rates(self) -> str:
        """The factor of the learning rates that every arm was given, and its spread over seeds."""
        return _rates(self.study, self.book.records)

    def rates_besides(self) -> dict[str, str]:
        """The same of every study besides that searched for rates, by its name."""
        return {
            name: _rates(one.study, one.records)
            for name, one in self.besides.items()
            if len(one.study.protocol.factors) > 1
        }

    def beside_first(self, name: str, suffix: str) -> str:
        """Differences of a study beside those of the first, where worlds differ by a suffix."""
        first = {(f.world, f.contrast.arm, f.contrast.control): f for f in self.found}
        rows = _heading(("contrast", "text", "here", "in the first study"))
        for one in self.besides[name].found:
            world = one.world.removesuffix(suffix)
            other = first[world, one.contrast.arm, one.contrast.control]
            cells = [
                f"{_difference(f, 3)}, {f.word}" if f.measured else f.answer for f in (one, other)
            ]
            rows.append(f"| {_name(one.contrast)} | {world} | {' | '.join(cells)} |")
        return "\n".join(rows)

    def _contrasts(self) -> list[Contrast]:
        return [c for question in self.study.questions.values() for c in question.contrasts]

    def _of(self, **fields: Any) -> list[Finding]:
        return [f for f in self.found if all(getattr(f, k) == v for k, v in fields.items())]

    def _in_all(self, contrast: Contrast) -> str:
        found = self._of(contrast=contrast)
        done = [f for f in found if f.measured]
        if not done:
            return findings.UNFINISHED
        answers = Counter(f.answer for f in done)
        text = ", ".join(f"{answer} in {count}" for answer, count in answers.items())
        if mean := findings.over_worlds(done, self.study.protocol.confidence):
            share, (low, high) = mean
            text += f"; {share:+.0%} of the part ({low:+.0%} to {high:+.0%})"
        return text


def _heading(names: Sequence[str]) -> list[str]:
    return [f"| {' | '.join(names)} |", "|---" * len(names) + "|"]


def _cell(found: Finding) -> str:
    if found.measured is None:
        return f"{found.answer} ({_DONE.format(*found.done)})"
    word = "" if found.word == found.answer else f", {found.word}"
    return f"{found.answer}: {_difference(found, 3)}{word}"


def _difference(found: Finding, decimals: int) -> str:
    """The mean difference with its interval."""
    assert found.measured is not None
    if found.interval is None:
        return f"{found.measured.sample.mean:+.{decimals}f} (one seed)"
    mean, low, high = (
        f"{number:+.{decimals}f}" for number in (found.measured.sample.mean, *found.interval)
    )
    return f"{mean} ({low} to {high})"


def _tokens(cost: Cost) -> str:
    return _percent(sum(cost.costs) / len(cost.costs), cost.interval)


def _percent(mean: float, interval: tuple[float, float]) -> str:
    """A change of ln(tokens) with its interval, as a share of the tokens."""
    share, low, high = (f"{-expm1(-number):+.0%}" for number in (mean, *interval))
    return f"{share} ({low} to {high})"


def _name(contrast: Contrast) -> str:
    control = contrast.control
    return contrast.arm if control == "standard" else f"{contrast.arm} to {control}"


def _row(found: Finding) -> str:
    start = f"| {_name(found.contrast)} | {found.world} |"
    if found.measured is None:
        return f"{start} | | {found.answer}, {_DONE.format(*found.done)} | | | | | |"
    control, _, arm = found.measured.losses
    cells = [
        f"{control:.4f}",
        f"{arm:.4f}",
        _difference(found, 4),
        f"{found.p_difference:.2g}",
        f"{found.p_equivalence:.2g}",
        found.word,
        "" if found.share is None else f"{found.share:+.0%} of {found.measured.worth:.3f}",
        "" if found.tokens is None else f"{found.tokens:+.0%}",
    ]
    return f"{start} {' | '.join(cells)} |"


def _rates(study: Study, records: Records) -> str:
    rows = _heading(("arm", *study.worlds))
    plans = {(p.world, p.arm): p for p in arm_plans(study, records)}
    for arm in dict.fromkeys(arm for _, arm in plans):
        asked = [plans.get((world, arm)) for world in study.worlds]
        if any(cells := [_rate(plan) if plan else "" for plan in asked]):
            rows.append(f"| {arm} | {' | '.join(cells)} |")
    return "\n".join(rows)


def _rate(plan: ArmPlan) -> str:
    search, losses = plan.search, plan.losses()
    if search.best is None:
        return ""
    edge = "" if search.interior or plan.study.arms[plan.arm].rates_of else " (at the edge)"
    spread = f", sd {stdev(losses):.4f}" if losses else ""
    return f"x {search.best:g}{edge}{spread}"


def write_checked(checked: Mapping[str, Checked], folder: Path) -> None:
    """Keep what checks of identities measured."""
    content = {name: asdict(one) for name, one in checked.items()}
    write_text(folder / CHECKED, json.dumps(content, indent=1) + "\n")


def read_checked(folder: Path) -> dict[str, Checked]:
    """What checks of identities measured; none where nothing was kept."""
    file = folder / CHECKED
    return read_record(file, dict[str, Checked]) if file.exists() else {}
