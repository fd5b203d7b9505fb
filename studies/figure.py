"""Draw the figure of docs/answers.md: the cost of each form by the length of its training."""

from typing import TYPE_CHECKING

from mlx_attn.ui.plots import COLOURS, panels
from studies.lengths import Cost, Lengths

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_GREY = "#7f7f7f"
_SIZE = (4.2, 3.6)  # inches of a panel
_APART = 0.06  # octaves between the points of two arms
_TICKS = (1, 2, 5, 10, 20)


def length_figure(lengths: Lengths) -> "Figure":
    """Draw a panel for each text, with the 95 % interval of every cost.

    The axis is in tokens for each parameter of the book's form, so that texts can be compared.
    """
    contrasts = [c for c in lengths.table.contrasts if not c.once]
    texts = lengths.table.texts
    figure, axes = panels(len(texts), len(texts), _SIZE, sharex=True, sharey=True)
    for axis, (text, row) in zip(axes, texts.items(), strict=True):
        axis.axhspan(-row.margin, row.margin, color=_GREY, alpha=0.15, linewidth=0)
        axis.axhline(0, color=_GREY, linewidth=0.8)
        for place, contrast in enumerate(contrasts):
            shift = 2 ** (_APART * (place - (len(contrasts) - 1) / 2))
            of_arm = [c for c in lengths.costs.values() if (c.contrast, c.text) == (contrast, text)]
            _draw(axis, sorted(of_arm, key=lambda c: c.steps), shift, COLOURS[place])
        axis.set_xscale("log")
        axis.set_xticks(_TICKS, [f"{tick}" for tick in _TICKS])
        axis.set_xticks([], minor=True)
        axis.set_title(text)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=4)
    figure.supxlabel("tokens of training for each parameter; grey: the margin")
    figure.supylabel("nats per token above the book's form")
    return figure


def _draw(axis, costs: list[Cost], shift: float, colour: str) -> None:
    """Draw one arm's costs by length, with their intervals."""
    means = [cost.estimate.mean for cost in costs]
    reach = [cost.estimate.reach() for cost in costs]
    tokens = [cost.tokens * shift for cost in costs]
    label = costs[0].contrast.says.replace("`", "") if costs else ""
    look = {"color": colour, "marker": "o", "markersize": 3, "linewidth": 1.2}
    axis.errorbar(tokens, means, reach, label=label, **look)
