"""The tables in Markdown and the figures of a study's page."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import exp, expm1, isfinite
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any, NamedTuple

from mlx_attn.ui.plots import COLOURS, panels
from studies import findings
from studies.decisions import Verdict
from studies.findings import WITHDRAWN, Finding
from studies.schedule import ArmPlan, Records, arm_plans
from studies.study import STANDARD, STEPS, Contrast, Study
from studies.tuning import Search

if TYPE_CHECKING:
    from matplotlib.figure import Figure


# Tables.

DONE = "{} of {} runs"
_COLUMNS = (
    *("contrast", "world", "control", "arm", "difference, 95 %", "p: no difference"),
    *("q", "p: outside the margin", "word", "other test", "of the part", "tokens"),
)


def contrast_table(found: Sequence[Finding]) -> str:
    """Return contrasts with their numbers, one row per world."""
    return table(_COLUMNS, [[name_of(f.contrast), f.world, *_cells(f)] for f in found])


def world_table(study: Study, records: Records, found: Sequence[Finding]) -> str:
    """Return the worlds, with the margin in tokens and the worth of queries and keys."""
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
    """Return the share of its tokens that the control can drop for a loss of one margin.

    Return "" if the worth of tokens is not measured.
    """
    slope = findings.token_worth(study, records, world)
    return f"{-expm1(-study.world(world).margin / slope):.0%}" if slope and slope > 0 else ""


def ability_table(study: Study, records: Records, found: Sequence[Finding]) -> str:
    """Return the differences by ability; "" if no finished contrast has any."""
    by_ability = [
        (f, findings.by_ability(study, records, f.contrast, f.world)) for f in found if f.verdict
    ]
    measured = [(f, losses) for f, losses in by_ability if losses]
    if not measured:
        return ""
    names = [*measured[0][1]]
    rows = [
        [name_of(f.contrast), f.world, *(f"{losses[name]:+.3f}" for name in names)]
        for f, losses in measured
    ]
    return table(("contrast", "world", *names), rows)


def rate_table(study: Study, records: Records) -> str:
    """Return the learning-rate factor of every arm, and the spread of its losses over seeds."""
    plans = {(p.world, p.arm): p for p in arm_plans(study, records)}
    rows: list[list[str]] = []
    for arm in dict.fromkeys(arm for _, arm in plans):
        asked = [plans.get((world, arm)) for world in study.worlds]
        if any(cells := [_rate(plan) if plan else "" for plan in asked]):
            rows.append([arm, *cells])
    return table(("arm", *study.worlds), rows)


def table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Return a table in Markdown."""
    lines = [f"| {' | '.join(row)} |" for row in (head, *rows)]
    return "\n".join([lines[0], "|---" * len(head) + "|", *lines[1:]])


def _cells(found: Finding) -> list[str]:
    """Return the cells of a contrast after its name and world."""
    if found.verdict is None or found.losses is None:
        unfinished = f"{found.answer}, {DONE.format(*found.done)}"
        return ["", "", unfinished, *[""] * (len(_COLUMNS) - 5)]
    control, _, arm = (_level(found, mean) for mean in found.losses)
    levels = zip((control, arm), found.unsolved, strict=True)
    return [
        *(level + (f", {unsolved} unsolved" if unsolved else "") for level, unsolved in levels),
        difference(found, 4),
        f"{found.verdict.p_holm:.2g}",
        f"{found.q:.2g}",
        f"{found.verdict.p_equivalence:.2g}",
        found.said,
        found.verdict.other_word,
        "" if found.verdict.share is None else f"{found.verdict.share:+.0%} of {found.worth:.3f}",
        "" if found.tokens is None else f"{found.tokens:+.0%}",
    ]


def _level(found: Finding, mean: float) -> str:
    """Return the mean of an arm, of steps the geometric one."""
    return f"{exp(mean):.0f} steps" if found.contrast.outcome == STEPS else f"{mean:.4f}"


def difference(found: Finding, decimals: int) -> str:
    """Return the mean difference with its interval; of steps, the ratio."""
    assert found.verdict is not None
    mean = mean_difference(found, decimals)
    if found.verdict.interval is None:
        return f"{mean} (one seed)"
    low, high = (_difference(found, end, decimals) for end in found.verdict.interval)
    return f"{mean} ({low} to {high})"


def mean_difference(found: Finding, decimals: int) -> str:
    """Return the mean difference; of steps, the ratio."""
    assert found.verdict is not None
    return _difference(found, found.verdict.mean, decimals)


def _difference(found: Finding, value: float, decimals: int) -> str:
    steps = found.contrast.outcome == STEPS
    return f"x {exp(value):.2f}" if steps else f"{value:+.{decimals}f}"


def name_of(contrast: Contrast) -> str:
    """Return the arm's name, with its control and outcome unless they are the usual ones."""
    control = contrast.control
    name = contrast.arm if control == STANDARD else f"{contrast.arm} to {control}"
    return f"{name}, {contrast.outcome}" if contrast.outcome else name


def _rate(plan: ArmPlan) -> str:
    search, losses = plan.search, plan.losses()
    if search.best is None:
        return ""
    edge = "" if search.interior or plan.study.arms[plan.arm].rates_of else " (at the edge)"
    spread = f", sd {stdev(losses):.4f}" if losses else ""
    ratio = f", queries and keys x {search.query_key_lr:g}" if search.query_key else ""
    return f"x {search.best:g}{edge}{ratio}{spread}"


# Figures.

_SIZE, _ROW = (3.1, 1.1), 0.42  # inches: of a panel without rows, and of a row
_RATES = (2.7, 1.6)
_LABEL, _LETTER = 20, 0.085  # letters of a label that a panel has room for, and inches of a letter
HEADROOM = 1.25  # top of the axis, in multiples of the third quartile of the arms' highest losses

_BAND = {"color": "#0072b2", "alpha": 0.15, "linewidth": 0}
_GREY = "#7f7f7f"


class Look(NamedTuple):
    """Colour and marker of a word in a figure."""

    colour: str
    marker: str


LOOKS = {
    "better": Look("#009e73", "<"),
    "equivalent": Look("#0072b2", "D"),
    "worse": Look("#d55e00", ">"),
    "better within the margin": Look("#009e73", "D"),
    "worse within the margin": Look("#d55e00", "D"),
    "undecided": Look(_GREY, "o"),
    "insensitive": Look(_GREY, "x"),
}
"""By the word of a verdict."""


def draw_forest(axis: Any, verdicts: Iterable[tuple[int, Verdict]], margin: float) -> None:
    """Draw verdicts, each in its row: a dot per seed above the mean with its interval."""
    if margin:
        axis.axvspan(-margin, margin, **_BAND)
    axis.axvline(0, color=_GREY, linewidth=0.8)
    axis.tick_params(axis="y", length=0)
    for row, verdict in verdicts:
        look, seeds = LOOKS[verdict.word], verdict.differences
        # A little above the mean, so that the marks do not cover each other.
        rows = [row - 0.22] * len(seeds)
        axis.plot(seeds, rows, "o", color=look.colour, markersize=2.5, alpha=0.6)
        if verdict.interval:
            axis.plot(verdict.interval, [row, row], color=look.colour, linewidth=1.8)
        axis.plot(verdict.mean, row, look.marker, color=look.colour, markersize=6)


def question_figure(
    found: Sequence[Finding], study: Study, titles: Mapping[str, str] | None = None
) -> "Figure":
    """Draw one panel per world: each contrast's seeds, mean and interval, and the margin.

    `titles` are other titles of panels than the world's name.
    """
    found = [f for f in found if f.verdict]
    worlds, columns = _places(found, study)
    rows = [*dict.fromkeys(name_of(f.contrast) for f in found)]
    labels = [row.replace(" to ", "\n(to ") + ")" * (" to " in row) for row in rows]
    # All panels share the room that long labels take from the first one.
    longest = max(len(line) for label in labels for line in label.split("\n"))
    width = _SIZE[0] + _LETTER * max(0, longest - _LABEL) / min(columns, len(worlds))
    size = (width, _SIZE[1] + _ROW * len(rows))
    figure, axes = panels(len(worlds), columns, size, sharey=True)
    for axis, world in zip(axes, worlds, strict=True):
        here = (f for f in found if f.world == world)
        verdicts: list[tuple[int, Verdict]] = []
        for f in here:
            if verdict := f.verdict:
                # A word that was withdrawn has no colour.
                shown = replace(verdict, word="undecided") if f.answer == WITHDRAWN else verdict
                verdicts.append((rows.index(name_of(f.contrast)), shown))
        draw_forest(axis, verdicts, study.worlds[world].margin)
        axis.set_title((titles or {}).get(world, world))
        axis.locator_params(axis="x", nbins=4)
    axes[0].set_yticks(range(len(rows)), labels)
    axes[0].set_ylim(len(rows) - 0.5, -0.5)
    unit = "ln(steps)" if any(f.contrast.outcome == STEPS for f in found) else "nats per token"
    label = f"{unit} above the control (left is better); band: the margin"
    figure.supxlabel(label if len(axes) > 1 else label.replace(" (", "\n("))  # a panel is narrow
    return figure


def _places(found: Sequence[Finding], study: Study) -> tuple[list[str], int]:
    """Return the worlds in the order of their panels, and the number of columns.

    If each of several texts was trained for the same lengths, a text is a row and a length a
    column.
    """
    worlds = [world for world in study.worlds if any(f.world == world for f in found)]
    places = {f.world: (f.text, f.steps) for f in found}
    texts = [*dict.fromkeys(places[world][0] for world in worlds)]
    lengths = len({steps for _, steps in places.values()})
    if lengths == 1 or len(texts) == 1 or len(worlds) != lengths * len(texts):
        return worlds, 3
    return sorted(worlds, key=lambda w: (texts.index(places[w][0]), places[w][1])), lengths


def rates_figure(found: Mapping[str, Mapping[str, Search]]) -> "Figure":
    """Draw one panel per arm: its loss above the lowest by factor of the rates, one line per world.

    A ring marks the chosen factor. The axis cuts off factors with which trainings nearly diverge.
    """
    worlds = [*dict.fromkeys(world for of_arm in found.values() for world in of_arm)]
    figure, axes = panels(len(found), 3, _RATES, sharex=True, sharey=True)
    highest: list[float] = []
    for axis, (arm, of_arm) in zip(axes, found.items(), strict=True):
        for world, search in of_arm.items():
            colour = COLOURS[worlds.index(world) % len(COLOURS)]
            means = {f: fmean(losses) for f, losses in sorted(search.losses.items())}
            above = {f: mean - min(means.values()) for f, mean in means.items() if isfinite(mean)}
            highest.append(max(above.values()))
            axis.plot([*above], [*above.values()], ".-", color=colour, label=world, linewidth=1.2)
            ring = {"markersize": 9, "markerfacecolor": "none", "color": colour}
            axis.plot([search.best], [above[search.best or 0.0]], "o", **ring)
        axis.set_title(arm)
        axis.set_xscale("log", base=2)
        axis.xaxis.set_major_formatter("{x:g}")
    top = HEADROOM * sorted(highest)[3 * len(highest) // 4]
    axes[0].set_ylim(-0.08 * top, top)
    lines = {line.get_label(): line for axis in axes for line in axis.get_lines()}
    figure.legend([lines[w] for w in worlds], worlds, loc="outside upper center", ncols=len(worlds))
    figure.supxlabel("learning rates, times those of the world; ring: chosen")
    figure.supylabel("nats above the lowest")
    return figure
