"""The work of a comparison: its trainings, and their hours on one core and on several workers."""

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import replace

from mlx_attn.comparison.plan import TUNING_SEED, Arm, Trial
from mlx_attn.comparison.run import ComparisonRun, TrialPlan
from mlx_attn.errors import ConfigError
from mlx_attn.machine import blas
from mlx_attn.machine.streams import single_stream
from mlx_attn.training.forecast import Forecast, forecast
from mlx_attn.training.trainer import Trainer

HOUR = 3600.0


def makespan(seconds: Iterable[float], speeds: Sequence[float]) -> float:
    """Return when the last training ends if each idle worker takes the next one."""
    idle = [(0.0, number, speed) for number, speed in enumerate(speeds)]
    heapq.heapify(idle)
    for each in seconds:
        # A heap by the time at which each worker is free; the number breaks ties.
        free, number, speed = idle[0]
        heapq.heapreplace(idle, (free + each / speed, number, speed))
    return max(free for free, _, _ in idle)


def hours_on(stages: Iterable[Iterable[float]], speeds: Sequence[float]) -> float:
    """Return the hours of trainings on workers of these speeds, relative to this machine's."""
    return sum(makespan(stage, speeds) for stage in stages) / HOUR


def speeds_from(text: str) -> tuple[float, ...]:
    """Return the speed of each worker that "4:1,2:0.5" describes: four of 1 and two of 0.5.

    Raises:
        ConfigError: It describes none.
    """
    speeds: list[float] = []
    try:
        for part in text.split(","):
            count, _, speed = part.partition(":")
            speeds += int(count) * [float(speed or 1)]
    except ValueError as error:
        raise ConfigError(f"--workers {text}: use COUNT:SPEED,..., as in 4:1,2:0.5") from error
    if not speeds or not all(0 < speed < float("inf") for speed in speeds):
        raise ConfigError(f"--workers {text}: at least one worker, and speeds above 0")
    return tuple(speeds)


def stages_of(run: ComparisonRun, seeds: int) -> list[list[float]]:
    """Measure a few steps of every arm; return the seconds of the missing trainings, by stage.

    The stages are tuning and the verdict; one begins when the other has ended. They are the seconds
    of one worker of this machine. A search for learning rates that goes beyond its first factors
    takes more.
    """
    protocol, arms = run.protocol, run.protocol.all_arms
    # One forecast per arm; its trials differ only in seed, steps and learning rates.
    expected = {arm.name: _forecast(run, arm) for arm in arms}
    speeds = {name: 1 / max(each.step_seconds, 1e-9) for name, each in expected.items()}
    # The first round of the search; what follows is not known yet.
    factors = [(scale, {}) for scale in protocol.scales]
    factors += [(1.0, {"query_key_lr": factor}) for factor in protocol.query_key_scales]
    tuning = [
        protocol.trial(replace(arm, lr_scale=scale), seed, changes)
        for arm in arms
        for scale, changes in factors
        for seed in range(TUNING_SEED, TUNING_SEED + protocol.tuning_seeds)
    ]
    verdict = TrialPlan(protocol, arms, run.vocab_size, speeds).all(range(seeds))

    def seconds(trial: Trial) -> float:
        each = expected[trial.arm]
        # One validation, at the end; measurements on the way are left out.
        return trial.settings["steps"] * each.step_seconds + each.validation_seconds

    stages = (tuning if protocol.tunes else [], verdict)
    return [[seconds(trial) for trial in run.runner.missing(stage)] for stage in stages]


def _forecast(run: ComparisonRun, arm: Arm) -> Forecast:
    """Measure an arm as a worker trains it: on one thread of a processor."""
    # Several trials share the machine, so each has one thread.
    before = blas.preload().threads
    blas.use_threads(1)
    try:
        trainer = Trainer(run.protocol.settings(arm), run.corpus, draw=False)
        return single_stream(forecast)(trainer, run.corpus)
    finally:
        blas.use_threads(before)
