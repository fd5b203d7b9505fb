"""Display of a study: lines for the terminal, and figures for its page."""

from collections.abc import Mapping, Sequence
from math import isfinite
from statistics import fmean
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.text import Text

from mlx_attn.answers.findings import FAILS, HOLDS, Finding
from mlx_attn.answers.study import STEPS, Study
from mlx_attn.answers.tables import name_of
from mlx_attn.comparison.figures import draw_forest
from mlx_attn.comparison.plan import Trial
from mlx_attn.comparison.show import LOOKS
from mlx_attn.comparison.trial import Diverged, Outcome
from mlx_attn.comparison.tuning import Search
from mlx_attn.ui.plots import COLOURS, panels

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def trial_line(trial: Trial, outcome: Outcome, left: int) -> str:
    """Return a line about a finished trial, with the number of trials left."""
    name = f"{trial.world}, {trial.arm}, seed {trial.seed}, rates x {trial.lr_scale:g}"
    if isinstance(outcome, Diverged):
        return f"{name}: diverged  ({left} or more left)"
    return f"{name}: {outcome.val_loss:.4f}  ({outcome.seconds:.0f} s, {left} or more left)"


def question_lines(study: Study, name: str, found: Sequence[Finding]) -> Group:
    """Return a question with its contrasts, and a line for every world below each."""
    lines = [Text(study.question(name).title, "bold")]
    for contrast in study.question(name).contrasts:
        lines += [Text(f"\n{contrast.statement}"), Text(f"  {contrast.source}", "dim")]
        for finding in (f for f in found if f.contrast == contrast):
            answer = finding.answer
            line = Text(f"  {finding.world}: ")
            line.append(answer, LOOKS[answer].terminal if answer in (HOLDS, FAILS) else "yellow")
            line.append(_numbers(finding))
            lines.append(line)
    return Group(*lines)


def _numbers(finding: Finding) -> str:
    verdict = finding.verdict
    if verdict is None:
        return ", {} of {} runs".format(*finding.done)
    spread = "one seed"
    if verdict.interval is not None:
        spread = "{:+.4f} to {:+.4f}".format(*verdict.interval)
    part = "" if verdict.share is None else f", {verdict.share:+.0%} of the part"
    unit = "ln(steps)" if finding.contrast.outcome == STEPS else "nats"
    return f", {verdict.mean:+.4f} {unit} ({spread}), {finding.said}{part}"


def finding_rows(found: Sequence[Finding]) -> list[dict[str, Any]]:
    """Return findings as plain data."""
    return [
        {
            "arm": f.contrast.arm,
            "control": f.contrast.control,
            "world": f.world,
            "outcome": f.contrast.outcome or "loss",
            "answer": f.answer,
            "runs": list(f.done),
            "word": f.word,
            "steps": f.steps,
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
_RATES = (2.7, 1.6)
_LABEL, _LETTER = 20, 0.085  # letters of a label that a panel has room for, and inches of a letter
HEADROOM = 1.25  # top of the axis, in multiples of the third quartile of the arms' highest losses


def question_figure(found: Sequence[Finding], study: Study) -> "Figure":
    """Draw one panel per world: each contrast's seeds, mean and interval, and the margin."""
    found = [f for f in found if f.verdict]
    worlds = [world for world in study.worlds if any(f.world == world for f in found)]
    rows = [*dict.fromkeys(name_of(f.contrast) for f in found)]
    labels = [row.replace(" to ", "\n(to ") + ")" * (" to " in row) for row in rows]
    # All panels share the room that long labels take from the first one.
    longest = max(len(line) for label in labels for line in label.split("\n"))
    width = _SIZE[0] + _LETTER * max(0, longest - _LABEL) / min(3, len(worlds))
    size = (width, _SIZE[1] + _ROW * len(rows))
    figure, axes = panels(len(worlds), 3, size, sharey=True)
    for axis, world in zip(axes, worlds, strict=True):
        here = (f for f in found if f.world == world)
        placed = ((rows.index(name_of(f.contrast)), f.verdict) for f in here)
        verdicts = [(row, verdict) for row, verdict in placed if verdict]
        draw_forest(axis, verdicts, study.worlds[world].margin)
        axis.set_title(world)
        axis.locator_params(axis="x", nbins=4)
    axes[0].set_yticks(range(len(rows)), labels)
    axes[0].set_ylim(len(rows) - 0.5, -0.5)
    unit = "ln(steps)" if any(f.contrast.outcome == STEPS for f in found) else "nats per token"
    label = f"{unit} above the control (left is better); band: the margin"
    figure.supxlabel(label if len(axes) > 1 else label.replace(" (", "\n("))  # a panel is narrow
    return figure


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
