"""How long a training will take and how much memory, measured before it begins.

A block costs what the next block costs, so that time and the memory of each phase of a step are
straight lines in the number of layers. Models of two layers and of four, alike in all else, are
trained for a few steps and validated on a few windows; the lines through both are followed to the
model's own depth. A model of four layers or fewer is measured itself.
"""

import gc
import time
from dataclasses import dataclass, replace
from math import ceil
from statistics import median

import mlx.core as mx

from mlx_attn.text.corpus import Corpus
from mlx_attn.training.config import Settings
from mlx_attn.training.trainer import Trainer

DEPTHS = (2, 4)
"""Layers of the models that are measured. What two streams hold at a time differs between odd and
even numbers of layers."""

STEPS = 3
"""Steps of each that are timed, at most, after a first one whose memory is measured."""

ENOUGH = 2.0
"""Seconds of steps after which no other is taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What a training will take on this machine, in seconds and bytes.

    Attributes:
        step_seconds: Of one step.
        validation_seconds: Of one validation.
        seconds: Of all steps that are to be done and their validations; samples, checkpoints and
            reports come on top. 0 where only a clock bounds the training.
        steps: That are to be done; those that fit where only a clock bounds it.
        validations: Among them.
        peak_memory: The most bytes of arrays at a time.
    """

    step_seconds: float
    validation_seconds: float
    seconds: float
    steps: int
    validations: int
    peak_memory: int


@dataclass(frozen=True, slots=True)
class _Measured:
    """Of a model of some depth: seconds, and the peak of each phase of a step in bytes."""

    step_seconds: float
    validation_seconds: float
    peaks: tuple[float, ...]


def _follow(few: float, many: float, layers: int) -> float:
    """The line through both depths at this one; never below its smaller depth's."""
    return few + max(many - few, 0.0) * (layers - DEPTHS[0]) / (DEPTHS[1] - DEPTHS[0])


def _at_depth(layers: int, settings: Settings, corpus: Corpus) -> _Measured:
    """What a model of so many layers takes."""
    if layers <= DEPTHS[1]:
        return _measure(settings, layers, corpus)
    few, many = (_measure(settings, depth, corpus) for depth in DEPTHS)
    return _Measured(
        _follow(few.step_seconds, many.step_seconds, layers),
        _follow(few.validation_seconds, many.validation_seconds, layers),
        tuple(_follow(*peaks, layers) for peaks in zip(few.peaks, many.peaks, strict=True)),
    )


def forecast(trainer: Trainer, corpus: Corpus) -> Forecast:
    """Measure what the rest of a training takes; the trainer itself is left as it is.

    The random state of MLX is left elsewhere; a training seeds every step of its own.
    """
    config = trainer.config
    whole = _at_depth(trainer.model.config.n_layers, trainer.settings, corpus)
    left = max(trainer.steps - trainer.progress.step, 0)
    by_clock = config.minutes * 60
    fit = ceil(by_clock / whole.step_seconds) if by_clock else left
    steps = min(left, fit) if trainer.steps else fit
    validations = 1 + (steps - 1) // config.eval_every if config.eval_every and steps else 1
    seconds = steps * whole.step_seconds + validations * whole.validation_seconds
    return Forecast(
        step_seconds=whole.step_seconds,
        validation_seconds=whole.validation_seconds,
        seconds=seconds,
        steps=steps,
        validations=validations,
        peak_memory=round(max(whole.peaks)),
    )


def _measure(settings: Settings, layers: int, corpus: Corpus) -> _Measured:
    """What a model of so many layers takes, trained as the settings say."""
    shallow = replace(settings, model={**settings.model, "n_layers": layers})
    gc.collect()
    mx.clear_cache()
    others = mx.get_active_memory()
    trainer = Trainer(shallow, corpus)
    seconds, peaks = _steps(trainer)
    trainer.evaluator.try_out(trainer.model)  # warms up
    began = time.perf_counter()
    share = trainer.evaluator.try_out(trainer.model)
    validation = (time.perf_counter() - began) / share
    return _Measured(seconds, validation, tuple(float(peak - others) for peak in peaks))


def _steps(trainer: Trainer) -> tuple[float, list[int]]:
    """Seconds of a step, and the most memory of each phase of one."""
    mx.eval(trainer.step.state)  # the optimizer's too, which every step but the first finds there
    peaks: list[int] = []
    mx.reset_peak_memory()
    for phase in trainer.step.in_phases(trainer.starts()):
        mx.eval(phase)
        peaks.append(mx.get_peak_memory())
        mx.reset_peak_memory()
    seconds: list[float] = []
    while not seconds or (len(seconds) < STEPS and sum(seconds) < ENOUGH):
        began = time.perf_counter()
        mx.eval(*trainer.launch_step(), *trainer.step.state)
        seconds.append(time.perf_counter() - began)
    return median(seconds), peaks
