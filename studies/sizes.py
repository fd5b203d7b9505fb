"""The study of two sizes: does the cost of a part of attention change with the model's size?

`two-sizes.toml` is its registration, written before its trainings.
"""

from pathlib import Path
from typing import Any

import msgspec

from studies.text import SourceText


class Search(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A search for the rates of one size, with seeds of its own."""

    factors: tuple[float, ...]
    seeds: tuple[int, ...]


class Study(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The contents of two-sizes.toml."""

    name: str
    forms: tuple[str, ...]  # the book's first
    shorter: float  # share of the tokens of the trainings that price a token
    points: int  # of a curve
    protocol: tuple[str, ...]
    analysis: tuple[str, ...]
    predictions: dict[str, dict[str, tuple[float, float]]]  # per cent of the tokens at M
    seeds: dict[str, tuple[int, ...]]
    searches: dict[str, Search]
    rates: dict[str, float]  # at 300 steps; times (300 / steps)^(1/4) at others
    sizes: dict[str, dict[str, int]]
    shared: dict[str, Any]
    text: SourceText


def registered() -> Study:
    """Read two-sizes.toml."""
    file = Path(__file__).with_name("two-sizes.toml")
    return msgspec.toml.decode(file.read_bytes(), type=Study)
