"""A forecast of a training's time and memory, from measurements before it begins.

Every block costs the same, so the time and the memory of each phase of a step are linear in the
number of layers. Models with two and with four layers, otherwise identical, train for a few steps
and validate on a few windows; the results are extrapolated to the model's depth. A model of at most
four layers, or whose layers follow a pattern of variants, is measured itself.
"""

import gc
import time
from dataclasses import dataclass, replace
from math import ceil
from statistics import median

import mlx.core as mx
import numpy as np
from jaxtyping import Float

from mlx_attn.text.corpus import Corpus
from mlx_attn.training.config import Settings
from mlx_attn.training.evaluation import EVALUATION_TOKENS
from mlx_attn.training.trainer import Trainer

_DEPTHS = (2, 4)  # layers; both even, because two streams hold other memory at odd depths
_STEPS = 3  # the most steps to time, after a first one whose memory is measured
_ENOUGH = 2.0  # stop timing steps after this many seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """The expected time and memory of a training on this machine."""

    step_seconds: float  # time of one step
    validation_seconds: float  # time of one validation
    # Time of all remaining steps and validations, without samples, checkpoints and reports.
    seconds: float
    steps: int  # steps that remain, or that fit into the minutes
    validations: int  # validations during these steps
    peak_memory: int  # the most bytes of arrays at any time


def forecast(trainer: Trainer, corpus: Corpus) -> Forecast:
    """Measure the cost of the rest of a training; the trainer itself does not change.

    MLX's random state does change; a training seeds every step itself.
    """
    config, layers = trainer.config, trainer.model.config.n_layers
    if layers <= _DEPTHS[1] or trainer.settings.model.get("pattern"):
        measured = _measure(trainer.settings, layers, corpus)
    else:
        # Two points of each line: the slope is the cost of a layer, the rest does not depend on
        # depth.
        few, many = (_measure(trainer.settings, depth, corpus) for depth in _DEPTHS)
        slope = np.maximum(many - few, 0) / (_DEPTHS[1] - _DEPTHS[0])
        measured = few + slope * (layers - _DEPTHS[0])
    step_seconds, validation_seconds, *peaks = measured.tolist()
    left = max(trainer.steps - trainer.progress.step, 0)
    by_clock = config.minutes * 60
    # Without minutes only the steps bound the training.
    fit = ceil(by_clock / step_seconds) if by_clock else left
    steps = min(left, fit) if trainer.steps else fit
    # The last validation always takes place; earlier ones every `eval_every` steps before it.
    validations = 1 + (steps - 1) // config.eval_every if config.eval_every and steps else 1
    return Forecast(
        step_seconds=step_seconds,
        validation_seconds=validation_seconds,
        seconds=steps * step_seconds + validations * validation_seconds,
        steps=steps,
        validations=validations,
        peak_memory=round(max(peaks)),
    )


def _measure(settings: Settings, layers: int, corpus: Corpus) -> Float[np.ndarray, " numbers"]:
    """Return the seconds of a step and of a validation, and the peak bytes of a step's phases."""
    shallow = replace(settings, model={**settings.model, "n_layers": layers})
    # Buffers of an earlier model must not count as this one's.
    gc.collect()
    mx.clear_cache()
    others = mx.get_active_memory()
    trainer = Trainer(shallow, corpus)
    peaks: list[int] = []
    mx.eval(trainer.step.state)  # includes the optimizer's, as in every step but the first
    mx.reset_peak_memory()
    # The optimizer begins when all gradients are ready.
    loss, gradients = trainer.step.gradients(trainer.starts())
    mx.eval(loss, gradients)
    peaks.append(mx.get_peak_memory() - others)
    mx.reset_peak_memory()
    mx.eval(trainer.step.update(gradients), trainer.step.state)
    peaks.append(mx.get_peak_memory() - others)
    del gradients
    seconds: list[float] = []
    while not seconds or (len(seconds) < _STEPS and sum(seconds) < _ENOUGH):
        began = time.perf_counter()
        # Waits for the whole step; nothing is queued ahead while it is timed.
        mx.eval(*trainer.launch_step(), *trainer.step.state)
        seconds.append(time.perf_counter() - began)
    # About one batch on every core, a known fraction of the whole validation.
    evaluator, windows = trainer.evaluator, len(trainer.evaluator.windows)
    few = min(windows, ceil(EVALUATION_TOKENS / evaluator.context_length))
    evaluator.estimate(trainer.model, few)  # warms up
    began = time.perf_counter()
    evaluator.estimate(trainer.model, few)
    validation = (time.perf_counter() - began) * windows / few
    # The median ignores a step that something else on the machine delayed.
    return np.array([median(seconds), validation, *peaks])
