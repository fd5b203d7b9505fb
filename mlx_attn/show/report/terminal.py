"""A comparison in a terminal: the answers as lines, the verdicts as a table per budget."""

from collections.abc import Iterator

from rich.console import Group
from rich.table import Table
from rich.text import Text

from mlx_attn.lab.compare.result import ArmResult, BudgetResult, Comparison
from mlx_attn.show.report.answer import answer, judged
from mlx_attn.show.report.words import (
    MISSING,
    between,
    budget_name,
    mean,
    number,
    places,
    shown,
    signed,
    values,
)

_STYLES = {"better": "green", "worse": "red", "equivalent": "cyan"}


def summary_lines(comparison: Comparison) -> list[str]:
    """The answer for every arm, one line each."""
    found = [answer(comparison, arm) for arm in judged(comparison)]
    return [shown(" ".join(one.sentences)) for one in found]


def verdict_tables(comparison: Comparison) -> Group:
    """A table per budget: every arm's loss, difference, interval and verdict; a line between."""
    found = [(_table(budget, comparison), *_refused(budget), "") for budget in comparison.budgets]
    return Group(*(line for lines in found for line in lines))


def _table(budget: BudgetResult, comparison: Comparison) -> Table:
    title = f"{budget_name(budget)}: nats per token, differences to {shown(comparison.control)}"
    table = Table(title=title, title_justify="left", title_style="", box=None, padding=(0, 2, 0, 0))
    table.add_column("arm", overflow="fold")
    interval = f"{100 * comparison.confidence:g} % interval"
    for heading in ("loss", "difference", interval):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    for arm in budget.arms:
        table.add_row(Text(shown(arm.arm)), *_cells(arm, budget, places(comparison.delta)))
    return table


def _refused(budget: BudgetResult) -> Iterator[Text]:
    for arm, why in budget.refused.items():
        yield Text(f"{shown(arm)} cannot be had: {shown(why)}", "dim")


def _cells(arm: ArmResult, budget: BudgetResult, decimals: int) -> list[str | Text]:
    loss = number(mean(values(arm, "val_loss")), max(4, decimals))
    verdict = budget.verdicts.get(arm.arm)
    if verdict is None:
        return [loss, MISSING, MISSING, MISSING]
    word = Text(verdict.word, _STYLES.get(verdict.word, ""))
    interval = between(verdict.interval, decimals)
    return [loss, signed(verdict.mean, decimals), interval, word]
