"""Draw the figures that only docs/answers.md has."""

from collections.abc import Mapping, Sequence
from math import expm1
from typing import TYPE_CHECKING

from mlx_attn.ui.plots import COLOURS, panels
from studies import horizon
from studies.show import HEADROOM
from studies.trends import AbilityCurve, TrendFinding

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_GREY = "#7f7f7f"
_ABILITY = (3.1, 2.1)  # inches of a panel
_WIDTHS = (5.2, 3.2)
_LENGTHS = (4.2, 3.4)


def ability_figure(curves: Sequence[AbilityCurve]) -> "Figure":
    """Draw one panel per ability: the arms' loss above the control's, by tokens read.

    The axis fits the arms. References, which lack a whole part, may leave it after the beginning.
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
            axis.set_ylim(min(0, *shown) * HEADROOM - 0.01, max(0, *shown) * HEADROOM + 0.01)
        axis.set_title(name)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=min(len(labels), 6))
    figure.supxlabel("thousand tokens of training")
    figure.supylabel("nats per such token above the control")
    return figure


def length_figure(trained: horizon.Trained) -> "Figure":
    """Draw the cost of every arm by the length of its training, one panel per text."""
    texts = [*dict.fromkeys(text for text, _ in trained)]
    every = sorted({steps for lengths in trained.values() for steps in lengths})
    costs = {steps: horizon.costs(trained, steps) for steps in every}
    figure, axes = panels(len(texts), len(texts), _LENGTHS)
    for axis, text in zip(axes, texts, strict=True):
        axis.axhline(0, color=_GREY, linewidth=0.8)
        of_text = {arm: lengths for (one, arm), lengths in trained.items() if one == text}
        for place, (arm, lengths) in enumerate(of_text.items()):
            shift = 2 ** (0.05 * (place - (len(of_text) - 1) / 2))  # next to each other
            means, intervals = zip(*(costs[steps][text, arm] for steps in lengths), strict=True)
            ends = zip(means, intervals, strict=True)
            reach = [[mean - low, high - mean] for mean, (low, high) in ends]
            look = {"color": COLOURS[place % len(COLOURS)], "marker": "o", "markersize": 3}
            steps = [steps * shift for steps in lengths]
            axis.errorbar(steps, means, [*zip(*reach, strict=True)], label=arm, **look)
        ticks = sorted({steps for lengths in of_text.values() for steps in lengths})
        axis.set_xscale("log", base=2)
        axis.set_xticks(ticks, [f"{steps}" for steps in ticks])
        axis.set_title(text)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=4)
    figure.supxlabel("steps of training")
    figure.supylabel("nats per token above the control")
    return figure


def width_figure(found: Sequence[TrendFinding]) -> "Figure":
    """Draw the cost of every arm in tokens, by width."""
    figure, (axis,) = panels(1, 1, _WIDTHS)
    axis.axhline(0, color=_GREY, linewidth=0.8)
    drawn = [one for one in found if one.costs]
    for place, one in enumerate(drawn):
        shift = 2 ** (0.06 * (place - (len(drawn) - 1) / 2))  # next to each other
        widths = [cost.width * shift for cost in one.costs]
        means = [_share(sum(cost.costs) / len(cost.costs)) for cost in one.costs]
        ends = [[_share(end) for end in cost.interval] for cost in one.costs]
        reach = [[abs(m - end[k]) for m, end in zip(means, ends, strict=True)] for k in (0, 1)]
        look = {"color": COLOURS[place % len(COLOURS)], "marker": "o", "markersize": 4}
        axis.errorbar(widths, means, reach, label=one.trend.arm, linewidth=1.4, **look)
    ticks = sorted({cost.width for one in drawn for cost in one.costs})
    axis.set_xscale("log", base=2)
    axis.set_xticks(ticks, [f"{width}" for width in ticks])
    figure.legend(
        loc="outside upper center", ncols=len(drawn)
    )  # inside the axes it hides intervals
    figure.supxlabel("width of the residual stream")
    figure.supylabel("% of tokens for the same loss")
    return figure


def truncation_figure(curves: Mapping[str, Mapping[int, float]], head_dim: int) -> "Figure":
    """Draw the loss of each form by the rank to which every S_h is cut."""
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
    """Draw the distance between two forms of one model after each step of their trainings."""
    says = {"S": "S_h, of its size", "attention": "a token's attention"}
    figure, (axis,) = panels(1, 1, _WIDTHS)
    for place, (what, shares) in enumerate(curves.items()):
        percent = [100 * share for share in shares.values()]
        axis.plot([*shares], percent, "o-", color=COLOURS[place], label=says[what], markersize=4)
    figure.legend(loc="outside upper center", ncols=len(curves))
    figure.supxlabel("steps from one untrained model, with the same batches")
    figure.supylabel("% apart")
    return figure


def _share(cost: float) -> float:
    return -100 * expm1(-cost)
