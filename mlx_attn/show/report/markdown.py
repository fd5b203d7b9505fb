"""A report as Markdown: all of its words and numbers; figures are left to the page."""

import re
from collections.abc import Iterator

from mlx_attn.show.report.content import (
    Answer,
    Block,
    Code,
    Note,
    Plot,
    Report,
    Section,
    Table,
    Writing,
)
from mlx_attn.show.report.words import shown

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~])")


def as_markdown(report: Report) -> str:
    """The report as Markdown, in which nothing that it quotes is markup."""
    lines = [f"# {escaped(report.title)}"]
    if report.question:
        lines.append(escaped(report.question))
    for section in report.sections:
        lines += _section(section, 2)
    return "\n\n".join(lines) + "\n"


def escaped(text: str) -> str:
    """Text on one line, without markup."""
    return _SPECIAL.sub(r"\\\1", " ".join(shown(text).split()))


def _section(section: Section, level: int) -> Iterator[str]:
    yield f"{'#' * level} {escaped(section.heading)}"
    for block in section.blocks:
        yield from _block(block)
    for part in section.parts:
        yield from _section(part, level + 1)


def _block(block: Block) -> Iterator[str]:
    match block:
        case str() | Note():
            yield escaped(block if isinstance(block, str) else block.text)
        case Table():
            yield f"{escaped(block.caption)}:"
            yield _table(block)
        case Code():
            yield _fenced(block.text)
        case tuple():
            yield from (_item(item) for item in block)
        case Plot():
            return


def _item(item: Answer | Writing) -> str:
    if isinstance(item, Writing):
        return f"**{escaped(item.by)}**\n\n{_fenced(item.text)}"
    return f"- **{escaped(item.word)}**: {escaped(' '.join(item.sentences))}"


def _table(table: Table) -> str:
    right = "|".join(["---"] + ["---:"] * (len(table.headings) - 1))
    rows = [_row(table.headings), f"|{right}|", *map(_row, table.rows)]
    return "\n".join(rows)


def _row(cells: tuple[str, ...]) -> str:
    return f"| {' | '.join(map(escaped, cells))} |"


def _fenced(text: str) -> str:
    """A block of code whose fence is longer than any in the text."""
    longest = max(map(len, re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{shown(text)}\n{fence}"
