"""Claims and what testing them found, in a terminal."""

from collections.abc import Iterable, Iterator

from rich.console import Group
from rich.table import Table
from rich.text import Text

from mlx_attn.lab.claims import Claim, Finding
from mlx_attn.lab.claims.claim import ArmFinding
from mlx_attn.show.report.words import between, number, signed

_STYLES = {"holds": "green", "does not hold": "red", "undecided": "yellow"}


def claims_table(claims: Iterable[Claim]) -> Table:
    """All claims: name, statement, source."""
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(no_wrap=True, style="bold")
    table.add_column(overflow="fold")
    for claim in claims:
        text = Text(claim.statement)
        text.append(f"\n{claim.source}\nhere: {claim.protocol}", "dim")
        table.add_row(Text(claim.name), text)
    return table


def finding_lines(finding: Finding) -> Group:
    """What was found of a claim: the answer, and the numbers behind it."""
    answer = Text(f"{finding.claim}: ")
    answer.append(finding.answer, _STYLES[finding.answer])
    lines: list[Text] = [answer, Text(f"  {finding.statement}", "dim")]
    lines += [Text(f"  {line}") for line in number_lines(finding)]
    return Group(*lines, Text(""))


def number_lines(finding: Finding) -> Iterator[str]:
    """The numbers of a finding, a line each."""
    for budget, arms in finding.arms.items():
        yield f"equal {budget}, {finding.unit}, {finding.seeds} seeds:"
        for arm in arms:
            yield f"  {_arm(arm)}"
    if not finding.arms:
        for name, value in finding.numbers.items():
            yield f"{name}: {value:.4g}"


def _arm(arm: ArmFinding) -> str:
    if arm.refused:
        return f"{arm.arm}: cannot be had: {arm.refused}"
    text = f"{arm.arm}: {number(arm.value, 4)}"
    if arm.verdict is None:
        return text
    verdict = arm.verdict
    interval = between(verdict.interval, 4)
    return f"{text}, {signed(verdict.mean, 4)} ({interval}), {verdict.word}"
