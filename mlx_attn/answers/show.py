"""The study in a terminal: a run that ended, a check, what is known of a question."""

from collections.abc import Sequence
from typing import Any

from rich.console import Group
from rich.text import Text

from mlx_attn.answers.book import Record
from mlx_attn.answers.findings import FAILS, HOLDS, Finding
from mlx_attn.answers.identities import Checked
from mlx_attn.answers.study import Study

_COLOURS = {HOLDS: "green", FAILS: "red"}


def record_line(record: Record, left: int) -> str:
    """A run that ended, and how many are wanted besides."""
    loss = "diverged" if record.loss is None else f"{record.loss:.4f}"
    return (
        f"{record.world}, {record.arm}, seed {record.seed}, rates x {record.scale:g}: {loss}  "
        f"({record.seconds:.0f} s, {left} or more left)"
    )


def checked_lines(name: str, checked: Checked) -> list[str]:
    """What a check measured, and whether that bears the statement out."""
    head = f"{name}: {HOLDS if checked.holds else FAILS}"
    return [head, *(f"  {what}: {number:.4g}" for what, number in checked.numbers.items())]


def question_lines(study: Study, name: str, found: Sequence[Finding]) -> Group:
    """A question, and under each of its contrasts a line for every world."""
    lines = [Text(study.question(name).title, "bold")]
    for contrast in study.question(name).contrasts:
        lines += [Text(f"\n{contrast.statement}"), Text(f"  {contrast.source}", "dim")]
        for one in (f for f in found if f.contrast == contrast):
            line = Text(f"  {one.world}: ")
            line.append(one.answer, _COLOURS.get(one.answer, "yellow"))
            line.append(_numbers(one))
            lines.append(line)
    return Group(*lines)


def _numbers(found: Finding) -> str:
    if found.measured is None or found.interval is None:
        return ", {} of {} runs".format(*found.done)
    low, high = found.interval
    part = "" if found.share is None else f", {found.share:+.0%} of the part"
    mean = found.measured.sample.mean
    return f", {mean:+.4f} nats ({low:+.4f} to {high:+.4f}), {found.word}{part}"


def finding_rows(found: Sequence[Finding]) -> list[dict[str, Any]]:
    """Findings as plain data."""
    return [
        {
            "arm": f.contrast.arm,
            "control": f.contrast.control,
            "world": f.world,
            "answer": f.answer,
            "runs": list(f.done),
            "word": f.word,
            "mean": f.measured.sample.mean if f.measured else None,
            "interval": list(f.interval) if f.interval else None,
            "p_difference": f.p_difference,
            "p_equivalence": f.p_equivalence,
            "share": f.share,
            "tokens": f.tokens,
        }
        for f in found
    ]
