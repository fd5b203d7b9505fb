"""A comparison in a terminal: numbers, the plan and the progress.

Progress is a bar on a terminal, a plain line an event in a pipe.
"""

import math
from collections.abc import Iterator, Mapping
from statistics import fmean
from typing import Any, NamedTuple

from rich import progress
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from mlx_attn.comparison import stages
from mlx_attn.comparison.decisions import WORDS, Verdict
from mlx_attn.comparison.plan import ComparisonConfig
from mlx_attn.comparison.result import AATest, ArmResult, BudgetResult, Comparison, Tuning
from mlx_attn.comparison.run import ComparisonRun
from mlx_attn.comparison.t_tests import MOST_SEEDS
from mlx_attn.comparison.trial import Diverged
from mlx_attn.errors import plural
from mlx_attn.markdown import visible
from mlx_attn.ui.terminal import duration, is_live

MISSING = "-"  # printed in place of a missing number
_UNIT = " nats per token"

_BUDGETS = {"seconds": "equal training time", "params": "equal parameters"}


class Look(NamedTuple):
    """How a word is shown: its colour in a terminal, and colour and marker in a figure."""

    terminal: str
    colour: str
    marker: str


LOOKS = {
    "better": Look("green", "#009e73", "<"),
    "equivalent": Look("cyan", "#0072b2", "D"),
    "worse": Look("red", "#d55e00", ">"),
    "better within the margin": Look("", "#009e73", "D"),
    "worse within the margin": Look("", "#d55e00", "D"),
    "undecided": Look("", "#7f7f7f", "o"),
    "insensitive": Look("yellow", "#7f7f7f", "x"),
    "holds": Look("green", "#009e73", "D"),
    "does not hold": Look("red", "#d55e00", ">"),
}
"""By the word of a verdict, or by what follows from it for a study's statement."""


def margin_text(comparison: Comparison) -> str:
    """Return the margin, as in "0.01 nats per token"."""
    nats, share = f"{comparison.delta:g} nats per token", comparison.delta_tokens
    return f"{nats} ({100 * share:g} % of the tokens)" if share else nats


def places(delta: float) -> int:
    """Return the decimals that show a tenth of delta, at least three."""
    return max(3, 1 - math.floor(math.log10(delta))) if 0 < delta < 1 else 3


def number(value: float | None, decimals: int) -> str:
    """Return a number with these decimals, never -0; a dash for None and nan."""
    if value is None or math.isnan(value):
        return MISSING
    # -0.0 + 0.0 is 0.0
    return f"{round(value, decimals) + 0.0:,.{decimals}f}"


def signed(value: float | None, decimals: int) -> str:
    """Return a number with its sign."""
    text = number(value, decimals)
    return text if text == MISSING or text.startswith("-") else f"+{text}"


def between(interval: tuple[float, float] | None, decimals: int) -> str:
    """Return an interval from one end to the other, or a dash without one.

    An end that would be rounded to zero gets up to three more decimals, because its sign matters.
    """
    if not interval or not all(map(math.isfinite, interval)):
        return MISSING
    # Up to three more decimals.
    wider = range(decimals, decimals + 4)
    return " to ".join(
        signed(end, next((n for n in wider if round(end, n)), decimals)) for end in interval
    )


def probability(p: float | None) -> str:
    """Return a p-value in three decimals."""
    if p is None or math.isnan(p):
        return MISSING
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def percent(share: float | None) -> str:
    """Return a share of 1, as 97.3 %."""
    return MISSING if share is None or math.isnan(share) else f"{100 * share:.1f} %"


def seeds_needed(verdict: Verdict) -> str:
    """Return the seeds that would decide; a dash if decided."""
    if verdict.seeds_needed is None:
        return MISSING
    return f"{verdict.seeds_needed}{' or more' if verdict.seeds_needed >= MOST_SEEDS else ''}"


def judged(comparison: Comparison) -> list[str]:
    """Return arms with a verdict under some budget, in order, without the reference."""
    arms = dict.fromkeys(arm for budget in comparison.budgets for arm in budget.verdicts)
    return [arm for arm in arms if arm != comparison.reference]


def meanings_text(comparison: Comparison) -> str:
    """Explain the words of its verdicts."""
    used = {verdict.word for budget in comparison.budgets for verdict in budget.verdicts.values()}
    meanings = "; ".join(f"{word}: {WORDS[word]}" for word in WORDS if word in used)
    return meanings and f"{meanings[0].upper()}{meanings[1:]}."


def worth_text(comparison: Comparison) -> str:
    """Return a sentence on the worth of the part in question; "" without a reference arm.

    The part is worth the mean difference of the arm that lacks it, in nats per token.
    """
    verdicts = (budget.verdicts.get(comparison.reference) for budget in comparison.budgets)
    if (verdict := next(filter(None, verdicts), None)) is None:
        return ""
    part = "queries and keys" if comparison.reference == "scores-off" else "attention"
    against = f"{comparison.reference} against {comparison.control}"
    return f"Worth of {part} here, {against}: {_numbers(verdict, comparison)}."


def answer_of(comparison: Comparison, arm: str) -> tuple[str, list[str]]:
    """Return the verdict under the first budget that has one, and sentences on all budgets."""
    first, *others = [budget for budget in comparison.budgets if arm in budget.verdicts]
    condition = f"With {budget_name(first)}, " if len(comparison.budgets) > 1 else ""
    # By word, so that budgets with the same verdict share a sentence.
    elsewhere: dict[str, list[str]] = {}
    for budget in others:
        difference = signed(budget.verdicts[arm].mean, places(comparison.delta))
        place = f"with {budget_name(budget)} ({difference})"
        elsewhere.setdefault(budget.word(arm), []).append(place)
    refused = [f"with {budget_name(b)}" for b in comparison.budgets if arm in b.refused]
    elsewhere |= {"not feasible": refused} if refused else {}
    also = [f"{word.capitalize()} {' and '.join(where)}." for word, where in elsewhere.items()]
    sentence = _finding(arm, first.verdicts[arm], comparison)
    # How soon a task is solved decides; the mean loss is told after it.
    if arm in first.solving:
        sentence = f"{_solving_text(first, arm)} By the mean loss, {sentence}"
    return first.word(arm), [f"{condition}{sentence}", *also]


def _solving_text(budget: BudgetResult, arm: str) -> str:
    """Return a sentence on how often and how soon an arm solves a task."""
    control, word = budget.arms[0].arm, budget.solving[arm].word
    how = {
        "better": f"{arm} solves the task sooner or more often than {control}",
        "worse": f"{arm} solves the task later or less often than {control}",
        "undecided": f"which of {arm} and {control} solves the task sooner is undecided",
    }[word]
    each: list[str] = []
    for one in (budget.solving[arm], budget.solving[control]):
        median = f" (median {number(one.median_steps, 0)} steps)" if one.median_steps else ""
        each.append(f"{one.solved} of {plural(one.runs, 'seed')}{median}")
    p = probability(budget.solving[arm].p_holm)
    return f"{how}: {' against '.join(each)}, log-rank p {p}."


def _finding(arm: str, verdict: Verdict, comparison: Comparison) -> str:
    """Return a verdict with its numbers, as a sentence."""
    against, margin = f"{arm} against {comparison.control}", margin_text(comparison)
    # The sentence begins like this; those that name the margin name its unit, too.
    claim, unit = {
        "equivalent": (f"{arm} is equivalent to {comparison.control} within {margin}", ""),
        "insensitive": (f"{against} is insensitive, the part being worth too little here", _UNIT),
        "undecided": (f"{against} is undecided", _UNIT),
    }.get(verdict.word, (f"{arm} is {verdict.word} than {comparison.control}", _UNIT))
    if verdict.word.endswith("within the margin"):
        direction = verdict.word.split()[0]
        claim = f"{arm} is {direction} than {comparison.control}, by less than {margin}"
        unit = ""
    share = "" if verdict.share is None else f", {percent(verdict.share)} of what the part is worth"
    more = _what_else_is_known(verdict, comparison) if verdict.word == "undecided" else ()
    return f"{claim}: {_numbers(verdict, comparison, unit)}{share}{''.join(more)}."


def _what_else_is_known(verdict: Verdict, comparison: Comparison) -> Iterator[str]:
    """Yield the parts of a sentence on an arm that these seeds cannot decide."""
    # The interval is for one arm; corrected for all arms, the test may still be undecided.
    if verdict.interval and not verdict.interval[0] <= 0 <= verdict.interval[1]:
        yield f"; corrected for all arms, p is {probability(verdict.p_holm)}"
    if verdict.interval and verdict.seeds_needed is not None:
        yield f"; a new comparison with about {seeds_needed(verdict)} seeds would decide"
    if verdict.below_margin is not None:
        likely = f"{100 * verdict.below_margin:.0f} %"
        yield f"; it is below {margin_text(comparison)} with a probability of {likely}"


def _numbers(verdict: Verdict, comparison: Comparison, unit: str = _UNIT) -> str:
    decimals = places(comparison.delta)
    mean, interval = signed(verdict.mean, decimals), between(verdict.interval, decimals)
    seeds = plural(len(verdict.differences), "seed")
    if verdict.slope:
        seeds += f" and {len(comparison.further_control)} more of {comparison.control}"
    if interval == MISSING:
        return f"{mean}{unit}, {seeds}, too few for an interval"
    return f"{mean}{unit}, {interval_name(comparison)} {interval}, {seeds}"


def interval_name(comparison: Comparison) -> str:
    """Name an interval, as in "95 % interval"; with several looks it covers all of them."""
    looks = f" over {len(comparison.looks)} looks" if comparison.looks else ""
    return f"{100 * comparison.confidence:g} % interval{looks}"


def budget_name(budget: BudgetResult) -> str:
    """Return a name such as "equal steps"."""
    return _BUDGETS.get(budget.budget, f"equal {budget.budget}")


def noise_text(noise: AATest, comparison: Comparison) -> str:
    """Describe the A/A run: the differences that come from rounding and from seeds."""
    # The effect of one rounding of the start bounds how much a difference can mean.
    moved = f"{noise.rounding:.1g} nats away" if noise.rounding else "with the same loss"
    control, spread = comparison.control, number(noise.seed_spread, places(comparison.delta) + 1)
    numbers = _numbers(noise.verdict, comparison)
    return (
        f"With every weight of its start moved by one rounding, {control} ends {moved}. Between "
        f"seeds its loss has a standard deviation of {spread} nats. "
        f"Against itself, with other seeds, {control} is {noise.verdict.word}: {numbers}."
    )


def mean_of(arm: ArmResult, field: str) -> float | None:
    """Return a field's mean over the trainings that have it, or None."""
    values = [getattr(training, field) for training in arm.trainings]
    measured = [value for value in values if value is not None]
    return fmean(measured) if measured else None


def summary_lines(comparison: Comparison) -> list[str]:
    """Return the answer for every arm, one line each, and the worth of the part."""
    answers = [" ".join(answer_of(comparison, arm)[1]) for arm in judged(comparison)]
    lines = (*answers, worth_text(comparison))
    return [visible(line) for line in lines if line]


def comparison_parts(comparison: Comparison) -> Iterator[Any]:
    """Yield the answers, their first sentences in bold, and the table of the first budget."""
    firsts = [visible(answer_of(comparison, arm)[1][0]) for arm in judged(comparison)]
    for line in summary_lines(comparison):
        text = Text(line)
        text.highlight_words(firsts, "bold")
        yield text
    first = first_judged(comparison)
    yield ""
    yield from _verdicts(first, comparison)
    if others := [budget_name(b) for b in comparison.budgets if b is not first]:
        yield Text(f"The report has the same for {' and '.join(others)}.", "dim")


def first_judged(comparison: Comparison) -> BudgetResult:
    """Return the budget that the answers are about."""
    return next((b for b in comparison.budgets if b.verdicts), comparison.budgets[0])


def verdict_tables(comparison: Comparison) -> Group:
    """Return a table per budget, with a line between."""
    return Group(*(line for b in comparison.budgets for line in _verdicts(b, comparison)))


def _verdicts(budget: BudgetResult, comparison: Comparison) -> Iterator[Any]:
    decimals = places(comparison.delta)
    differences = f"differences to {visible(comparison.control)}"
    yield Text(f"{budget_name(budget)}: nats per token, {differences}")
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("arm", overflow="fold")
    for heading in ("loss", "difference", interval_name(comparison)):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    for arm in budget.arms:
        cells: list[str | Text] = [MISSING] * 3
        if verdict := budget.verdicts.get(arm.arm):
            word = Text(budget.word(arm.arm), LOOKS[budget.word(arm.arm)].terminal)
            if arm.arm == comparison.reference:
                word = Text("the reference", "dim")
            interval = between(verdict.interval, decimals)
            cells = [signed(verdict.mean, decimals), interval, word]
        loss = number(mean_of(arm, "val_loss"), max(4, decimals))
        table.add_row(Text(visible(arm.arm)), loss, *cells)
    yield table
    for arm, why in budget.refused.items():
        yield Text(f"{visible(arm)} is not feasible: {visible(why)}", "dim")
    yield ""


def verdict_lines(
    control: str, verdicts: Mapping[str, Verdict], confidence: float
) -> Iterator[str]:
    """Yield a line for each verdict on runs of another program."""
    for arm, verdict in verdicts.items():
        shown = "too few for an interval"
        if verdict.interval:
            low, high = verdict.interval
            shown = f"{100 * confidence:g} % interval {low:+.4g} to {high:+.4g}"
        more = f"; about {verdict.seeds_needed} seeds would decide" if verdict.seeds_needed else ""
        if verdict.other_word not in ("", verdict.word):
            more += f"; by the worst of five: {verdict.other_word}"
        answer = f"{arm}, compared with {control}: {verdict.word}, {verdict.mean:+.4g}"
        pairs = f"{len(verdict.differences)} pairs"
        if verdict.slope:
            pairs += f", adjusted by further runs of {control} with slope {verdict.slope:.2g}"
        yield f"{answer} ({shown}, {pairs}){more}"


class Display(progress.Progress):
    """The progress of a comparison: messages, and events as a bar on a terminal or a line each.

    Quiet, it shows only messages.
    """

    def __init__(self, console: Console, quiet: bool):
        self._events = not quiet
        super().__init__(
            progress.TextColumn("{task.description}"),
            progress.BarColumn(bar_width=20),
            progress.MofNCompleteColumn(),
            progress.TextColumn("{task.fields[left]}"),
            console=console,
            transient=True,
            redirect_stdout=False,
            disable=not (self._events and is_live(console)),
        )
        self._task = self.add_task("starting", total=None, left="")

    def message(self, text: str) -> None:
        """Leave one line."""
        self.console.print(Text(text), soft_wrap=True)

    def __call__(self, event: stages.ComparisonEvent) -> None:
        """Move the bar, or leave a line."""
        if not self.disable and isinstance(event, stages.Began):
            counts = {"total": event.trainings, "completed": event.stored, "left": ""}
            self.update(self._task, description=event.stage, **counts)
        elif not self.disable and isinstance(event, stages.Finished):
            self.update(self._task, advance=1, left=f"{duration(event.seconds_left)} left")
        elif self._events and (line := _event_line(event)):
            self.message(line)


def _event_line(event: stages.ComparisonEvent) -> str:
    """Return an event in one line; "" prints nothing."""
    match event:
        case stages.Began():
            stored = f", {event.stored} of them finished before" if event.stored else ""
            return f"{event.stage}: {event.trainings} trainings{stored}"
        case stages.Finished():
            trial, outcome = event.trial, event.outcome
            diverged = isinstance(outcome, Diverged)
            loss = "diverged" if diverged else f"{outcome.val_loss:.4f} nats per token"
            name = f"{trial.arm}, seed {trial.seed}, learning rates x {trial.lr_scale:g}"
            return f"{name}: {loss}  ({event.left} left, {duration(event.seconds_left)})"
        case Tuning():
            edge = " (the last one tried: the best may lie beyond it)" if event.at_edge else ""
            second = f", queries and keys x {event.query_key_lr:g}"
            more = second if event.query_key_losses else ""
            return f"{event.arm}: learning rates x {event.best:g}{more}{edge}"
        case stages.Planned():
            plan = f"{event.seeds} seeds, about {event.minutes:.0f} minutes in all"
            if event.resolves is None:
                return plan
            power = f"a difference of {event.resolves:.3f} nats would be found 4 times out of 5"
            return f"{plan}; {power}"
        case _:
            return ""


def plan_rows(run: ComparisonRun) -> list[tuple[str, str]]:
    """Return the plan of a comparison."""
    protocol, settings = run.protocol, run.protocol.settings(run.protocol.arms[0])
    recipe = settings.training
    muon = f", muon_lr {recipe.muon_lr:g}" if recipe.optimizer == "muon" else ""
    at_least = "at least " if protocol.tunes else ""
    margin = f"what {100 * protocol.delta_tokens:g} % of the tokens are worth"
    if protocol.delta:
        margin = f"{protocol.delta:g} nats per token"
    return [
        ("arms", ", ".join(arm.name for arm in protocol.arms)),
        ("control", protocol.arms[0].name),
        ("reference", protocol.reference.name if protocol.reference else "none"),
        ("text", f"{run.corpus.name}, {run.vocab_size} tokens"),
        ("training", f"{settings.preset}, {recipe.steps} steps"),
        ("recipe", f"lr {recipe.lr:g}{muon}, batch_size {recipe.batch_size}"),
        ("tuning", f"{at_least}{protocol.tuning_trials} trainings"),
        ("seeds", _seeds_text(protocol)),
        ("equal", ", ".join(protocol.budgets)),
        ("counts as none", f"less than {margin}"),
        ("at once", f"{run.runner.size} trainings"),
    ]


def _seeds_text(protocol: ComparisonConfig) -> str:
    if protocol.looks:
        return f"until decided: {', '.join(map(str, protocol.looks))}"
    seeds = str(protocol.seeds) if protocol.seeds else f"what {protocol.minutes:g} minutes allow"
    more = f", and {protocol.control_seeds} more of {protocol.arms[0].name}"
    return seeds + (more if protocol.control_seeds else "")
