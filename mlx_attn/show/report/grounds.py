"""What a comparison rests on: tuning, samples, settings, the command and the versions."""

from collections.abc import Mapping
from typing import Any

from mlx_attn.lab.compare.result import Comparison
from mlx_attn.show.quantities import duration, plural
from mlx_attn.show.report.content import Block, Code, Note, Plot, Section, Table, Writing
from mlx_attn.show.report.figures import tuning_figure
from mlx_attn.show.report.marks import Marks
from mlx_attn.show.report.words import budget_name, number

WRITTEN = 700
"""Characters of a sample that are shown."""


def tuning_section(comparison: Comparison, marks: Marks) -> Section:
    """How every arm's learning rate was found."""
    if not comparison.tunings:
        return Section("Learning rates", ("Every arm has the learning rates of the settings.",))
    seeds = plural(len(comparison.tunings[0].seeds), "seed")
    plot = Plot(
        name="tuning",
        title="Loss against the learning rate",
        text=f"Means over {seeds} that play no part in the verdicts; a ring marks the factor that "
        "was chosen.",
        draw=lambda: tuning_figure(comparison.tunings, marks),
    )
    edges = [tuning.arm for tuning in comparison.tunings if not tuning.interior]
    notes = [
        Note(
            f"{', '.join(edges)}: the best factor is at the edge of those tried, so a better "
            "one may lie beyond it."
        )
    ]
    return Section("Learning rates", (plot, tuning_table(comparison), *(notes if edges else ())))


def tuning_table(comparison: Comparison) -> Table:
    """A row per arm, a column per factor."""
    factors = sorted({factor for tuning in comparison.tunings for factor in tuning.losses})
    return Table(
        caption="Mean loss for each factor of the learning rates, nats per token",
        headings=("arm", *(f"x {factor:g}" for factor in factors), "chosen"),
        rows=tuple(
            (
                tuning.arm,
                *(_tried(tuning.losses, factor) for factor in factors),
                f"x {tuning.best:g}",
            )
            for tuning in comparison.tunings
        ),
    )


def samples_section(comparison: Comparison) -> Section:
    """What the first seed of every arm writes, under the first budget."""
    first = next((budget for budget in comparison.budgets if budget.arms), None)
    arms = [arm for arm in first.arms if arm.trainings] if first else []
    written = tuple(
        Writing(arm.arm, arm.trainings[0].sample[:WRITTEN])
        for arm in arms
        if arm.trainings[0].sample.strip()
    )
    if not (first and written):
        return Section("Samples", ())
    seed = arms[0].trainings[0].seed
    text = f"What the models of seed {seed} write, greedily, with {budget_name(first)}."
    return Section("Samples", (text, written))


def settings_section(comparison: Comparison) -> Section:
    """What all arms share, what sets each apart, and the text."""
    arms = {arm.arm: arm.settings for b in comparison.budgets for arm in b.arms}
    rows = tuple((name, _flat(settings)) for name, settings in arms.items())
    blocks: list[Block] = [_pairs("What all arms share", comparison.settings)]
    if rows:
        headings = ("arm", "settings of its own")
        blocks.insert(
            0, Table(caption="What sets the arms apart", headings=headings, rows=rows, wordy=True)
        )
    return Section("Settings", (*blocks, _pairs("The validation text", comparison.text)))


def reproduction_section(comparison: Comparison) -> Section:
    """The command, the versions, and how long it took."""
    took = f"All trainings together took {duration(comparison.seconds)}."
    versions = _pairs("Versions and machine", comparison.versions)
    return Section("Reproduce it", (Code(comparison.command), took, versions))


def _tried(losses: Mapping[float, float | None], factor: float) -> str:
    if factor not in losses:
        return "not tried"
    loss = losses[factor]
    return "diverged" if loss is None else number(loss, 4)


def _pairs(caption: str, values: Mapping[str, Any]) -> Table:
    rows = tuple((name, _text(value)) for name, value in values.items())
    return Table(caption=caption, headings=("name", "value"), rows=rows, wordy=True)


def _flat(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} = {_text(value)}" for key, value in settings.items()) or "none"


def _text(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, Mapping):
        return _flat(value)
    return f"{value:g}" if isinstance(value, float) else str(value)
