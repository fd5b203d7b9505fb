"""A training on the screen: its plan, as lines or as facts, and a curve of its losses."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType
from rich.progress import Progress
from rich.text import Text

from mlx_attn.attention.config import VARIANTS
from mlx_attn.errors import plural
from mlx_attn.model.config import GPTConfig
from mlx_attn.model.gpt import ModelCost, model_cost
from mlx_attn.text.corpus import Corpus
from mlx_attn.training.forecast import Forecast
from mlx_attn.training.trainer import FLOAT_BYTES, Trainer
from mlx_attn.ui.plots import COLOURS, panels
from mlx_attn.ui.terminal import count, duration, memory

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def plan_rows(
    trainer: Trainer, corpus: Corpus, expected: Forecast | None = None
) -> list[tuple[str, str]]:
    """Return the plan of a training, line by line."""
    config, variant = trainer.model.config, trainer.settings.variant
    cost = model_cost(config)
    rows = {"variant": variant}
    # Only named variants have a formula.
    if variant in VARIANTS:
        rows["formula"] = VARIANTS[variant].formula
    rows |= {
        "model": _shape(config),
        "parameters": f"{cost.parameters:,} ({count(cost.attention_parameters)} in attention)",
        "text": f"{corpus.name}: {count(len(corpus.train.tokens))} tokens to train on, "
        f"{count(len(corpus.val.tokens))} to validate, {corpus.tokenizer.kind} vocabulary of "
        f"{corpus.tokenizer.vocab_size}",
        "training": _recipe(trainer),
    }
    rows["memory"] = f"{memory(_state_bytes(cost))} for weights, gradients and optimizer"
    if expected:
        rows["memory"] += f"; about {memory(expected.peak_memory)} at the peak"
        rows["time"] = f"about {_time(expected)}"
    return list(rows.items())


def _time(expected: Forecast) -> str:
    step = f"{expected.step_seconds:.2g} s" if expected.step_seconds >= 1 else ""
    step = step or f"{1000 * expected.step_seconds:.3g} ms"
    validation = duration(expected.validation_seconds)
    return (
        f"{duration(expected.seconds)}: {plural(expected.steps, 'step')} of {step}, "
        f"{plural(expected.validations, 'validation')} of {validation}, as measured now"
    )


def plan_facts(
    trainer: Trainer, corpus: Corpus, expected: Forecast | None = None
) -> dict[str, Any]:
    """Return the plan of a training as JSON values."""
    cost = model_cost(trainer.model.config)
    return {
        "event": "plan",
        "variant": trainer.settings.variant,
        "params": cost.parameters,
        "attention_params": cost.attention_parameters,
        "step": trainer.progress.step,
        "steps": trainer.steps,
        "tokens_per_step": trainer.tokens_per_step,
        "training_tokens": len(corpus.train.tokens),
        "validation_tokens": len(corpus.val.tokens),
        "vocab_size": corpus.tokenizer.vocab_size,
        "memory": _state_bytes(cost),
        **({"sent_bytes_per_step": sent_bytes(trainer)} if trainer.ranks.size > 1 else {}),
        **({"forecast": asdict(expected)} if expected else {}),
    }


def sent_bytes(trainer: Trainer) -> int:
    """Return the bytes that a rank sends per step; gradients have the type of the weights."""
    return trainer.ranks.sent_bytes(trainer.model.trainable_parameters())


def _state_bytes(cost: ModelCost) -> int:
    """Return the bytes of weights, gradient and AdamW's two moments."""
    return 4 * FLOAT_BYTES * cost.parameters


def _shape(config: GPTConfig) -> str:
    heads = f"{plural(config.n_heads, 'head')} of {config.head_dim}"
    if config.n_kv_heads != config.n_heads:
        heads += f" ({config.n_kv_heads} for keys and values)"
    return (
        f"{plural(config.n_layers, 'layer')}, {heads}, width {config.emb_dim}, context "
        f"{config.context_length}, {config.norm}, {config.activation}, positions {config.position}"
    )


def _recipe(trainer: Trainer) -> str:
    config, done = trainer.config, trainer.progress.step
    bounds = {"step": config.steps, "epoch": config.epochs, "minute": config.minutes}
    budget = " or ".join(plural(n, unit) for unit, n in bounds.items() if n)
    tokens = f"{count(trainer.tokens_per_step)} tokens a step"
    if trainer.ranks.size > 1:
        tokens += f" shared by {trainer.ranks.size} ranks, of which each sends "
        tokens += memory(sent_bytes(trainer))
    recipe = f"{budget}, {tokens}, {config.optimizer}"
    if 0 < trainer.steps < config.warmup:
        # The largest factor that `learning_rate_factor` reaches before the training ends.
        share = trainer.steps / (config.warmup + 1)
        recipe += (
            f"; the learning rate only reaches {share:.1g} of its peak, since its warm-up takes "
            f"{config.warmup} steps"
        )
    return recipe + (f"; {done} steps are done" if done else "")


# The curve of the losses: in braille above the progress bar, or as a figure.

CURVE = (70, 6)  # the most columns of the curve, and its lines
_FITS = (50, 20)  # columns and lines that a terminal needs to show it
_FEWEST = 3  # losses in a curve


class ProgressWithCurve(Progress):
    """A progress bar, with a curve of the losses above it if the terminal has room."""

    def __init__(self, *columns: Any, **options: Any):
        self._losses: list[float] = []
        super().__init__(*columns, **options)

    def add(self, loss: float) -> None:
        """Add the next loss."""
        if math.isfinite(loss):
            self._losses.append(loss)

    def curve(self) -> str:
        """Return the curve; "" if it is too early, or the terminal is too small."""
        if len(self._losses) < _FEWEST:
            return ""
        size, encoding = self.console.size, self.console.encoding.lower()
        if size.width < _FITS[0] or size.height < _FITS[1] or not encoding.startswith("utf"):
            return ""
        width, height = min(size.width, CURVE[0]), CURVE[1]
        return "\n".join(line_plot(self._losses, width, height, "training loss"))

    def get_renderables(self) -> Iterable[RenderableType]:
        """Return what rich draws at every refresh."""
        if curve := self.curve():
            yield Text(curve)
        yield self.make_tasks_table(self.tasks)


def line_plot(values: Sequence[float], width: int, height: int, title: str) -> list[str]:
    """Plot a curve as `height` lines of `width` columns, on a logarithmic scale.

    Each character has 2 x 4 braille dots (U+2800 to U+28FF). The first line is labelled with the
    largest value, the last one with the smallest.

    Args:
        values: In order. If any is not positive, the scale is linear.
        width: Columns, labels included.
        height: Lines.
        title: Shown at the right of the first line.
    """
    label = max(len(f"{bound:.2f}") for bound in (min(values), max(values)))
    # Two dots per character; the labels and two spaces take the rest of the line.
    columns = 2 * (width - label - 2)
    heights = _heights(values, columns, 4 * height)
    rows = [[0] * (columns // 2) for _ in range(height)]
    for x, (y, before) in enumerate(zip(heights, heights[:1] + heights, strict=False)):
        # The curve is connected: a step down is a vertical line.
        for dot in range(min(y, before), max(y, before) + (y == before)):
            rows[dot // 4][x // 2] |= _BRAILLE[x % 2][dot % 4]
        rows[y // 4][x // 2] |= _BRAILLE[x % 2][y % 4]
    lines = ["".join(chr(0x2800 + dots) for dots in row) for row in rows]
    labels = [f"{max(values):.2f}", *[""] * (height - 2), f"{min(values):.2f}"]
    blank = "\u2800" * len(title)
    lines[0] = lines[0].removesuffix(blank) + title * lines[0].endswith(blank)
    return [f"{text:>{label}}  {line}" for text, line in zip(labels, lines, strict=True)]


_BRAILLE = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
"""The bits of a character's dots, from top to bottom, by column."""


def _heights(values: Sequence[float], columns: int, dots: int) -> list[int]:
    """Return how far below the top the curve is, for each column of dots."""
    # A logarithm shows early and late progress on one scale.
    scaled = [math.log(value) for value in values] if min(values) > 0 else list(values)
    top, span = max(scaled), (max(scaled) - min(scaled)) or 1.0
    last = len(values) - 1
    positions = [x * last / max(columns - 1, 1) for x in range(columns)]
    between = ((math.floor(p), math.ceil(p), p % 1) for p in positions)
    # Linear interpolation between the losses on both sides of each column of dots.
    curve = (scaled[low] * (1 - part) + scaled[high] * part for low, high, part in between)
    return [round((top - y) / span * (dots - 1)) for y in curve]


def draw_losses(training: Mapping[int, float], validation: Mapping[int, float]) -> "Figure":
    """Draw the losses of a training in nats per token, by step."""
    figure, (axis,) = panels(1, 1, (4.5, 2.5))
    for losses, colour, mark, label in (
        (training, COLOURS[7], "-", "training"),
        (validation, COLOURS[1], "o-", "validation"),
    ):
        axis.plot([*losses], [*losses.values()], mark, color=colour, markersize=3, label=label)
    axis.set(xlabel="step", ylabel="nats per token")
    axis.legend()
    return figure
