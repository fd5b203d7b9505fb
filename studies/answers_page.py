"""Write docs/answers.md, the short answers, and docs/answers/record.md, all their evidence."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial, reduce
from pathlib import Path
from typing import Any, ClassVar, Self

from mlx_attn.errors import plural
from studies import CONFIRMS, FOLLOW_UPS, figures, findings, horizon, show, tables
from studies.book import RecordBook, complaints
from studies.findings import UNDECIDED, Finding
from studies.follow_ups import follow_up
from studies.identities import (
    CHECKED,
    Checked,
    parting_curves,
    read_checked,
    truncation_curves,
)
from studies.page import StudyPage, digest_of_files
from studies.registration import REGISTRATION, Registration, check_registered
from studies.schedule import Records, searches
from studies.study import STANDARD, STEPS, Study
from studies.trends import AbilityCurve, TrendFinding, ability_curves, trend_findings

_MATRICES = ("no-key", "no-value")
"""Arms whose learning curves are drawn next to the protocol's first curves."""

_QUOTED = ("fresh-seeds", "horizon-fresh", "horizon-4800")
"""Studies whose words the answers quote, by length: 300, 2400 and 4800 steps."""


def record_of(folder: Path) -> Path:
    """Return the path of the full record, in the folder of the records."""
    return folder / "record.md"


@dataclass(frozen=True)
class FollowUp:
    """A follow-up study with its findings.

    `book` has its own records; `records`, `found` and `trends` include those from the first study.
    """

    study: Study
    registration: Registration
    book: RecordBook
    records: Records
    found: Sequence[Finding]
    trends: Sequence[TrendFinding]

    @classmethod
    def read(cls, study: Study, folder: Path, known: Records) -> Self:
        """Read a follow-up from its folder and the records of the first study."""
        registration, book = check_registered(study, folder), RecordBook(folder / "records")
        records = {**known, **book.records}
        found = findings.standing(study, records, folder)
        return cls(study, registration, book, records, found, trend_findings(study, records))

    @property
    def searched(self) -> bool:
        """Return True if it searched for rates that the first study did not search."""
        tuning = {*self.study.protocol.tuning_seeds}
        return any(record.seed in tuning for record in self.book.records.values())

    def progress(self) -> str:
        """Describe in words how much of it is done."""
        finished = sum(f.verdict is not None for f in self.found)
        return f"{len(self.book.records):,} trainings of its own; {finished} of {len(self.found)}"

    def of(self, question: str) -> list[Finding]:
        """Return the findings of a question."""
        return [f for f in self.found if f.question == question]

    def places(self, question: str) -> str:
        """Return the worlds of a question, with its margins."""
        places: list[str] = []
        for name in dict.fromkeys(f.world for f in self.of(question)):
            world = self.study.world(name)
            tokens = show.margin_in_tokens(self.study, self.records, name)
            margin = f"{world.margin:g}" + (f" ({tokens} of the tokens)" if tokens else "")
            places.append(f"{name}: {world.summary}, margin {margin}")
        return "; ".join(places)

    def single_runs(self) -> str:
        """Return how often a single run has the sign of the mean."""
        signs = [
            sum((d > 0) == (f.verdict.mean > 0) for d in f.verdict.differences)
            for f in self.found
            if f.verdict
        ]
        seeds = len(self.study.protocol.verdict_seeds)
        return f"{signs[0]} of {seeds} single runs have the sign of the mean." if signs else ""

    def trained(self, earlier: "FollowUp | None" = None) -> horizon.Trained:
        """Return its losses by length, or those with the seeds of an earlier study, too."""
        of = horizon.trained(self.study, self.records)
        return horizon.joined(earlier.trained(), of) if earlier else of

    def courses(self, earlier: "FollowUp | None" = None) -> str:
        """Return the gain from longer training, up to each end that an arm has reached.

        With an earlier study, no registered statement is judged: none is about both.
        """
        lines, of = list[str](), self.trained(earlier)
        for end in horizon.ENDS:
            judged = horizon.courses(of, end)
            if any(one.samples for one in judged):
                said = f"The registered statement, at {end} steps, {horizon.statement(judged)}."
                lines += [tables.courses(judged), *([] if earlier else [said])]
        return "\n\n".join(lines) or "No arm has two lengths yet."

    def figures(self) -> Iterator[tuple[str, Callable[[], Any]]]:
        """Return its pictures by the question's name, with the widths if it has trends."""
        for question in self.study.questions:
            found = self.of(question)
            if any(one.costs for one in self.trends):
                yield question, partial(figures.width_figure, self.trends)
            elif not self.trends and any(f.verdict for f in found):
                yield question, partial(show.question_figure, found, self.study)


def _task(world: str) -> str:
    """Return the task of a world such as "heads-1-pairs-4": "1 head, 4 pairs"."""
    _, heads, _, pairs = world.split("-")
    return f"{plural(int(heads), 'head')}, {plural(int(pairs), 'pair')}"


@dataclass(frozen=True)
class AnswersPage(StudyPage):
    """The contents of docs/answers.md and its record."""

    template: ClassVar[str] = "answers.md.jinja"
    modules: ClassVar[dict[str, Any]] = {"horizon": horizon, "show": show, "tables": tables}

    checked: Mapping[str, Checked]
    besides: Mapping[str, FollowUp]

    @classmethod
    def read(cls, study: Study, folder: Path) -> Self:
        """Read the page from a folder with a registration, records, and folders of follow-ups.

        Raises:
            RunError: A study is not the registered one, or a record was changed.
        """
        first = StudyPage.read(study, folder)
        besides = {
            name: FollowUp.read(follow_up(name), folder / name, first.book.records)
            for name in FOLLOW_UPS
            if (folder / name / REGISTRATION).exists()
        }
        return cls(**vars(first), checked=read_checked(folder), besides=besides)

    def withdrawn(self) -> list[str]:
        """Return the withdrawn verdicts: the place, the computed numbers, and the reason."""
        besides = ((self.folder / name, one.found) for name, one in self.besides.items())
        each = [(self.folder, self.found), *besides]
        return [
            f"**{row.arm}** in {tables.values_of(found, row.arm, row.worlds)}. {row.reason}"
            for folder, found in each
            for row in findings.withdrawals(folder)
        ]

    def unprinted(self) -> dict[str, str]:
        """Return digests of the figures and of the checks' measurements, printed in part."""
        checked = [path for path in (self.folder / CHECKED,) if path.exists()]
        return {**super().unprinted(), CHECKED: digest_of_files(checked)}

    def both_tests(self) -> tuple[int, int, int]:
        """Return the number of contrasts in the first study, and how many each test decides."""
        arms = self.study.arms
        asked = [
            f.verdict
            for f in self.found
            if f.verdict and not f.contrast.repeats and not arms[f.contrast.arm].jitter
        ]
        words = [[v.word for v in asked], [v.other_word for v in asked]]
        by_registered, by_t = (sum(word != UNDECIDED for word in each) for each in words)
        return len(asked), by_registered, by_t

    def confirmations(self) -> Iterator[str]:
        """Yield, for each confirming study, how many of its words agree with the first ones."""
        for name, base in CONFIRMS.items():
            if name not in self.besides:
                continue
            one, other = self.besides[name], self.besides.get(base, self)
            decided, agree = tables.confirmations(
                (one.study, one.found), (other.study, other.found)
            )
            yield f"`{name}` confirms {agree} of {decided} words of {base or 'the first study'}"

    def counted(self) -> tuple[int, int, int]:
        """Return the number of contrasts, trends and separately corrected studies."""
        besides = [one.study for one in self.besides.values()]
        contrasts = sum(len(study.asked()) for study in (self.study, *besides))
        return contrasts, sum(len(study.trends) for study in besides), 1 + len(besides)

    def texts(self) -> dict[Path, str]:
        """Return the texts of the answers and of the record in their folder."""
        return {**super().texts(), record_of(self.folder): self.rendered("record.md.jinja", ".")}

    def evidence(self, arms: Mapping[str, str], *more: tuple[str, ...]) -> str:
        """Return the differences that an answer rests on, with their words, text by text.

        Args:
            arms: By label, arms as the last confirming study found them, and after the longest
                trainings of the studies of horizons.
            more: Labels, studies, arms, and controls if they are not the standard form.
        """
        rows: list[tables.Row | None] = []
        for label, arm in arms.items():
            rows += [self._row(label, study, arm) for study in _QUOTED]
        rows += [self._row(*names) for names in more]
        return tables.evidence([row for row in rows if row])

    def _row(self, label: str, study: str, arm: str, control: str = STANDARD) -> tables.Row | None:
        """Return a row with an arm's findings in a study; None before any is finished."""
        finished = self._finished(study, arm, control=control)
        # After several lengths, the longest is the last.
        by_text = {f.text: f for f in sorted(finished, key=lambda f: f.steps)}
        of = self.besides[study].study if study in self.besides else self.study
        return tables.row_of_findings(label, of, by_text) if by_text else None

    def _finished(
        self, study: str, arm: str, outcome: str = "", control: str = STANDARD
    ) -> list[Finding]:
        """Return an arm's findings with a verdict in a study; the first study's name is ""."""
        asked = (arm, outcome, control)
        return [
            f
            for f in self.findings_of(study)
            if f.verdict and (f.contrast.arm, f.contrast.outcome, f.contrast.control) == asked
        ]

    def findings_of(self, study: str) -> Sequence[Finding]:
        """Return the findings of a study; none if this folder has no registration of it."""
        one = self.besides.get(study) if study else self
        return one.found if one else ()

    def lengths(self, *studies: str) -> horizon.Trained:
        """Return the losses at all lengths: these studies joined by seed, and the longest's."""
        shorter = [self.besides[name].trained() for name in studies if name in self.besides]
        longest = self.besides.get("horizon-4800")
        joined = reduce(horizon.joined, shorter) if shorter else {}
        return horizon.extended(joined, longest.trained()) if longest else joined

    def lengths_to(self, end: int, *studies: str) -> horizon.Trained:
        """Return the losses at all lengths, on the texts that are trained for one of them."""
        trained = self.lengths(*studies)
        return {pair: lengths for pair, lengths in trained.items() if end in lengths}

    @cached_property
    def _lengths(self) -> horizon.Trained:
        """The losses that the answers quote."""
        return self.lengths("horizon-fresh")

    def delay(self, arm: str, text: str) -> str:
        """Return an arm's delay on a text, as a share of its tokens."""
        split = horizon.fit(self._lengths.get((text, arm), {}))
        return tables.percent(split.shift, split.shifts) if split else "(not finished)"

    def means(self, study: str, arm: str, outcome: str = "", steps: int = 0) -> str:
        """Return the mean difference of an arm in every world, or those of a length.

        The worlds of an ability have one text, and differ in length.
        """
        each = [
            (show.mean_difference(f, 3), f"after {f.steps} steps" if outcome else f"on {f.text}")
            for f in self._finished(study, arm, outcome)
            if steps in (0, f.steps)
        ]
        return ", ".join(map(" ".join, each)) or "(not finished)"

    def recall_ratios(self, arm: str) -> str:
        """Return the smallest and the largest ratio of steps that an arm needs to recall."""
        found = self._finished("recall-time", arm, STEPS)
        by_ratio = sorted(found, key=lambda f: f.verdict.mean if f.verdict else 0.0)
        ends = [f"{show.mean_difference(f, 2)} ({_task(f.world)})" for f in by_ratio]
        return f"{ends[0]} to {ends[-1]}" if ends else "(not finished)"

    def never_recalled(self, arm: str) -> str:
        """Return how many of an arm's models never recalled, in the worlds with some."""
        each = [
            f"{f.unsolved[1]} of {len(f.verdict.differences)} after {f.steps} steps "
            f"({_task(f.world)})"
            for f in self._finished("recall-time", arm, STEPS)
            if f.verdict and f.unsolved[1]
        ]
        return ", ".join(each) or "none"

    def solvers(self, study: str, world: str) -> str:
        """Return which arms of a study solved a task, with how many of their models did."""
        one = self.besides.get(study)
        return tables.solvers(one.study, one.records, world) if one else "(not finished)"

    def loss(self, study: str, place: int) -> str:
        """Return a mean loss in a study's first finding: control (0), reference (1) or arm (2)."""
        losses = self.besides[study].found[0].losses if study in self.besides else None
        return f"{losses[place]:.3f}" if losses else "(not measured)"

    def steps(self, study: str) -> int:
        """Return the number of steps of a study's trainings."""
        return next(iter(follow_up(study).worlds.values())).settings["steps"]

    def complaints(self) -> Iterator[str]:
        """Return the complaints about records that do not belong to their study."""
        yield from super().complaints()
        for one in self.besides.values():
            yield from complaints(one.study, one.book)

    def figures(self) -> Iterator[tuple[str, Callable[[], Any]]]:
        """Return all pictures by name, including worlds with abilities, checks and follow-ups."""
        yield from super().figures()
        if any(self._lengths.values()):
            yield "answer-lengths", partial(figures.length_figure, self._lengths)
        if again := self.besides.get("fresh-seeds"):
            yield from self._answer_figures(again)
        for world, curves in self.curves().items():
            yield f"abilities-{world}", partial(figures.ability_figure, curves)
        if parted := self.checked.get("merged-learns-another-s"):
            yield "drift", partial(figures.parting_figure, parting_curves(parted.numbers))
        if cut := self.checked.get("merged-has-a-flatter-spectrum"):
            curves, head_dim = truncation_curves(cut.numbers), int(cut.numbers["head_dim"])
            yield "truncation", partial(figures.truncation_figure, curves, head_dim)
        for name, one in self.besides.items():
            yield from one.figures()
            if one.searched and (found := searches(one.study, one.records)):
                yield f"rates-{name}", partial(show.rates_figure, found)

    def _answer_figures(self, again: FollowUp) -> Iterator[tuple[str, Callable[[], Any]]]:
        """Yield a picture for each question of the seeds that its answer quotes."""
        asked = {(f.contrast.control, f.contrast.arm): f.question for f in self.found}
        for question in self.study.questions:
            shown = [
                f
                for f in again.found
                if f.verdict and asked.get((f.contrast.control, f.contrast.arm)) == question
            ]
            if shown:
                titles = {f.world: f.text for f in shown}
                draw = partial(show.question_figure, shown, again.study, titles)
                yield f"answer-{question}", draw

    def machines(self) -> str:
        """Return the machines that made the records."""
        made = {(m.get("chip", ""), m.get("device", "")) for m in self._machines}
        return "; ".join(f"{chip} ({device})" for chip, device in sorted(made)) or "no machine yet"

    def versions(self) -> str:
        """Return the versions and commits that made the records, if they were recorded."""
        made = Counter(
            f"mlx_attn {m.get('mlx_attn', '?')} with mlx {m.get('mlx', '?')}, "
            + (f"commit {m['commit']}" if m.get("commit") else "no commit recorded")
            for m in self._machines
        )
        return "; ".join(f"{count:,} by {name}" for name, count in made.items())

    @property
    def _machines(self) -> list[Mapping[str, str]]:
        """The machine of each record that names one."""
        books = [self.book, *(one.book for one in self.besides.values())]
        return [r.machine for book in books for r in book.records.values() if r.machine]

    def curves(self) -> dict[str, list[AbilityCurve]]:
        """Return, by world, how its arms differ from the control by ability during training."""
        arms = dict.fromkeys((*self.study.protocol.first, *_MATRICES))
        asked = [arm for arm in arms if arm in self.study.arms]
        found = {
            world: ability_curves(self.study, self.book.records, world, asked)
            for world in self.study.worlds
        }
        return {world: curves for world, curves in found.items() if curves}

    def number(self, identity: str, name: str, form: str) -> str:
        """Return a number that the check of an identity measured."""
        if identity not in self.checked:
            return "(not measured)"
        return format(self.checked[identity].numbers[name], form)

    def rates_besides(self) -> dict[str, str]:
        """Return by name the rates of every follow-up that searched for rates."""
        searched = {name: one for name, one in self.besides.items() if one.searched}
        return {n: show.rate_table(one.study, one.records) for n, one in searched.items()}

    def searched(self) -> tuple[int, int]:
        """Count the settled searches for rates, and those with the best factor inside the range."""
        settled = [
            search
            for study, records in self._searched
            for of_arm in searches(study, records).values()
            for search in of_arm.values()
        ]
        return len(settled), sum(search.interior for search in settled)

    def changed(self) -> str:
        """Return the differences of arms with former settings, or ""."""
        each = (tables.changed(study, records) for study, records in self._searched)
        return "; ".join(filter(None, each))

    @cached_property
    def _searched(self) -> list[tuple[Study, Records]]:
        """Return the first study and the follow-ups that searched for rates, with their records."""
        besides = ((one.study, one.records) for one in self.besides.values() if one.searched)
        return [(self.study, self.book.records), *besides]
