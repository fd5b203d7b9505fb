"""The answer, which comes first, and the noise that it has to be seen against."""

from collections.abc import Iterator

from mlx_attn.lab.compare.result import BudgetResult, Comparison
from mlx_attn.show.report.content import Answer, Note, Section, Table
from mlx_attn.show.report.words import (
    MISSING,
    budget_name,
    finding,
    noise_sentences,
    places,
    signed,
)

WORDS = (
    "Equivalent: the difference is shown to be smaller than what counts as one, zero or not. "
    "Better and worse: it is shown not to be zero. Undecided: these seeds show neither."
)


def answer_section(comparison: Comparison) -> Section:
    """What was found of every arm, and all verdicts at a glance."""
    answers = tuple(answer(comparison, arm) for arm in judged(comparison))
    if not answers:
        return Section("Answer", ("There is nothing to compare with: only one arm was trained.",))
    several = len(comparison.budgets) > 1
    glance = (glance_table(comparison),) if several else ()
    return Section("Answer", (answers, WORDS, *glance))


def judged(comparison: Comparison) -> list[str]:
    """Arms with a verdict under some budget, in order."""
    return list(dict.fromkeys(arm for budget in comparison.budgets for arm in budget.verdicts))


def answer(comparison: Comparison, arm: str) -> Answer:
    """The verdict under the first budget that has one, then what the others say."""
    first, *others = [b for b in comparison.budgets if arm in b.verdicts]
    word = first.verdicts[arm].word
    where = f"With {budget_name(first)}, " if len(comparison.budgets) > 1 else ""
    sentence = f"{where}{finding(arm, first.verdicts[arm], comparison)}"
    return Answer(word, (sentence, *_elsewhere(comparison, arm, others)))


def glance_table(comparison: Comparison) -> Table:
    """A row per arm, a column per budget: verdict and mean difference."""
    return Table(
        caption=f"Verdicts, and mean differences to {comparison.control} in nats per token",
        headings=("arm", *(budget_name(budget) for budget in comparison.budgets)),
        rows=tuple(
            (arm, *(_cell(budget, arm, comparison.delta) for budget in comparison.budgets))
            for arm in judged(comparison)
        ),
    )


def noise_section(comparison: Comparison) -> Section:
    """What the control differs by from itself."""
    noise = comparison.noise
    if noise is None:
        return Section("Noise", ("The control was not compared with itself.",))
    text = noise_sentences(noise, comparison)
    if noise.verdict.word in ("better", "worse"):
        warning = (
            f"{comparison.control} differs from itself: seeds vary more than these intervals "
            "allow for, so take the verdicts with care."
        )
        return Section("Noise", (text, Note(warning)))
    return Section("Noise", (text,))


def _elsewhere(comparison: Comparison, arm: str, others: list[BudgetResult]) -> Iterator[str]:
    """What other budgets say of an arm: a sentence for each verdict."""
    said: dict[str, list[str]] = {}
    for budget in others:
        verdict = budget.verdicts[arm]
        difference = signed(verdict.mean, places(comparison.delta))
        said.setdefault(verdict.word, []).append(f"with {budget_name(budget)} ({difference})")
    for budget in comparison.budgets:
        if arm in budget.refused:
            said.setdefault("not to be had", []).append(f"with {budget_name(budget)}")
    for word, where in said.items():
        yield f"{word.capitalize()} {' and '.join(where)}."


def _cell(budget: BudgetResult, arm: str, delta: float) -> str:
    if arm not in budget.verdicts:
        return "cannot be had" if arm in budget.refused else MISSING
    verdict = budget.verdicts[arm]
    return f"{verdict.word} {signed(verdict.mean, places(delta))}"
