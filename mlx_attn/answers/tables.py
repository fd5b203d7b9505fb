"""The tables of docs/answers.md in Markdown: what findings and searches for rates show."""

from collections import Counter
from collections.abc import Sequence
from math import expm1
from statistics import fmean, stdev
from typing import Any

from mlx_attn.answers import findings
from mlx_attn.answers.findings import Cost, Finding, TrendFinding
from mlx_attn.answers.schedule import ArmPlan, Records, arm_plans
from mlx_attn.answers.study import STANDARD, Contrast, Study

_DONE = "{} of {} runs"
_COLUMNS = (
    *("contrast", "world", "control", "arm", "difference, 95 %", "p: no difference"),
    *("p: outside the margin", "word", "of the part", "tokens"),
)


def contrasts(found: Sequence[Finding]) -> str:
    """Contrasts with their numbers, a row for each world."""
    return table(_COLUMNS, [[_name(f.contrast), f.world, *_numbers(f)] for f in found])


def worlds(study: Study, records: Records, found: Sequence[Finding]) -> str:
    """The worlds, with what the margin is in tokens and what queries and keys are worth."""
    head = (
        *("world", "text, positions, block, optimizer", "margin", "that is in tokens"),
        "queries and keys are worth",
    )
    rows: list[list[str]] = []
    for name, world in study.worlds.items():
        worths = {
            f.worth
            for f in found
            if f.verdict and f.world == name and f.contrast.reference == "scores-off"
        }
        worth = f"{worths.pop():.3f} nats" if worths else "not finished"
        tokens = margin_in_tokens(study, records, name) or "not finished"
        rows.append([name, world.summary, f"{world.margin:g}", tokens, worth])
    return table(head, rows)


def margin_in_tokens(study: Study, records: Records, world: str) -> str:
    """The share of its tokens that the control could do without for a loss of one margin.

    "" where what tokens are worth is not known.
    """
    slope = findings.token_worth(study, records, world)
    return f"{-expm1(-study.world(world).margin / slope):.0%}" if slope and slope > 0 else ""


def overview(study: Study, found: Sequence[Finding]) -> str:
    """Every contrast in one line: the answers world by world."""
    names, rows = [*study.worlds], list[list[str]]()
    for contrast in (c for question in study.questions.values() for c in question.contrasts):
        of_contrast = [f for f in found if f.contrast == contrast]
        cells = {f.world: _cell(f) for f in of_contrast}
        answers = [cells.get(world, "not asked") for world in names]
        rows.append([contrast.statement, *answers, _in_all(study, of_contrast)])
    return table(("expected", *names, "in all"), rows)


def resolution(study: Study, found: Sequence[Finding]) -> str:
    """World by world, what rounding makes of a difference, and what learning does.

    Forms in a contrast with `null` compute the same functions, so that a difference between them
    is one of learning alone.
    """
    rows: list[list[str]] = []
    for world in study.worlds:
        here = [f for f in found if f.world == world and f.contrast.null and f.verdict]
        if not here:
            continue
        twins = [f for f in here if study.arms[f.contrast.arm].jitter]
        rounding = max((_size(f) for f in twins), default=None)
        largest = max((f for f in here if f not in twins), key=_size, default=None)
        cells = ["" if rounding is None else f"{rounding:.0e}", "", ""]
        if largest:
            cells[1:] = _difference(largest, 4), _name(largest.contrast)
        rows.append([world, *cells, f"{study.world(world).margin:g}"])
    return table(("world", "a rounding", "one function, two forms", "which", "margin"), rows)


def abilities(study: Study, records: Records, found: Sequence[Finding]) -> str:
    """Differences by what a token calls for, where the text says; "" where none is finished."""
    each = [
        (f, findings.by_ability(study, records, f.contrast, f.world)) for f in found if f.verdict
    ]
    known = [(f, of) for f, of in each if of]
    if not known:
        return ""
    names = [*known[0][1]]
    rows = [[_name(f.contrast), f.world, *(f"{of[n]:+.3f}" for n in names)] for f, of in known]
    return table(("contrast", "world", *names), rows)


def beside_first(found: Sequence[Finding], first: Sequence[Finding], suffix: str) -> str:
    """Differences of a study beside those of the first, where worlds differ by a suffix."""
    known = {(f.world, f.contrast.arm, f.contrast.control): f for f in first}
    rows: list[list[str]] = []
    for one in found:
        world = one.world.removesuffix(suffix)
        pair = (one, known[world, one.contrast.arm, one.contrast.control])
        cells = [f"{_difference(f, 3)}, {f.word}" if f.verdict else f.answer for f in pair]
        rows.append([_name(one.contrast), world, *cells])
    return table(("contrast", "text", "here", "in the first study"), rows)


def trends(study: Study, found: Sequence[Finding], of: Sequence[TrendFinding]) -> str:
    """What every arm costs in tokens at each width, and whether that changes."""
    widths = {world.settings["emb_dim"]: name for name, world in study.worlds.items()}
    done = {(f.contrast.arm, f.world): _DONE.format(*f.done) for f in found}
    rows: list[list[str]] = []
    for one in of:
        costs = {cost.width: _tokens(cost) for cost in one.costs}
        cells = [costs.get(w) or done[one.trend.arm, world] for w, world in widths.items()]
        ends = ["", "", one.answer, one.trend.statement]
        if one.verdict and one.verdict.interval:
            change = _percent(one.verdict.mean, one.verdict.interval)
            ends = [change, f"{one.verdict.p_holm:.2g}", f"{one.word}: {one.answer}", ends[-1]]
        rows.append([one.trend.arm, *cells, *ends])
    names = [f"width {width}" for width in widths]
    return table(("arm", *names, "each doubling", "p: no change", "word", "expected"), rows)


def rates(study: Study, records: Records) -> str:
    """The factor of the learning rates that every arm was given, and its spread over seeds."""
    plans = {(p.world, p.arm): p for p in arm_plans(study, records)}
    rows: list[list[str]] = []
    for arm in dict.fromkeys(arm for _, arm in plans):
        asked = [plans.get((world, arm)) for world in study.worlds]
        if any(cells := [_rate(plan) if plan else "" for plan in asked]):
            rows.append([arm, *cells])
    return table(("arm", *study.worlds), rows)


def changed(study: Study, records: Records) -> str:
    """Mean differences to the control of arms with settings that their study asks no longer.

    "" where there are none with all of the verdict's seeds.
    """
    seeds, losses = study.protocol.verdict_seeds, dict[tuple[str, str, str], dict[int, float]]()
    for record in records.values():
        if record.changes and record.world in study.worlds and record.loss is not None:
            with_ = ", ".join(f"{key} {value:g}" for key, value in record.changes.items())
            of_arm = losses.setdefault((record.arm, record.world, with_), {})
            of_arm[record.seed] = record.loss
    found: list[str] = []
    for (arm, world, with_), of_arm in losses.items():
        control = ArmPlan(study, records, world, STANDARD).losses()
        if control and of_arm.keys() >= {*seeds}:
            mean = fmean(of_arm[seed] - c for seed, c in zip(seeds, control, strict=True))
            found.append(f"{arm} in {world} with {with_}: {mean:+.3f}")
    return "; ".join(found)


def table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Rows under a heading, in Markdown."""
    lines = [f"| {' | '.join(row)} |" for row in (head, *rows)]
    return "\n".join([lines[0], "|---" * len(head) + "|", *lines[1:]])


def _in_all(study: Study, found: Sequence[Finding]) -> str:
    done = [f for f in found if f.verdict]
    if not done:
        return findings.UNFINISHED
    answers = Counter(f.answer for f in done)
    text = ", ".join(f"{answer} in {count}" for answer, count in answers.items())
    if mean := findings.over_worlds(done, study.protocol.confidence):
        share, (low, high) = mean
        text += f"; {share:+.0%} of the part ({low:+.0%} to {high:+.0%})"
    return text


def _cell(found: Finding) -> str:
    if found.verdict is None:
        return f"{found.answer} ({_DONE.format(*found.done)})"
    word = "" if found.word == found.answer else f", {found.word}"
    return f"{found.answer}: {_difference(found, 3)}{word}"


def _numbers(found: Finding) -> list[str]:
    """The cells of a contrast beside its name and world."""
    if found.verdict is None or found.losses is None:
        unfinished = f"{found.answer}, {_DONE.format(*found.done)}"
        return ["", "", unfinished, *[""] * (len(_COLUMNS) - 5)]
    control, _, arm = found.losses
    return [
        f"{control:.4f}",
        f"{arm:.4f}",
        _difference(found, 4),
        f"{found.verdict.p_holm:.2g}",
        f"{found.verdict.p_equivalence:.2g}",
        found.word,
        "" if found.verdict.share is None else f"{found.verdict.share:+.0%} of {found.worth:.3f}",
        "" if found.tokens is None else f"{found.tokens:+.0%}",
    ]


def _difference(found: Finding, decimals: int) -> str:
    """The mean difference with its interval."""
    assert found.verdict is not None
    if found.verdict.interval is None:
        return f"{found.verdict.mean:+.{decimals}f} (one seed)"
    mean, low, high = (
        f"{number:+.{decimals}f}" for number in (found.verdict.mean, *found.verdict.interval)
    )
    return f"{mean} ({low} to {high})"


def _size(found: Finding) -> float:
    return abs(found.verdict.mean) if found.verdict else 0.0


def _tokens(cost: Cost) -> str:
    return _percent(sum(cost.costs) / len(cost.costs), cost.interval)


def _percent(mean: float, interval: tuple[float, float]) -> str:
    """A change of ln(tokens) with its interval, as a share of the tokens."""
    share, low, high = (f"{-expm1(-number):+.0%}" for number in (mean, *interval))
    return f"{share} ({low} to {high})"


def _name(contrast: Contrast) -> str:
    control = contrast.control
    return contrast.arm if control == STANDARD else f"{contrast.arm} to {control}"


def _rate(plan: ArmPlan) -> str:
    search, losses = plan.search, plan.losses()
    if search.best is None:
        return ""
    edge = "" if search.interior or plan.study.arms[plan.arm].rates_of else " (at the edge)"
    spread = f", sd {stdev(losses):.4f}" if losses else ""
    return f"x {search.best:g}{edge}{spread}"
