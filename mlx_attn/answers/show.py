"""How the study looks: in a terminal runs, checks and questions, on the page its figures."""

from collections.abc import Mapping, Sequence
from math import expm1, isfinite
from statistics import fmean
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.text import Text

from mlx_attn.answers.findings import FAILS, HOLDS, AbilityCurve, Finding, TrendFinding
from mlx_attn.answers.identities import Checked
from mlx_attn.answers.study import Study
from mlx_attn.comparison.figures import draw_forest
from mlx_attn.comparison.plan import Trial
from mlx_attn.comparison.show import LOOKS
from mlx_attn.comparison.trial import Diverged, Outcome
from mlx_attn.comparison.tuning import Search
from mlx_attn.ui.plots import COLOURS, panels

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def trial_line(trial: Trial, outcome: Outcome, left: int) -> str:
    """A trial that ended, and how many others are wanted."""
    name = f"{trial.world}, {trial.arm}, seed {trial.seed}, rates x {trial.lr_scale:g}"
    if isinstance(outcome, Diverged):
        return f"{name}: diverged  ({left} or more left)"
    return f"{name}: {outcome.val_loss:.4f}  ({outcome.seconds:.0f} s, {left} or more left)"


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
            line.append(
                one.answer, LOOKS[one.answer].terminal if one.answer in (HOLDS, FAILS) else "yellow"
            )
            line.append(_numbers(one))
            lines.append(line)
    return Group(*lines)


def _numbers(found: Finding) -> str:
    verdict = found.verdict
    if verdict is None:
        return ", {} of {} runs".format(*found.done)
    spread = "one seed"
    if verdict.interval is not None:
        spread = "{:+.4f} to {:+.4f}".format(*verdict.interval)
    part = "" if verdict.share is None else f", {verdict.share:+.0%} of the part"
    return f", {verdict.mean:+.4f} nats ({spread}), {found.word}{part}"


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
            "mean": f.verdict.mean if f.verdict else None,
            "interval": list(f.verdict.interval) if f.verdict and f.verdict.interval else None,
            "p_difference": f.verdict.p_holm if f.verdict else 1.0,
            "p_equivalence": f.verdict.p_equivalence if f.verdict else 1.0,
            "share": f.verdict.share if f.verdict else None,
            "tokens": f.tokens,
        }
        for f in found
    ]


# Figures.

_SIZE, _ROW = (3.1, 1.1), 0.42  # inches: of a panel without rows, and of a row
_GREY = "#7f7f7f"
_ABILITY = (3.1, 2.1)  # inches: of a panel
_WIDTHS = (5.2, 3.2)
_RATES = (2.7, 1.6)
_HEADROOM = 1.25  # of the largest difference that is no reference's


def question_figure(found: Sequence[Finding], study: Study) -> "Figure":
    """A panel a world: each contrast's seeds, mean and interval, and the margin."""
    found = [f for f in found if f.verdict]
    worlds = [world for world in study.worlds if any(f.world == world for f in found)]
    rows = [*dict.fromkeys((f.contrast.arm, f.contrast.control) for f in found)]
    size = (_SIZE[0], _SIZE[1] + _ROW * len(rows))
    figure, axes = panels(len(worlds), 3, size, sharey=True)
    for axis, world in zip(axes, worlds, strict=True):
        here = (f for f in found if f.world == world)
        placed = ((rows.index((f.contrast.arm, f.contrast.control)), f.verdict) for f in here)
        verdicts = [(row, verdict) for row, verdict in placed if verdict]
        draw_forest(axis, verdicts, study.worlds[world].margin)
        axis.set_title(world)
        axis.locator_params(axis="x", nbins=4)
    labels = [arm if control == "standard" else f"{arm}\n(to {control})" for arm, control in rows]
    axes[0].set_yticks(range(len(rows)), labels)
    axes[0].set_ylim(len(rows) - 0.5, -0.5)
    label = "nats per token above the control (left is better); band: the margin"
    figure.supxlabel(label if len(axes) > 1 else label.replace(" (", "\n("))  # a panel is narrow
    return figure


def ability_figure(curves: Sequence[AbilityCurve]) -> "Figure":
    """A panel an ability: how far arms are above the control, by the tokens they have read.

    The axis is that of the arms; of references, which lack a part altogether, it may show only the
    beginning.
    """
    names = [*curves[0].differences]
    figure, axes = panels(len(names), 3, _ABILITY, sharex=True)
    arms = [curve.arm for curve in curves if not curve.is_reference]
    for axis, name in zip(axes, names, strict=True):
        axis.axhline(0, color=_GREY, linewidth=0.8)
        for place, curve in enumerate(curves):
            look = {"color": _GREY, "linestyle": (":", "--")[place % 2]}
            if not curve.is_reference:
                look = {"color": COLOURS[arms.index(curve.arm) % len(COLOURS)]}
            thousands = [tokens / 1000 for tokens in curve.tokens]
            axis.plot(thousands, curve.differences[name], label=curve.arm, linewidth=1.4, **look)
        shown = [d for c in curves if not c.is_reference for d in c.differences[name]]
        if shown:
            axis.set_ylim(min(0, *shown) * _HEADROOM - 0.01, max(0, *shown) * _HEADROOM + 0.01)
        axis.set_title(name)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=min(len(labels), 6))
    figure.supxlabel("thousand tokens of training")
    figure.supylabel("nats per such token above the control")
    return figure


def width_figure(found: Sequence[TrendFinding]) -> "Figure":
    """What every arm costs in tokens, by the width."""
    figure, (axis,) = panels(1, 1, _WIDTHS)
    axis.axhline(0, color=_GREY, linewidth=0.8)
    drawn = [one for one in found if one.costs]
    for place, one in enumerate(drawn):
        shift = 2 ** (0.06 * (place - (len(drawn) - 1) / 2))  # side by side
        widths = [cost.width * shift for cost in one.costs]
        means = [_share(sum(cost.costs) / len(cost.costs)) for cost in one.costs]
        ends = [[_share(end) for end in cost.interval] for cost in one.costs]
        reach = [[abs(m - end[k]) for m, end in zip(means, ends, strict=True)] for k in (0, 1)]
        look = {"color": COLOURS[place % len(COLOURS)], "marker": "o", "markersize": 4}
        axis.errorbar(widths, means, reach, label=one.trend.arm, linewidth=1.4, **look)
    ticks = sorted({cost.width for one in drawn for cost in one.costs})
    axis.set_xscale("log", base=2)
    axis.set_xticks(ticks, [f"{width}" for width in ticks])
    figure.legend(loc="outside upper center", ncols=len(drawn))  # within, it hides intervals
    figure.supxlabel("width of the residual stream")
    figure.supylabel("% of tokens for the same loss")
    return figure


def truncation_figure(curves: Mapping[str, Mapping[int, float]], head_dim: int) -> "Figure":
    """The loss of each form by the rank that every S_h is cut to."""
    figure, (axis,) = panels(1, 1, _WIDTHS)
    axis.axvline(head_dim, color=_GREY, linewidth=0.8)
    for place, (form, losses) in enumerate(curves.items()):
        axis.plot([*losses], [*losses.values()], "o-", color=COLOURS[place], label=form)
    ticks = sorted({rank for losses in curves.values() for rank in losses})
    axis.set_xscale("log", base=2)
    axis.set_xticks(ticks, [f"{rank}" for rank in ticks])
    figure.legend(loc="outside upper center", ncols=len(curves))
    figure.supxlabel("rank of every S_h; line: head_dim")
    figure.supylabel("nats per token")
    return figure


def parting_figure(curves: Mapping[str, Mapping[int, float]]) -> "Figure":
    """How far two forms of one model have parted after each step of their trainings."""
    says = {"S": "S_h, of its size", "attention": "a token's attention"}
    figure, (axis,) = panels(1, 1, _WIDTHS)
    for place, (what, shares) in enumerate(curves.items()):
        percent = [100 * share for share in shares.values()]
        axis.plot([*shares], percent, "o-", color=COLOURS[place], label=says[what], markersize=4)
    figure.legend(loc="outside upper center", ncols=len(curves))
    figure.supxlabel("steps from one untrained model, with the same batches")
    figure.supylabel("% apart")
    return figure


def rates_figure(found: Mapping[str, Mapping[str, Search]]) -> "Figure":
    """A panel an arm: its loss above the lowest by the factor of its rates, a line a world.

    A ring marks the factor that the arm was given. Of factors with which trainings nearly diverge
    only the direction shows.
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
    top = _HEADROOM * sorted(highest)[3 * len(highest) // 4]
    axes[0].set_ylim(-0.08 * top, top)
    lines = {line.get_label(): line for axis in axes for line in axis.get_lines()}
    figure.legend([lines[w] for w in worlds], worlds, loc="outside upper center", ncols=len(worlds))
    figure.supxlabel("learning rates, times those of the world; ring: chosen")
    figure.supylabel("nats above the lowest")
    return figure


def _share(cost: float) -> float:
    return -100 * expm1(-cost)
