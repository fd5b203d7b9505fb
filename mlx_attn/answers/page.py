"""The page of a study, written from only registration and records, and compared with them later."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

from mlx_attn.answers import findings, show, tables
from mlx_attn.answers.book import RecordBook, complaints
from mlx_attn.answers.findings import Finding
from mlx_attn.answers.registration import Registration, check_registered
from mlx_attn.answers.schedule import searches
from mlx_attn.answers.study import Question, Study
from mlx_attn.comparison.decisions import degrees_lent
from mlx_attn.comparison.t_tests import MODERATED, SHRUNK, StudentT, TTest
from mlx_attn.files import write_text
from mlx_attn.ui.plots import render_text, save_figure, template


def path_of_page(folder: Path) -> Path:
    """Return the page of a folder of records: next to it, with its name."""
    return folder.with_name(f"{folder.name}.md")


@dataclass(frozen=True)
class StudyPage:
    """The content of a study's page.

    Attributes:
        folder: With the registration and the records.
    """

    study: Study
    registration: Registration
    book: RecordBook
    found: Sequence[Finding]
    folder: Path

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.folder.name

    @classmethod
    def read(cls, study: Study, folder: Path) -> Self:
        """Return the page of a folder with a registration and records.

        Raises:
            RunError: The study is not the registered one, or a record was changed.
        """
        registration, book = check_registered(study, folder), RecordBook(folder / "records")
        return cls(study, registration, book, findings.findings(study, book.records), folder)

    def template(self) -> str:
        """Return the template of the page."""
        return template("answers-own.md.jinja")

    def text(self) -> str:
        """Return the page, in Markdown."""
        facts = {"study": self.study, "registration": self.registration, "folder": self.name}
        return render_text(self.template(), page=self, **facts)

    def texts(self) -> dict[Path, str]:
        """Return all pages, in Markdown, by the files that hold them."""
        return {path_of_page(self.folder): self.text()}

    def complaints(self) -> Iterator[str]:
        """Records that are not of the study."""
        return complaints(self.study, self.book)

    def progress(self) -> str:
        """How much of the study is done, in words."""
        finished = sum(f.verdict is not None for f in self.found)
        worlds = [w for w in self.study.worlds if any(f.verdict for f in self.of(world=w))]
        where = f", in {', '.join(worlds)}" if worlds else ""
        return (
            f"{len(self.book.records):,} trainings; {finished} of {len(self.found)} contrasts are "
            f"finished{where}"
        )

    def strictness(self, among: int) -> str:
        """Standard errors that a difference must have, the most extreme of so many contrasts."""
        return strictness(self.study, among)

    def unprinted(self) -> dict[str, str]:
        """Digests of the folder's files whose content the page does not print, by their names."""
        files = {"figures": sorted((self.folder / "figures").glob("*.svg"))}
        return {name: digest_of_files(paths) for name, paths in files.items()}

    def question(self, name: str) -> Question:
        """Return the question of that name."""
        return self.study.question(name)

    def drawn(self, name: str) -> bool:
        """Return True if a question has anything to draw."""
        return any(f.verdict for f in self.of(question=name))

    def figures(self) -> Iterator[tuple[str, Callable[[], Any]]]:
        """Yield the pictures by name: one of each question, and one of the searches for rates."""
        for name in self.study.questions:
            if self.drawn(name):
                yield name, partial(show.question_figure, self.of(question=name), self.study)
        if found := searches(self.study, self.book.records):
            yield "rates", partial(show.rates_figure, found)

    def pictures(self) -> set[str]:
        """Return the names of all pictures."""
        return {name for name, _ in self.figures()}

    def worlds(self) -> str:
        """Return the worlds as a table, with the worth of queries and keys in each."""
        return tables.worlds(self.study, self.book.records, self.found)

    def table(self, name: str) -> str:
        """Return the contrasts of a question, a row for each world."""
        return tables.contrasts(self.of(question=name))

    def abilities(self) -> str:
        """Differences by what a token calls for, where the text says; "" where none is finished."""
        return tables.abilities(self.study, self.book.records, self.found)

    def rates(self) -> str:
        """The factor of the learning rates that every arm was given, and its spread over seeds."""
        return tables.rates(self.study, self.book.records)

    def of(self, **fields: Any) -> list[Finding]:
        """Return the findings with these fields, such as one question's."""
        return [f for f in self.found if all(getattr(f, k) == v for k, v in fields.items())]


def digest_of_files(paths: Iterable[Path]) -> str:
    """Return a digest of the names and contents of files."""
    found = hashlib.blake2b(digest_size=12)
    for path in paths:
        content = path.read_bytes()
        found.update(f"{path.name} {len(content)} ".encode() + content)
    return found.hexdigest()


def strictness(study: Study, among: int) -> str:
    """Standard errors that the most extreme of so many contrasts of a study must have."""
    protocol = study.protocol
    seeds, level = len(protocol.verdict_seeds), (1 - protocol.confidence) / among
    tests = {
        MODERATED: TTest(seeds, degrees_lent(len(protocol.tuning_seeds), among)),
        SHRUNK: StudentT(seeds),
    }
    test = tests.get(protocol.test, TTest.worst_of_five(seeds))
    return f"{test.critical(level):.1f}"


def write_page(study: Study, folder: Path, kind: type[StudyPage] = StudyPage) -> Path:
    """Write the page and its pictures from the registration and the records of a folder."""
    contents = kind.read(study, folder)
    for old in (folder / "figures").glob("*.svg"):
        old.unlink()
    for name, draw in contents.figures():
        _, bitmap = save_figure(draw, folder / "figures" / name)
        bitmap.unlink()
    for path, text in contents.texts().items():
        write_text(path, text)
    return path_of_page(folder)


def verify(study: Study, folder: Path, kind: type[StudyPage] = StudyPage) -> Iterator[str]:
    """Yield disagreements between registration, records and page.

    Raises:
        RunError: The study is not the registered one, or a record was changed.
    """
    contents = kind.read(study, folder)
    yield from contents.complaints()
    for page, text in contents.texts().items():
        yield from _differences(page, text)


def _differences(page: Path, text: str) -> Iterator[str]:
    """Yield differences between a page and the text from the records."""
    if not page.exists():
        yield f"{page}: not written yet: 'mlx-attn claims page' makes it of the records"
        return
    written = page.read_text(encoding="utf-8").splitlines()
    expected = text.splitlines()
    if len(written) != len(expected):
        yield f"{page}: {len(written)} lines, and the records make {len(expected)}"
    for number, (line, right) in enumerate(zip(written, expected, strict=False), 1):
        if line != right:
            yield f"{page}, line {number}: '{line}', and the records say '{right}'"
