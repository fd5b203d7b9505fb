"""The page of a study: written from its registration and records, and verified against them."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Self

from mlx_attn.files import write_text
from mlx_attn.ui.plots import render_text, save_figure
from studies import findings, show
from studies.book import RecordBook, complaints
from studies.decisions import degrees_lent
from studies.findings import Finding
from studies.registration import Registration, check_registered
from studies.schedule import searches
from studies.shrunk_t import StudentT
from studies.study import MODERATED, SHRUNK, Study
from studies.t_tests import TTest


def path_of_page(folder: Path) -> Path:
    """Return the file of a study's page: next to the folder, with its name and `.md`."""
    return folder.with_name(f"{folder.name}.md")


@dataclass(frozen=True)
class StudyPage:
    """The contents of a study's page."""

    template: ClassVar[str]
    modules: ClassVar[dict[str, Any]]  # whose tables a template may call

    study: Study
    registration: Registration
    book: RecordBook
    found: Sequence[Finding]
    folder: Path  # holds the registration and the records

    @classmethod
    def read(cls, study: Study, folder: Path) -> Self:
        """Read the page's contents from a folder with a registration and records.

        Raises:
            RunError: The study is not the registered one, or a record was changed.
        """
        registration, book = check_registered(study, folder), RecordBook(folder / "records")
        return cls(
            study, registration, book, findings.standing(study, book.records, folder), folder
        )

    def rendered(self, template: str, folder: str) -> str:
        """Return the Markdown of a template; `folder` is the path from it to the records."""
        text = Path(__file__).with_name(template).read_text(encoding="utf-8")
        facts = {"study": self.study, "registration": self.registration, "folder": folder}
        return render_text(text, page=self, strictness=strictness, **self.modules, **facts)

    def texts(self) -> dict[Path, str]:
        """Return all pages in Markdown, by file."""
        return {path_of_page(self.folder): self.rendered(self.template, self.folder.name)}

    def complaints(self) -> Iterator[str]:
        """Yield a complaint for each record that does not belong to the study."""
        return complaints(self.study, self.book)

    def progress(self) -> str:
        """Return a phrase with the numbers of trainings and of finished contrasts."""
        finished = sum(f.verdict is not None for f in self.found)
        worlds = [w for w in self.study.worlds if any(f.verdict for f in self.of(world=w))]
        where = f", in {', '.join(worlds)}" if worlds else ""
        return (
            f"{len(self.book.records):,} trainings; {finished} of {len(self.found)} contrasts are "
            f"finished{where}"
        )

    def unprinted(self) -> dict[str, str]:
        """Return digests of the folder's files that the page does not print, by name."""
        files = {"figures": sorted((self.folder / "figures").glob("*.svg"))}
        return {name: digest_of_files(paths) for name, paths in files.items()}

    def drawn(self, name: str) -> bool:
        """Return True if a question has a finished contrast to draw."""
        return any(f.verdict for f in self.of(question=name))

    def figures(self) -> Iterator[tuple[str, Callable[[], Any]]]:
        """Yield figures by name: one per question, and one of the learning-rate searches."""
        for name in self.study.questions:
            if self.drawn(name):
                yield name, partial(show.question_figure, self.of(question=name), self.study)
        if settled := searches(self.study, self.book.records):
            yield "rates", partial(show.rates_figure, settled)

    def pictures(self) -> set[str]:
        """Return the names of all figures."""
        return {name for name, _ in self.figures()}

    def of(self, **fields: Any) -> list[Finding]:
        """Return the findings whose fields have these values."""
        return [f for f in self.found if all(getattr(f, k) == v for k, v in fields.items())]


def digest_of_files(paths: Iterable[Path]) -> str:
    """Return a digest of the names and contents of files."""
    digest = hashlib.blake2b(digest_size=12)
    for path in paths:
        content = path.read_bytes()
        digest.update(f"{path.name} {len(content)} ".encode() + content)
    return digest.hexdigest()


def strictness(study: Study, among: int) -> str:
    """Return the standard errors that the largest of `among` differences needs, as text."""
    protocol = study.protocol
    seeds, level = len(protocol.verdict_seeds), (1 - protocol.confidence) / among
    tests = {
        MODERATED: TTest(seeds, degrees_lent(len(protocol.tuning_seeds), among)),
        SHRUNK: StudentT(seeds),
    }
    test = tests.get(protocol.test, TTest.worst_of_five(seeds))
    return f"{test.critical(level):.1f}"


def write_page(study: Study, folder: Path, kind: type[StudyPage]) -> Path:
    """Write the page and its figures from the registration and records of a folder."""
    contents = kind.read(study, folder)
    for old in (folder / "figures").glob("*.svg"):
        old.unlink()
    for name, draw in contents.figures():
        _, bitmap = save_figure(draw, folder / "figures" / name)
        bitmap.unlink()
    for path, text in contents.texts().items():
        write_text(path, text)
    return path_of_page(folder)


def verify(study: Study, folder: Path, kind: type[StudyPage]) -> Iterator[str]:
    """Yield each disagreement among registration, records and page.

    Raises:
        RunError: The study is not the registered one, or a record was changed.
    """
    contents = kind.read(study, folder)
    yield from contents.complaints()
    for page, text in contents.texts().items():
        yield from _differences(page, text)


def _differences(page: Path, text: str) -> Iterator[str]:
    """Yield the lines in which a page differs from the text made from the records."""
    if not page.exists():
        yield f"{page}: not written yet: 'python -m studies write' makes it of the records"
        return
    written = page.read_text(encoding="utf-8").splitlines()
    expected = text.splitlines()
    if len(written) != len(expected):
        yield f"{page}: {len(written)} lines, and the records make {len(expected)}"
    for number, (line, right) in enumerate(zip(written, expected, strict=False), 1):
        if line != right:
            yield f"{page}, line {number}: '{line}', and the records say '{right}'"
