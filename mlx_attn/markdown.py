"""Text of any origin inside Markdown: shown as it is, never read as markup."""

import re

_MARKUP = re.compile(r"[\\`*_{}\[\]<>#|~&]|:(?=//)|(?<=www)\.", re.IGNORECASE)
"""Also the colon and the dot by which a bare address becomes a link."""


def visible(text: str) -> str:
    """Return the text with unprintable characters as their codes."""
    return "".join(c if c.isprintable() or c in "\n\t" else ascii(c)[1:-1] for c in text)


def escaped(text: str) -> str:
    """Return the text on one line, for a heading, a paragraph, a list or the cell of a table."""
    return _MARKUP.sub(r"\\\g<0>", " ".join(visible(text).split()))


def fenced(text: str, language: str = "text") -> str:
    """Return a block of code whose fence is longer than any in the text."""
    longest = max(map(len, re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{visible(text)}\n{fence}"
