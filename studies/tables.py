"""Write the tables that only docs/answers.md has."""

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from math import expm1, inf
from pathlib import Path
from statistics import fmean, median

import msgspec

from mlx_attn.errors import plural
from mlx_attn.records import as_record, read_record
from studies import findings
from studies.findings import Finding
from studies.horizon import START, Course, Trained, cost, fit, mean_delay
from studies.schedule import ArmPlan, Records
from studies.show import DONE, difference, mean_difference, name_of, table
from studies.study import MODERATED, STANDARD, WORST_OF_FIVE, Prediction, Study
from studies.trends import Cost as CostInTokens
from studies.trends import TrendFinding

Judged = tuple[Study, Sequence[Finding]]
"""A study with its findings."""

TEXTS = ("tales", "shakespeare", "python")
"""The texts of the answers; the name of a world begins with its text."""

SURE = "how sure, and at what length"
"""The heading of the column that names an answer's trainings."""


def overview(study: Study, found: Sequence[Finding]) -> str:
    """Return every contrast in one line, with the answers world by world."""
    names, rows = [*study.worlds], list[list[str]]()
    for contrast in (c for question in study.questions.values() for c in question.contrasts):
        of_contrast = [f for f in found if f.contrast == contrast]
        cells = {f.world: _cell(f) for f in of_contrast}
        answers = [cells.get(world, "not asked") for world in names]
        rows.append([contrast.statement, *answers, _in_all(of_contrast)])
    return table(("expected", *names, "in all"), rows)


def values_of(found: Sequence[Finding], arm: str, worlds: Sequence[str]) -> str:
    """Return an arm's differences to the standard form in some worlds, in one line."""
    here = [
        f"{f.world}: {difference(f, 3)}, computed as {f.word} at {f.steps} steps"
        for f in found
        if (f.contrast.arm, f.contrast.control) == (arm, STANDARD)
        and f.world in worlds
        and f.verdict
    ]
    return "; ".join(here) or f"{', '.join(worlds)}: not finished"


Row = tuple[str, Mapping[str, str]]
"""A label, and cells by text."""


def evidence(rows: Sequence[Row]) -> str:
    """Return what an answer rests on: a row for each label, a column for each text."""
    texts = [text for text in TEXTS if any(text in cells for _, cells in rows)]
    merged: dict[str, dict[str, str]] = {}
    for name, cells in rows:
        merged.setdefault(name, {}).update(cells)
    lines = ([name, *(row.get(text, "") for text in texts)] for name, row in merged.items())
    return table((SURE, *texts), [*lines])


def row_of_findings(label: str, study: Study, by_text: Mapping[str, Finding]) -> Row:
    """Return the mean differences of one form with their words."""
    one = next(iter(by_text.values()))
    seeds = plural(len(one.verdict.differences) if one.verdict else 0, "seed")
    length = ", ".join(filter(None, (label, f"{one.steps} steps, {seeds}")))
    return length, {t: _in_words(study, f) for t, f in by_text.items()}


def _in_words(study: Study, found: Finding) -> str:
    """Return a mean difference with its word.

    If the study registered an older test, the moderated t's word follows where it differs.
    """
    word = found.answer if found.answer == findings.WITHDRAWN else found.word
    other = found.verdict.other_word if found.verdict else word
    is_older = study.protocol.test != MODERATED
    differs = is_older and word not in (other, findings.WITHDRAWN)
    return f"{mean_difference(found, 3)} {word}" + (f" (moderated t: {other})" if differs else "")


def resolution(study: Study, found: Sequence[Finding]) -> str:
    """Return, world by world, the differences caused by rounding and by learning.

    Forms in a contrast with `null` compute the same functions, so only learning can make them
    differ.
    """
    rows: list[list[str]] = []
    for world in study.worlds:
        here = [f for f in found if f.world == world and f.contrast.null and f.verdict]
        if not here:
            continue
        twins = [f for f in here if study.arms[f.contrast.arm].jitter]
        rounding = max((_largest(f) for f in twins), default=None)
        largest = max((f for f in here if f not in twins), key=_size, default=None)
        cells = ["" if rounding is None else f"{rounding:.0e}", "", ""]
        if largest:
            cells[1:] = difference(largest, 4), name_of(largest.contrast)
        rows.append([world, *cells, f"{study.world(world).margin:g}"])
    return table(("world", "a rounding", "one function, two forms", "which", "margin"), rows)


def beside(found: Sequence[Finding], others: Mapping[str, Sequence[Finding]]) -> str:
    """Compare the findings of a study with those of others on the same text, by column.

    The other studies may have trained for another number of steps.
    """
    known = [{f.asked[1:]: f for f in each} for each in others.values()]
    rows = [
        [name_of(one.contrast), one.text, _with_word(one)]
        + [_with_word(of_study.get(one.asked[1:])) for of_study in known]
        for one in found
    ]
    return table(("contrast", "text", "here", *others), rows)


def _with_word(found: Finding | None) -> str:
    if found is None:
        return "not asked"
    return f"{difference(found, 3)}, {found.said}" if found.verdict else found.answer


def confirmations(confirming: Judged, first: Judged) -> tuple[int, int]:
    """Return how many contrasts of both studies a moderated t decides twice, and how many agree.

    They agree if the words have the same direction, within the margin or not.
    """
    earlier = _directions(first)
    pairs = [
        (word, earlier[key]) for key, word in _directions(confirming).items() if key in earlier
    ]
    return len(pairs), sum(word == before for word, before in pairs)


def _directions(judged: Judged) -> dict[tuple[int, str, str, str, str], str]:
    """Return better, worse or equivalent for every contrast that a moderated t decides."""
    study, found = judged
    words = {
        f.asked: (f.verdict.other_word if study.protocol.test == WORST_OF_FIVE else f.word)
        for f in found
        if f.verdict
    }
    undecided = {findings.UNDECIDED, findings.INSENSITIVE}
    return {key: word.split()[0] for key, word in words.items() if word not in undecided}


def trends(study: Study, found: Sequence[Finding], of: Sequence[TrendFinding]) -> str:
    """Return the cost of every arm in tokens at each width, and its trend."""
    widths = {world.settings["emb_dim"]: name for name, world in study.worlds.items()}
    steps = next(iter(study.worlds.values())).settings["steps"]
    done = {(f.contrast.arm, f.world): DONE.format(*f.done) for f in found}
    rows: list[list[str]] = []
    for one in of:
        costs = {cost.width: _tokens(cost) for cost in one.costs}
        cells = [costs.get(w) or done[one.trend.arm, world] for w, world in widths.items()]
        ends = ["", "", one.answer, one.trend.statement]
        if one.verdict and one.verdict.interval:
            change = percent(one.verdict.mean, one.verdict.interval)
            ends = [
                change,
                f"{one.verdict.p_holm:.2g}",
                f"{one.word} at {steps} steps: {one.answer}",
                ends[-1],
            ]
        rows.append([one.trend.arm, *cells, *ends])
    names = [f"width {width}" for width in widths]
    return table(("arm", *names, "each doubling", "p: no change", "word", "expected"), rows)


SPEED = "speed.json"
"""The file of a study's folder with speeds, which benchmarks/alternatives_speed.py writes."""


class _Speeds(msgspec.Struct, frozen=True):
    """Tokens per second as multiples of the standard form's, by form and by kind of work."""

    forms: dict[str, dict[str, float]]


class Cost(msgspec.Struct, frozen=True):
    """What a model costs, as it was counted when it was trained."""

    parameters: int
    multiply_adds: int  # for each token
    cache_floats: int  # for each token
    state_floats: int  # for a whole text


COSTS = Path(__file__).with_name("costs.json")
"""The costs of the compared models, by study, world and arm."""


@cache
def costs_of(study: str) -> dict[str, dict[str, Cost]]:
    """Return the costs of a study's models by world and arm."""
    every = as_record(read_record(COSTS), dict[str, dict[str, dict[str, Cost]]], str(COSTS))
    return every[study]


def costs(study: Study, found: Sequence[Finding], folder: Path) -> str:
    """Return every arm's loss and costs in each world, the standard form first.

    Parameters and multiply-adds for each token are of the whole model; the cache is in bytes
    of float32, for each token or, of a state, for a whole text. Speeds are multiples of the
    standard form's, if the folder has measured ones.
    """
    file = folder / SPEED
    speeds = as_record(read_record(file), _Speeds, str(file)).forms if file.exists() else {}
    counted, rows = costs_of(folder.name), list[list[str]]()
    for world in study.worlds:
        of_world = [f for f in found if f.world == world and f.losses]
        losses = {STANDARD: of_world[0].losses[0]} if of_world and of_world[0].losses else {}
        losses |= {f.contrast.arm: f.losses[2] for f in of_world if f.losses}
        for arm, loss in losses.items():
            cost = counted[world][arm]
            cache = f"{4 * cost.cache_floats:,} a token" * bool(cost.cache_floats)
            state = f"{4 * cost.state_floats:,} a text" * bool(cost.state_floats)
            cells = [f"{loss:.4f}", f"{cost.parameters:,}", f"{cost.multiply_adds:,}"]
            speed = [f"x {each:.2f}" for each in speeds.get(arm, {}).values()]
            rows.append([world, arm, *cells, ", ".join(filter(None, (cache, state))), *speed])
    head = ["world", "form", "loss", "parameters", "multiply-adds", "bytes of cache"]
    return table([*head, *(["training speed", "decoding speed"] if speeds else [])], rows)


def solved(study: Study, records: Records) -> str:
    """Return how many models of each arm solved each world's task, and the median steps to it.

    The median is over all models of an arm, so it is left out if fewer than half solved the task.
    """
    rows: list[list[str]] = []
    for arm in study.arms:
        row = [arm]
        for world in study.worlds:
            steps = _steps_to_solve(study, records, world, arm)
            soon = f", {median(steps):.0f} steps" if steps and median(steps) < inf else ""
            row.append(f"{_count_solved(steps)}{soon}" if steps else "")
        rows.append(row)
    return table(("form", *study.worlds), rows)


def solvers(study: Study, records: Records, world: str) -> str:
    """Return the arms that solved a world's task, with how many of their models did."""
    steps = {arm: _steps_to_solve(study, records, world, arm) for arm in study.arms}
    each = [f"{arm} ({_count_solved(s)})" for arm, s in steps.items() if min(s, default=inf) < inf]
    return ", ".join(each) or "none"


def _steps_to_solve(study: Study, records: Records, world: str, arm: str) -> list[float]:
    """Return each model's steps until it solved the task, inf if it never did."""
    times = [one.steps_to_solve for one in ArmPlan(study, records, world, arm).verdict()]
    return [steps if is_solved else inf for steps, is_solved in times]


def _count_solved(steps: Sequence[float]) -> str:
    return f"{sum(s < inf for s in steps)} of {len(steps)}"


def predictions(study: Study, found: Sequence[Finding]) -> str:
    """Return every predicted cost, as a share of the loss, and the measured one."""
    measured = {f.contrast.arm: f for f in found}
    rows = [
        [
            *(one.arm, f"{one.low:.2%} to {one.high:.2%}", f"{one.point:.2%}"),
            *_outcome(one, measured[one.arm]),
        ]
        for one in study.predictions
    ]
    return table(("without", "predicted", "most likely", "measured", "the prediction"), rows)


def _outcome(prediction: Prediction, found: Finding) -> list[str]:
    """Return the measured cost with its interval, and if the prediction was right.

    It is right if the whole interval lies inside the predicted one, wrong if it lies outside.
    """
    if found.verdict is None or found.verdict.interval is None or found.losses is None:
        return ["", findings.UNFINISHED]
    mean, low, high = (
        nats / found.losses[0] for nats in (found.verdict.mean, *found.verdict.interval)
    )
    word = findings.UNDECIDED
    if prediction.low <= low and high <= prediction.high:
        word = findings.HOLDS
    elif high < prediction.low or low > prediction.high:
        word = findings.FAILS
    return [f"{mean:.2%} ({low:.2%} to {high:.2%})", word]


def courses(judged: Sequence[Course]) -> str:
    """Return the cost and the delay of every arm at the first length and at an end."""
    lengths = (f"at {steps} steps" for steps in (START, judged[0].end))
    rows = [
        [one.arm, one.text, cost(one, "start"), cost(one, "end"), mean_delay(one), one.word]
        for one in judged
    ]
    return table(("arm", "text", *lengths, "behind, steps", "word"), rows)


def shifts(trained: Trained) -> str:
    """Return the costs of every arm after all lengths as a share of its tokens and a constant."""
    fits = {pair: split for pair, lengths in trained.items() if (split := fit(lengths))}
    rows = [
        [
            *(arm, text, ", ".join(map(str, trained[text, arm]))),
            percent(one.shift, one.shifts),
            f"{one.constant:+.3f} ({one.constants[0]:+.3f} to {one.constants[1]:+.3f})",
        ]
        for (text, arm), one in fits.items()
    ]
    return table(("arm", "text", "lengths", "behind, of its tokens", "constant"), rows)


def changed(study: Study, records: Records) -> str:
    """Return mean differences to the control for arms with former settings of their study.

    Return "" if no such arm has all of the verdict's seeds.
    """
    seeds, losses = study.protocol.verdict_seeds, dict[tuple[str, str, str], dict[int, float]]()
    for record in records.values():
        former = record.changes.keys() - {"query_key_lr"}  # which searches choose
        if former and record.world in study.worlds and record.loss is not None:
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


def _in_all(found: Sequence[Finding]) -> str:
    done = [f for f in found if f.verdict]
    if not done:
        return findings.UNFINISHED
    answers = Counter(f.answer for f in done)
    return ", ".join(f"{answer} in {count}" for answer, count in answers.items())


def _cell(found: Finding) -> str:
    if found.verdict is None:
        return f"{found.answer} ({DONE.format(*found.done)})"
    if found.answer in (found.word, findings.WITHDRAWN):
        return f"{found.said}: {difference(found, 3)}"
    return f"{found.answer}: {difference(found, 3)}, {found.said}"


def _size(found: Finding) -> float:
    return abs(found.verdict.mean) if found.verdict else 0.0


def _largest(found: Finding) -> float:
    return max(map(abs, found.verdict.differences)) if found.verdict else 0.0


def _tokens(cost: CostInTokens) -> str:
    return percent(sum(cost.costs) / len(cost.costs), cost.interval)


def percent(mean: float, interval: tuple[float, float]) -> str:
    """Return a change of ln(tokens) with its interval, as a percentage of the tokens."""
    share, low, high = (f"{-expm1(-number):+.0%}" for number in (mean, *interval))
    return f"{share} ({low} to {high})"
