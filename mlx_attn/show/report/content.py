"""What a report is made of, whether it becomes a page or Markdown."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows of text; the first cell of a row names it.

    Attributes:
        caption: What the rows are.
        headings: Of the columns.
        rows: As many cells each as there are headings.
        wordy: Whether its cells are words, which may wrap, rather than numbers.
    """

    caption: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    wordy: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """A figure.

    Attributes:
        name: Of its file, without the ending.
        title: What is shown.
        text: How to read it.
        draw: Makes the figure.
    """

    name: str
    title: str
    text: str
    draw: Callable[[], "Figure"]


@dataclass(frozen=True, slots=True)
class Answer:
    """What was found of one arm.

    Attributes:
        word: The verdict.
        sentences: The finding, and what the other budgets say of it.
    """

    word: str
    sentences: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Note:
    """Something that a reader must not overlook."""

    text: str


@dataclass(frozen=True, slots=True)
class Code:
    """Text to be copied, such as a command."""

    text: str


@dataclass(frozen=True, slots=True)
class Writing:
    """What a model wrote, side by side with what others did."""

    by: str
    text: str


Block = str | Table | Plot | Note | Code | tuple[Answer, ...] | tuple[Writing, ...]
"""A paragraph, or one of the above."""


@dataclass(frozen=True, slots=True)
class Section:
    """A heading with what stands below it."""

    heading: str
    blocks: tuple[Block, ...]
    parts: tuple["Section", ...] = ()

    def all_blocks(self) -> tuple[Block, ...]:
        """Its own blocks and those of its parts, in order."""
        return self.blocks + tuple(block for part in self.parts for block in part.all_blocks())


@dataclass(frozen=True, slots=True)
class Report:
    """A whole report.

    Attributes:
        title: Its name.
        question: What was asked, or what was compared.
        sections: The answer first.
    """

    title: str
    question: str
    sections: tuple[Section, ...]

    def plots(self) -> list[Plot]:
        """All figures, in order."""
        blocks = (block for section in self.sections for block in section.all_blocks())
        return [block for block in blocks if isinstance(block, Plot)]
