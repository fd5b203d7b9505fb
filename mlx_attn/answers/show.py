"""What is known of a question, in a terminal and as plain data."""

from collections.abc import Sequence
from typing import Any

from rich.console import Group
from rich.text import Text

from mlx_attn.answers.analysis import FAILS, HOLDS, Finding
from mlx_attn.answers.study import Study

_COLOURS = {HOLDS: "green", FAILS: "red"}


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
